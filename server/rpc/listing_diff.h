// The difference of two listings in the unified format, as `diff -u` tells it, without the file names.
// Threads: pure functions. Limits: kListingLinesMax lines of each; beyond some millions of steps the
// difference is right and no longer the shortest.
#pragma once

#include <string>
#include <vector>

namespace kiln {

struct ListingLine {
  std::string text;
  std::string compared;  // what makes two lines the same

  friend bool operator==(const ListingLine& a, const ListingLine& b) { return a.compared == b.compared; }
};

// A line each; none where they are the same.
std::vector<std::string> UnifiedDiff(const std::vector<ListingLine>& a, const std::vector<ListingLine>& b);

}  // namespace kiln
