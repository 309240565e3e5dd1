// Holds the bytes on disk to a budget. When a Put finds them above it, a thread of its own evicts the
// least recently used manifests, failures and tuning records until the live bytes are at 80 % of the
// budget, and with a manifest the objects and kernel records that no other manifest names, and the meta
// entries of its key; never an object that a live manifest names, never what is pinned. Then the
// engine gives the bytes back to the file system. Writers wait when they outrun it by a quarter.
//
// What nobody names is left alone for a grace time after its last use: a compile that found an object
// present is about to name it. Put is RESOURCE_EXHAUSTED for a batch above half of the budget.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache/artifact_store.h"

namespace kiln {

struct EvictingOptions {
  uint64_t budget_bytes = 0;
  int64_t grace_seconds = 600;
  std::function<int64_t()> now_unix_seconds;
  // Told of what was evicted, so that tiers above can forget it. May be empty.
  std::function<void(const std::vector<EntryId>&)> on_evicted;
};

class EvictingStore : public ArtifactStore {
 public:
  // `catalog` is that of `base` and outlives this store.
  EvictingStore(std::unique_ptr<ArtifactStore> base, Catalog* catalog, EvictingOptions options);
  ~EvictingStore() override;

  absl::StatusOr<EntryValue> Get(const EntryId& id) override { return base_->Get(id); }
  absl::Status Put(absl::Span<const Entry> batch) override;
  absl::Status Delete(absl::Span<const EntryId> ids) override { return base_->Delete(ids); }
  // Counts as a use of what is present.
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override;

  // What the thread does; one at a time. OK when there was nothing to do.
  absl::Status Sweep();

  uint64_t evicted() const { return evicted_.load(std::memory_order_relaxed); }
  // How the last sweep went.
  absl::Status last_sweep() const;

 private:
  void Run();
  uint64_t BytesOnDisk() const { return catalog_->Totals().bytes_on_disk; }
  absl::Status Evict(uint64_t live_bytes_wanted);
  bool SweepWanted() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return wanted_ || closing_.load(); }

  const std::unique_ptr<ArtifactStore> base_;
  Catalog* const catalog_;
  const EvictingOptions options_;

  absl::Mutex sweeping_;  // one sweep at a time
  // Shared by writers, exclusive while a sweep chooses and deletes: what it counts does not move.
  absl::Mutex gate_;
  std::atomic<uint64_t> evicted_{0};
  std::atomic<bool> closing_{false};

  mutable absl::Mutex mutex_;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status last_sweep_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kiln
