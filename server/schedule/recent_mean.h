// An exponential moving average of durations: the plain mean of the first kRecent values, then each new one
// has the weight 1 / kRecent.
#pragma once

#include <algorithm>

namespace kiln {

class RecentMean {
 public:
  static constexpr int kRecent = 16;
  explicit RecentMean(double unknown = 0) : mean_(unknown) {}  // `unknown`: before there is any

  void Add(double value) {
    count_ = std::min(count_ + 1, kRecent);
    mean_ += (value - mean_) / count_;
  }
  double value() const { return mean_; }

 private:
  double mean_;
  int count_ = 0;
};

}  // namespace kiln
