// A RecentMean for each tenant and class of its work: one tenant's long compiles don't change another's
// estimate.
//
// No threads: whoever owns it locks it. Limits: the kKept tenants and classes that came last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "server/schedule/fair_queue.h"
#include "server/schedule/recent_mean.h"

namespace kiln {

class RecentMeans {
 public:
  static constexpr size_t kKept = 256;
  // `unknown`: of whom there was none.
  explicit RecentMeans(double unknown = 0) : unknown_(unknown) {}

  void Add(const Caller& caller, double value);
  double Of(const Caller& caller) const;

 private:
  struct Mean {
    RecentMean mean;
    uint64_t last_added = 0;
  };
  using Key = std::pair<std::string, Caller::Class>;

  const double unknown_;
  std::map<Key, Mean> means_;
  uint64_t added_ = 0;
};

}  // namespace kiln
