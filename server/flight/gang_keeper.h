// Which of the verdicts that a daemon holds have to be looked at in the tier. It is asked regularly to keep
// them all, and says of each what stands there by a mark; one that is not as it was last seen is read, taken
// where it is later, met where it says something else, and put back where it is less (gang_put_back.h).
//
// Threads: one at a time; the table is everybody's. Limits: a mark for each verdict that is held.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/flight/gang_table.h"
#include "server/flight/gang_verdict.h"

namespace kiln {

class GangKeeper {
 public:
  // The table outlives it.
  explicit GangKeeper(GangTable* table) : table_(table) {}

  // Those to be kept now.
  std::vector<GangTable::Listed> Due();
  // One that is to be read: something else stands there than when it was last seen, or more is held here.
  struct News {
    GangName name;
    std::string mark;
    int length = 0;  // of what is held, before it is read
  };
  // `mark`: of what stands there; empty: nothing does. Nothing: it is as it was last seen.
  std::optional<News> Look(const GangName& name, std::string mark);
  // It has been read since, and `written` was put back, or nothing. What was put back is read once more: the
  // tier may lose that as well, and then has what it had.
  void Seen(const News& news, const v1::GangVerdict& written);

 private:
  GangTable* const table_;
  absl::flat_hash_map<std::string, News> seen_;
};

}  // namespace kiln
