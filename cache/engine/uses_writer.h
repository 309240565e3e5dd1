// A thread that writes recorded uses in batches, once a second at most: recording one does not write.
//
// Thread-safe. What it calls is called by one thread, until the destructor has begun.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace kiln {

class UsesWriter {
 public:
  // UNAVAILABLE where there can be no thread more.
  static absl::StatusOr<std::unique_ptr<UsesWriter>> Create(std::function<void()> write);
  ~UsesWriter();

  void ThereAreMany() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit UsesWriter(std::function<void()> write) : write_(std::move(write)) {}
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::function<void()> write_;

  absl::Mutex mutex_;
  bool many_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // const after Create
};

}  // namespace kiln
