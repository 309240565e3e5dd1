// Tells the catalogue of every hit, so that eviction knows what is in use; on top of the memory tier,
// whose hits count as well. Thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "cache/artifact_store.h"

namespace kiln {

class UsesStore : public ArtifactStore {
 public:
  // `catalog` outlives this store.
  UsesStore(std::unique_ptr<ArtifactStore> base, Catalog* catalog)
      : base_(std::move(base)), catalog_(catalog) {}

  absl::StatusOr<EntryValue> Get(const EntryId& id) override {
    absl::StatusOr<EntryValue> value = base_->Get(id);
    if (value.ok()) catalog_->RecordUse(id);
    return value;
  }
  absl::Status Put(absl::Span<const Entry> batch) override { return base_->Put(batch); }
  absl::Status Delete(absl::Span<const EntryId> ids) override { return base_->Delete(ids); }
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override {
    return base_->FindMissing(ids);
  }

 private:
  const std::unique_ptr<ArtifactStore> base_;
  Catalog* const catalog_;
};

}  // namespace kiln
