// Between the daemon's own store and the shared tier: takes into the store what the tier has of a key, and
// offers the tier what is made here.
//
// Thread-safe. LookUp and Take block, each within the tier's limits; the others return at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/shared/shared_tier.h"
#include "cache/store.h"
#include "server/build/artifact.h"

namespace kiln {

class TierKeys {
 public:
  // Both outlive this.
  TierKeys(SharedTier* tier, Store* store) : tier_(tier), store_(store) {}

  absl::Duration lookup_limit() const { return tier_->lookup_limit(); }
  // When a look-up that begins now is over.
  MonotonicTime Deadline() const { return MonotonicAfter(lookup_limit()); }
  struct Name {
    std::string ns;
    std::string compile_key;
  };
  // What the tier has and the store lacks. NOT_FOUND: nothing.
  absl::StatusOr<SharedTier::Found> LookUp(const Name& key, MonotonicTime deadline);
  // Fetches what that names, and puts all of it into the store; then it is known as what was compiled here
  // is. Its kernels are that program's alone: a record of one would be signed by who made it.
  absl::Status Take(const std::string& ns, SharedTier::Found found);

  // As TierClaims'; a claim by this number ends with `Offer`, when the artifact is in the tier or never will
  // be, or with `ReleaseAfterWrites`, when what was offered before is.
  void Claim(uint64_t number, const Name& key, MonotonicTime deadline,
             std::function<void(TierClaims::Answer)> answer) {
    tier_->Claim(number, key.ns, key.compile_key, deadline, std::move(answer));
  }
  void Release(uint64_t number) { tier_->Release(number); }
  void ReleaseAfterWrites(uint64_t number) { tier_->ReleaseAfterWrites(number); }

  // As SharedTier's; blocks.
  absl::StatusOr<int64_t> CountCrash(const Name& key) { return tier_->CountCrash(key.ns, key.compile_key); }

  TierVerdicts* verdicts() { return tier_->verdicts(); }

  // After the store has it, or has refused it.
  void Offer(const std::shared_ptr<const Artifact>& artifact, uint64_t claim);
  // A manifest that the store has had for long is used: the tier keeps it, with all it names, or has it
  // again.
  void Renew(const std::string& ns, const EntryId& manifest);
  void OfferRefusal(const std::string& ns, const std::vector<Entry>& batch) {
    tier_->WriteRefusal(ns, batch);
  }

 private:
  absl::Status TakeWhatIsWhole(const std::string& ns, const SharedTier::Found& found, absl::Status lacking);

  SharedTier* const tier_;
  Store* const store_;
};

}  // namespace kiln
