// A manifest or kernel record is a hit only if every object that it names is there; otherwise it is a
// miss, and recompiling it puts the objects back. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/artifact_store.h"

namespace kiln {

class CompletenessStore : public ArtifactStore {
 public:
  explicit CompletenessStore(std::unique_ptr<ArtifactStore> base) : base_(std::move(base)) {}

  absl::StatusOr<EntryValue> Get(const EntryId& id) override;
  absl::Status Put(absl::Span<const Entry> batch) override { return base_->Put(batch); }
  absl::Status Delete(absl::Span<const EntryId> ids) override { return base_->Delete(ids); }
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override {
    return base_->FindMissing(ids);
  }

  uint64_t incomplete() const { return incomplete_.load(std::memory_order_relaxed); }

 private:
  const std::unique_ptr<ArtifactStore> base_;
  std::atomic<uint64_t> incomplete_{0};
};

}  // namespace kiln
