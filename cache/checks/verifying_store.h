// Seals what goes down and checks what comes up: format version and SHA-256 over kind, key and bytes
// (entry_envelope.h), and of the kinds that are signed the signature (cache/signatures.h). An entry that
// fails, or that the store below reports as damaged, is taken out, counted and answered as a miss, so that
// it is recompiled. What is written is checked as well: an object against its key (the digest of its raw
// bytes), a signature for whether it will count. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "cache/artifact_store.h"
#include "cache/signatures.h"

namespace kiln {

class VerifyingStore : public ArtifactStore {
 public:
  enum class Mode {
    kVerify,
    kDangerouslyBelieve,  // seals, but serves unchecked: the control of the bit-flip test
  };
  // `signatures`, which outlives the store, says whose entries count; null: everybody's, for tests of
  // storage.
  VerifyingStore(std::unique_ptr<ArtifactStore> base, Mode mode, const Signatures* signatures = nullptr)
      : base_(std::move(base)), mode_(mode), signatures_(signatures) {}

  absl::StatusOr<EntryValue> Get(const EntryId& id) override;
  absl::Status Put(absl::Span<const Entry> batch) override;
  absl::Status Delete(absl::Span<const EntryId> ids) override;
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override {
    return base_->FindMissing(ids);
  }

  // As Get, but whoever signed it: for a sweep, which only asks what an entry names.
  absl::StatusOr<EntryValue> GetWhole(const EntryId& id);

  // Reads and checks without taking anything out: OK, NOT_FOUND, DATA_LOSS for what a Get would take out, or
  // the store's error.
  absl::Status Check(const EntryId& id) { return Read(id, Checks::kAll).status(); }

  // Taken out: all, and those of them whose signature was none that counts.
  uint64_t quarantined() const { return quarantined_.load(std::memory_order_relaxed); }
  uint64_t refused_signatures() const { return refused_signatures_.load(std::memory_order_relaxed); }

 private:
  enum class Checks { kAll, kDigest };
  absl::StatusOr<EntryValue> Read(const EntryId& id, Checks checks);
  absl::Status CheckSignature(const EntryId& id, absl::string_view value) const;
  absl::StatusOr<EntryValue> Quarantine(const EntryId& id, Checks checks);

  const std::unique_ptr<ArtifactStore> base_;
  const Mode mode_;
  const Signatures* const signatures_;
  // Shared by writers, exclusive for taking an entry out, so that a good entry that was put in the
  // meantime is never the one that goes.
  absl::Mutex writing_;
  std::atomic<uint64_t> quarantined_{0};
  std::atomic<uint64_t> refused_signatures_{0};
};

}  // namespace kiln
