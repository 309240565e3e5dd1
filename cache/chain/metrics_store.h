// Counts what passes, by kind. Thread-safe; the counts are read without a lock and may be a call apart.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/artifact_store.h"

namespace kiln {

class MetricsStore : public ArtifactStore {
 public:
  struct Counts {
    uint64_t gets = 0;
    uint64_t hits = 0;
    uint64_t errors = 0;  // neither hit nor miss
    uint64_t puts = 0;    // entries of batches that succeeded
    uint64_t deletes = 0;
    uint64_t bytes_read = 0;
    uint64_t bytes_written = 0;
  };

  explicit MetricsStore(std::unique_ptr<ArtifactStore> base) : base_(std::move(base)) {}

  absl::StatusOr<EntryValue> Get(const EntryId& id) override;
  absl::Status Put(absl::Span<const Entry> batch) override;
  absl::Status Delete(absl::Span<const EntryId> ids) override;
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override {
    return base_->FindMissing(ids);
  }

  Counts counts(EntryKind kind) const;
  Counts total() const;
  uint64_t batches_failed() const { return batches_failed_.load(std::memory_order_relaxed); }

 private:
  struct Counters {
    std::atomic<uint64_t> gets{0}, hits{0}, errors{0}, puts{0}, deletes{0}, bytes_read{0}, bytes_written{0};
  };

  const std::unique_ptr<ArtifactStore> base_;
  std::array<Counters, kEntryKinds> counters_;
  std::atomic<uint64_t> batches_failed_{0};
};

}  // namespace kiln
