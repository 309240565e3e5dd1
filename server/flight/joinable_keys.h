// The keys with a flight that can be joined, for threads that must not wait for the flights' strand.
//
// Thread-safe: one lock, held for a look. Limits: a key a flight.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace kiln {

class JoinableKeys {
 public:
  void Add(const std::string& compile_key) {
    absl::MutexLock lock(&mutex_);
    keys_.insert(compile_key);
  }
  void Remove(absl::string_view compile_key) {
    absl::MutexLock lock(&mutex_);
    keys_.erase(compile_key);
  }
  bool Contains(absl::string_view compile_key) const {
    absl::ReaderMutexLock lock(&mutex_);
    return keys_.contains(compile_key);
  }

 private:
  mutable absl::Mutex mutex_;
  absl::flat_hash_set<std::string> keys_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
