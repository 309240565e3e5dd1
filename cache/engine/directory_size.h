// The bytes of a directory's files, cached: listed at most once a second, or after much was written, since
// callers ask often and a big database has thousands of files.
//
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rocksdb/env.h"

namespace kiln {

class DirectorySize {
 public:
  // `env` outlives it.
  DirectorySize(rocksdb::Env* env, std::string path) : env_(env), path_(std::move(path)) {}

  // With what has been written since it was looked at.
  uint64_t Bytes() ABSL_LOCKS_EXCLUDED(mutex_);
  void Wrote(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after much was deleted: the next Bytes looks again.
  void Invalidate() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  rocksdb::Env* const env_;
  const std::string path_;

  absl::Mutex mutex_;
  std::chrono::steady_clock::time_point next_look_ ABSL_GUARDED_BY(mutex_);
  uint64_t seen_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t written_since_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln
