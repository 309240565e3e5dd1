#include "server/rpc/listing_diff.h"

#include <ostream>
#include <sstream>

#include "absl/strings/str_split.h"
#include "dtl/dtl.hpp"

namespace kiln {

// By which dtl prints.
static std::ostream& operator<<(std::ostream& out, const ListingLine& line) { return out << line.text; }

std::vector<std::string> UnifiedDiff(const std::vector<ListingLine>& a, const std::vector<ListingLine>& b) {
  dtl::Diff<ListingLine> diff(a, b, /*deletesFirst=*/true);
  diff.onHuge();  // in parts, so that memory stays bounded
  diff.compose();
  diff.composeUnifiedHunks();
  std::ostringstream text;
  diff.printUnifiedFormat(text);
  return absl::StrSplit(text.str(), '\n', absl::SkipEmpty());
}

}  // namespace kiln
