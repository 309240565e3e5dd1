// A fast store over a slow one that counts. Reads that the slow one answers are kept in the fast one;
// writes go to the slow one first and are acknowledged by it alone.
//
// When the slow store can't take a write (disk full, not writable), the batch is kept in the fast one
// all the same and the slow store's error is returned: what was compiled can be served until memory
// forgets it, and for a minute at least (refused_writes.h); the caller knows that it is not durable.
// Thread-safe. A stale value never enters the fast store: every write moves a version that a
// concurrent fill checks. A refused value is not kept where the slow store took another write meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache/artifact_store.h"
#include "cache/tiers/refused_writes.h"

namespace kiln {

class TieredStore : public ArtifactStore {
 public:
  TieredStore(std::unique_ptr<ArtifactStore> fast, std::unique_ptr<ArtifactStore> slow,
              RefusedWritesOptions refused = {})
      : refused_(std::move(refused)), fast_(std::move(fast)), slow_(std::move(slow)) {}

  absl::StatusOr<EntryValue> Get(const EntryId& id) override;
  absl::Status Put(absl::Span<const Entry> batch) override;
  absl::Status Delete(absl::Span<const EntryId> ids) override;
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override;

  // The slow store has lost these by itself.
  void Forget(absl::Span<const EntryId> ids);

  uint64_t fast_hits() const { return fast_hits_.load(std::memory_order_relaxed); }

 private:
  // A write increments its stripes' version at its start and at its end, and `taken` at its end where the
  // slow store took it: refused writes may overlap without invalidating each other.
  struct Versions {
    uint64_t version = 0;
    uint64_t taken = 0;
  };
  // Entries share a stripe by hash.
  struct Stripe {
    absl::Mutex mutex;
    Versions versions ABSL_GUARDED_BY(mutex);
  };
  static size_t StripeOf(const EntryId& id);
  // The stripes of some ids, each once, and what a write has moved each to.
  using StripeVersions = std::map<size_t, Versions>;
  void MoveVersion(const EntryId& id, StripeVersions* versions);

  static constexpr size_t kStripes = 64;

  std::array<Stripe, kStripes> stripes_;
  std::atomic<uint64_t> fast_hits_{0};
  RefusedWrites refused_;
  const std::unique_ptr<ArtifactStore> fast_;
  const std::unique_ptr<ArtifactStore> slow_;  // last: while it ends it may still call Forget
};

}  // namespace kiln
