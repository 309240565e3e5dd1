// Reads every entry of a database at a bounded rate and removes damaged ones before they are used: bit rot is
// found while what was lost can still be compiled again. One thread, at a lower priority; a pass over
// everything, a rest, the next pass. Entries that come or go meanwhile may be left out.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/artifact_store.h"
#include "cache/checks/verifying_store.h"

namespace kiln {

struct ScrubOptions {
  uint64_t bytes_per_second = 1u << 20;
  absl::Duration before_the_first = absl::Minutes(1);
  absl::Duration between_passes = absl::Hours(24);
};

class Scrubber {
 public:
  // Both outlive the scrubber; `store` counts what it takes out. UNAVAILABLE where there can be no thread
  // more.
  static absl::StatusOr<std::unique_ptr<Scrubber>> Create(VerifyingStore* store, const Catalog* catalog,
                                                          const ScrubOptions& options);
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  uint64_t entries_read() const { return entries_read_.load(std::memory_order_relaxed); }
  uint64_t passes() const { return passes_.load(std::memory_order_relaxed); }

 private:
  Scrubber(VerifyingStore* store, const Catalog* catalog, const ScrubOptions& options)
      : store_(store), catalog_(catalog), options_(options) {}
  void Run();
  void Pass();
  // False when the scrubber ends.
  bool Rest(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mutex_);

  VerifyingStore* const store_;
  const Catalog* const catalog_;
  const ScrubOptions options_;
  std::atomic<uint64_t> entries_read_{0};
  std::atomic<uint64_t> passes_{0};

  absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // const after Create
};

}  // namespace kiln
