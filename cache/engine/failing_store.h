// Fails on demand, for drills and tests: a hook sees every call before the store below does and may
// answer it with an error. Thread-safe where the hook is.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cache/artifact_store.h"
#include "compiler/support/status_macros.h"

namespace kiln {

class FailingStore : public ArtifactStore {
 public:
  enum class Operation { kGet, kPut, kDelete, kFindMissing };
  using Hook = std::function<absl::Status(Operation)>;

  FailingStore(std::unique_ptr<ArtifactStore> base, Hook hook)
      : base_(std::move(base)), hook_(std::move(hook)) {}

  absl::StatusOr<EntryValue> Get(const EntryId& id) override {
    KILN_RETURN_IF_ERROR(hook_(Operation::kGet));
    return base_->Get(id);
  }
  absl::Status Put(absl::Span<const Entry> batch) override {
    KILN_RETURN_IF_ERROR(hook_(Operation::kPut));
    return base_->Put(batch);
  }
  absl::Status Delete(absl::Span<const EntryId> ids) override {
    KILN_RETURN_IF_ERROR(hook_(Operation::kDelete));
    return base_->Delete(ids);
  }
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override {
    KILN_RETURN_IF_ERROR(hook_(Operation::kFindMissing));
    return base_->FindMissing(ids);
  }

 private:
  const std::unique_ptr<ArtifactStore> base_;
  const Hook hook_;
};

}  // namespace kiln
