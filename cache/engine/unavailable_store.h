// What stands in for an engine that can't be opened for a reason of the environment (no space, no
// permission): it holds nothing, and answers writes with that reason. Also its empty catalogue.
// Thread-safe.
#pragma once

#include <vector>

#include "cache/artifact_store.h"

namespace kiln {

class UnavailableStore : public ArtifactStore, public Catalog {
 public:
  // `reason` is not OK.
  explicit UnavailableStore(absl::Status reason) : reason_(std::move(reason)) {}

  absl::StatusOr<EntryValue> Get(const EntryId& id) override;
  absl::Status Put(absl::Span<const Entry> batch) override;
  absl::Status Delete(absl::Span<const EntryId> ids) override;
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override;

  absl::StatusOr<std::vector<CatalogEntry>> Scan(EntryKind kind, absl::string_view prefix, size_t limit,
                                                 absl::string_view after) const override {
    return std::vector<CatalogEntry>();
  }
  absl::StatusOr<CatalogEntry> Find(const EntryId& id) const override {
    return absl::NotFoundError("no such entry");
  }
  void RecordUse(const EntryId& id) override {}
  absl::Status SetPinned(const EntryId& id, bool pinned) override {
    return absl::NotFoundError("no such entry");
  }
  CatalogTotals Totals() const override { return {}; }
  void SetCompiler(uint32_t compiler) override {}
  absl::Status Reclaim(std::atomic<bool>* canceled) override { return absl::OkStatus(); }

 private:
  const absl::Status reason_;
};

}  // namespace kiln
