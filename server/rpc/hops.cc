#include "server/rpc/hops.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/protocol.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

bool IsId(absl::string_view id) {
  return !id.empty() && id.size() <= kDaemonIdDigitsMax &&
         std::all_of(id.begin(), id.end(), absl::ascii_isxdigit);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> HopsOf(const grpc::ServerContextBase& call, absl::string_view own) {
  const auto said = call.client_metadata().find(kHopsMetadata);
  if (said == call.client_metadata().end()) return std::vector<std::string>();
  const absl::string_view text(said->second.data(), said->second.size());
  std::vector<std::string> hops = absl::StrSplit(text, absl::MaxSplits(',', 2 * kHopsMax));
  if (!std::all_of(hops.begin(), hops.end(), IsId))
    return absl::InvalidArgumentError(absl::StrCat(kHopsMetadata, ": is no list of daemons' ids"));
  if (!own.empty() && std::count(hops.begin(), hops.end(), own) > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(kHopsMetadata, ": the call has come round to this kilnd (", text,
                     "): take `upstream` out of one of their configurations"));
  }
  if (hops.size() > kHopsMax) {
    return absl::FailedPreconditionError(absl::StrCat(
        kHopsMetadata, ": the call has passed ", hops.size(), " daemons (", text, "), and at most ", kHopsMax,
        " may pass one on: let the first name this kilnd as its upstream"));
  }
  return hops;
}

}  // namespace kiln
