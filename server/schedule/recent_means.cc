#include "server/schedule/recent_means.h"

#include <algorithm>

namespace kiln {

void RecentMeans::Add(const Caller& caller, double value) {
  Mean& mean = means_[Key(caller.tenant, caller.work_class)];
  mean.mean.Add(value);
  mean.last_added = ++added_;
  if (means_.size() <= kKept) return;
  means_.erase(std::min_element(means_.begin(), means_.end(), [](const auto& a, const auto& b) {
    return a.second.last_added < b.second.last_added;
  }));
}

double RecentMeans::Of(const Caller& caller) const {
  const auto found = means_.find(Key(caller.tenant, caller.work_class));
  return found == means_.end() ? unknown_ : found->second.mean.value();
}

}  // namespace kiln
