// Seals what goes down and checks what comes up: format version and SHA-256 over kind, key and bytes
// (entry_envelope.h). An entry that fails, or that the store below reports as damaged, is taken out,
// counted and answered as a miss, so that it is made anew. An object is also checked against its key
// (the digest of its raw bytes) before it is written. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "cache/artifact_store.h"

namespace kiln {

class VerifyingStore : public ArtifactStore {
 public:
  enum class Mode {
    kVerify,
    kDangerouslyBelieve,  // seals, but serves unchecked: the control of the bit-flip test
  };
  VerifyingStore(std::unique_ptr<ArtifactStore> base, Mode mode) : base_(std::move(base)), mode_(mode) {}

  absl::StatusOr<EntryValue> Get(const EntryId& id) override;
  absl::Status Put(absl::Span<const Entry> batch) override;
  absl::Status Delete(absl::Span<const EntryId> ids) override;
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override {
    return base_->FindMissing(ids);
  }

  // Reads and checks without taking anything out: OK, NOT_FOUND, DATA_LOSS, or the store's error.
  absl::Status Check(const EntryId& id) { return Read(id).status(); }

  uint64_t quarantined() const { return quarantined_.load(std::memory_order_relaxed); }

 private:
  absl::StatusOr<EntryValue> Read(const EntryId& id);
  absl::StatusOr<EntryValue> Quarantine(const EntryId& id);

  const std::unique_ptr<ArtifactStore> base_;
  const Mode mode_;
  // Shared by writers, exclusive for taking an entry out, so that a good entry that was put in the
  // meantime is never the one that goes.
  absl::Mutex writing_;
  std::atomic<uint64_t> quarantined_{0};
};

}  // namespace kiln
