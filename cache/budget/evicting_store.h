// Evicts: keeps a store within its budgets of bytes on disk and of entries, and removes what nobody has used
// for too long. From nine tenths of the budget on, a background thread sweeps: it evicts roots in the order
// of eviction_plan.h, and with each what only it names, until the live bytes are at seven tenths; then the
// engine compacts. A sweep never evicts what a live manifest names, nor what is pinned, and of roots used
// within the grace time only damaged and expired ones. Where the store is so full that it refuses writes the
// grace time is a minute, long enough for whoever was given a manifest to fetch what it names. EvictTo, by an
// operator, takes fresh roots as well. A manifest that can't be read stays, but what it alone names goes;
// where many can't be, the disk is at fault and nothing goes.
//
// No call waits for a sweep: above eleven tenths Put requests one and fails with RESOURCE_EXHAUSTED at once,
// since writers share their threads with readers; so does a batch above half of the budget. A sweep reads all
// manifests beside the callers, at a lower priority, and takes entries out in small batches; what somebody
// counts on by then (holds.h), or used since, stays.
//
// What FindMissing does not name stays for a grace time, so that who asked can write a manifest that names
// it. A manifest that names an object which is neither here nor in its batch is ABORTED: compile again, with
// the object. It is not written, unless the object went with a database that this very write set aside: then
// it is not reported as durable, and is a miss. Thread-safe.
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
#include "cache/budget/eviction_plan.h"
#include "cache/holds.h"

namespace kiln {

struct EvictingOptions {
  uint64_t budget_bytes = 0;
  uint64_t entries_max = UINT64_MAX;
  int64_t unused_seconds_max = 0;  // roots go when nobody has used them for so long; 0: never
  int64_t grace_seconds = 600;
  int64_t pressed_grace_seconds = 60;  // instead, for what nobody holds, while writes are refused
  std::function<int64_t()> now_unix_seconds;
  // How a sweep reads a manifest, which only asks what it names; empty: the base's Get.
  std::function<absl::StatusOr<EntryValue>(const EntryId&)> read_manifest;
};

class EvictingStore : public ArtifactStore {
 public:
  // Told what has been evicted, after it has gone from `base`; from the sweep's thread.
  using Listener = std::function<void(absl::Span<const EntryId>)>;

  // `catalog` is that of `base` and outlives this store.
  // UNAVAILABLE where there can be no thread more.
  static absl::StatusOr<std::unique_ptr<EvictingStore>> Create(std::unique_ptr<ArtifactStore> base,
                                                               Catalog* catalog, EvictingOptions options);
  ~EvictingStore() override;

  absl::StatusOr<EntryValue> Get(const EntryId& id) override { return base_->Get(id); }
  absl::Status Put(absl::Span<const Entry> batch) override;
  absl::Status Delete(absl::Span<const EntryId> ids) override { return base_->Delete(ids); }
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override;

  // For tiers above that have to forget what is gone. They outlive the store.
  void AddListener(Listener listener) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whose entries are worth keeping, as in CatalogEntry.
  void SetCompiler(uint32_t compiler) { compiler_ = compiler; }
  // Entries that a flight counts on. Valid as long as this store.
  Holds& holds() { return holds_; }

  // What the thread does; one at a time. OK when there was nothing to do.
  absl::Status Sweep() ABSL_LOCKS_EXCLUDED(sweeping_, mutex_);
  // Makes room at once, however much there is, of fresh roots too. What these alone named counts as gone and
  // goes with the first sweep after its grace.
  absl::Status EvictTo(uint64_t live_bytes) ABSL_LOCKS_EXCLUDED(sweeping_, mutex_);

  uint64_t evicted() const { return counts_.evicted.load(std::memory_order_relaxed); }
  // Manifests that the last sweep could not read.
  uint64_t unread() const { return counts_.unread.load(std::memory_order_relaxed); }
  // How the last sweep went.
  absl::Status last_sweep() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  EvictingStore(std::unique_ptr<ArtifactStore> base, Catalog* catalog, EvictingOptions options);
  void Run();
  uint64_t BytesOnDisk() const { return catalog_->Totals().bytes_on_disk; }
  EvictionLimits Limits(const CatalogTotals& totals) const;
  bool AnyExpired(int64_t used_before) const;
  bool Refuses(uint64_t bytes_on_disk) const;  // a Put
  absl::Status CheckRoom();
  absl::Status CheckPresent(absl::Span<const EntryId> references);
  // The two below: under sweeping_.
  absl::Status Evict(const EvictionLimits& limits);
  absl::Status Gather(EvictionPlan* plan);
  // One batch of roots and what goes with them; false when there are no more.
  absl::StatusOr<bool> EvictSome(EvictionPlan* plan);
  absl::Status DeleteClaimed(absl::Span<const EntryId> ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(taking_out_);
  absl::Status Each(EntryKind kind, const std::function<absl::Status(CatalogEntry)>& visit) const;
  bool SweepWanted() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return wanted_ || closing_.load(); }

  const std::unique_ptr<ArtifactStore> base_;
  Catalog* const catalog_;
  const EvictingOptions options_;
  Holds holds_;
  std::atomic<uint32_t> compiler_{0};
  struct SweepWhen {
    // Bytes on disk from which on a Put asks for a sweep: nine tenths of the budget, and after a sweep that
    // much more than it left, since garbage that compaction could not remove would have every Put ask again.
    std::atomic<uint64_t> from_bytes{0};
    // When a refused Put asks again: what the last sweep had to leave may have become old enough.
    std::atomic<int64_t> again_at{0};
  };
  SweepWhen sweep_when_;

  absl::Mutex sweeping_ ABSL_ACQUIRED_BEFORE(taking_out_);  // one sweep at a time
  // From the first claim of a batch until it has gone. A writer of what is claimed waits for its end.
  absl::Mutex taking_out_;
  struct Counts {
    std::atomic<uint64_t> evicted{0};
    std::atomic<uint64_t> unread{0};
  };
  Counts counts_;
  std::atomic<bool> closing_{false};

  mutable absl::Mutex mutex_;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status last_sweep_ ABSL_GUARDED_BY(mutex_);
  std::vector<Listener> listeners_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // const after Create
};

}  // namespace kiln
