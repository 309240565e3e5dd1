// Objects that this process has fetched, by digest, up to a number of bytes; the oldest go first.
// Values stay alive while a program uses them. Threads: thread safe.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace kiln {

class ObjectCache {
 public:
  explicit ObjectCache(size_t bytes_max) : bytes_max_(bytes_max) {}

  std::shared_ptr<const std::string> Find(const std::string& digest) {
    absl::MutexLock lock(&mutex_);
    const auto found = objects_.find(digest);
    return found == objects_.end() ? nullptr : found->second;
  }
  void Insert(const std::string& digest, std::shared_ptr<const std::string> bytes) {
    absl::MutexLock lock(&mutex_);
    if (!objects_.emplace(digest, bytes).second) return;
    order_.push_back(digest);
    bytes_ += bytes->size();
    while (bytes_ > bytes_max_ && order_.size() > 1) {
      const auto oldest = objects_.find(order_.front());
      bytes_ -= oldest->second->size();
      objects_.erase(oldest);
      order_.pop_front();
    }
  }

 private:
  const size_t bytes_max_;
  absl::Mutex mutex_;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<const std::string>> objects_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
