// Keeps batches that the disk refused for a minute: callers were told that the artifact exists and are about
// to fetch it, and the memory tier may have evicted it. Bounded in bytes: the oldest go first, and a batch
// above the bound is not kept. Thread-safe. What has expired is freed by the next call.
#pragma once

#include <cstdint>
#include <functional>
#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/artifact_store.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

struct RefusedWritesOptions {
  uint64_t bytes_max = uint64_t{64} << 20;  // of keys and values
  absl::Duration kept = absl::Seconds(60);
  std::function<MonotonicTime()> now = MonotonicNow;
};

class RefusedWrites {
 public:
  explicit RefusedWrites(RefusedWritesOptions options) : options_(std::move(options)) {}

  void Keep(absl::Span<const Entry> batch);
  // Null where it is not kept.
  EntryValue Find(const EntryId& id);
  // They have been written, or deleted.
  void Forget(absl::Span<const EntryId> ids);

 private:
  struct Kept {
    Entry entry;
    MonotonicTime until;
  };
  using List = std::list<Kept>;  // the oldest first

  void Erase(const EntryId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGo(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RefusedWritesOptions options_;
  absl::Mutex mutex_;
  List kept_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<EntryId, List::iterator> index_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln
