// Concurrent Gets of one key share one read of the store below. A write of a key detaches the reads in
// flight: a Get that starts after it reads again. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "cache/artifact_store.h"

namespace kiln {

class CoalescingStore : public ArtifactStore {
 public:
  explicit CoalescingStore(std::unique_ptr<ArtifactStore> base) : base_(std::move(base)) {}

  absl::StatusOr<EntryValue> Get(const EntryId& id) override;
  absl::Status Put(absl::Span<const Entry> batch) override;
  absl::Status Delete(absl::Span<const EntryId> ids) override;
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override {
    return base_->FindMissing(ids);
  }

  uint64_t shared() const { return shared_.load(std::memory_order_relaxed); }

 private:
  // Shared by the reader and those who wait: the last of them may outlive the map's entry.
  struct Read {
    bool done = false;
    absl::StatusOr<EntryValue> result = absl::UnknownError("unread");
  };

  void Detach(const EntryId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { reads_.erase(id); }

  const std::unique_ptr<ArtifactStore> base_;
  absl::Mutex mutex_;
  absl::flat_hash_map<EntryId, std::shared_ptr<Read>> reads_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> shared_{0};
};

}  // namespace kiln
