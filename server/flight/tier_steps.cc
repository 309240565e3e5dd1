#include "server/flight/tier_steps.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spdlog/spdlog.h"

namespace kiln {

TierFlights::Outside TierSteps::StepsOutside() {
  TierFlights::Outside outside;
  outside.look = [this](FlightId flight, const TierKeys::Name& key, MonotonicTime deadline) {
    if (!stopped_) Look(flight, key, deadline);
  };
  outside.claim = [this](FlightId flight, const TierKeys::Name& key, MonotonicTime deadline) {
    if (!stopped_) Claim(flight, key, deadline);
  };
  outside.release = [this](FlightId flight) { parts_.tier->ReleaseAfterWrites(flight); };
  outside.looked = [this](FlightId flight, KnownKeyPtr known, FlightTable::Where where) {
    parts_.table->Looked(flight, std::move(known), where);
  };
  return outside;
}

void TierSteps::Look(FlightId flight, const TierKeys::Name& key, MonotonicTime deadline) {
  parts_.threads->looks->Post([this, flight, key, deadline] {
    const MonotonicTime begin = parts_.clock->Now();
    absl::StatusOr<SharedTier::Found> found = parts_.tier->LookUp(key, deadline);
    if (found.ok()) {
      Take(flight, key, std::make_shared<SharedTier::Found>(*std::move(found)));
    } else {
      // The store may have it by now, as where a gang's member brought it.
      KnownKeyPtr known =
          absl::IsNotFound(found.status()) ? parts_.keys->Load(key.ns, key.compile_key) : nullptr;
      // A claim, and a look after it, take as long again each.
      const MonotonicTime now = parts_.clock->Now();
      absl::Status why = found.status();
      if (absl::IsNotFound(why) && now + 2 * (now - begin) > deadline)
        why = absl::DeadlineExceededError("the shared tier is too far away to claim a key there in time");
      parts_.threads->strand->Post([this, flight, why = std::move(why), known = std::move(known)]() mutable {
        flights_.Missed(flight, why, std::move(known));
      });
    }
  });
}

void TierSteps::Take(FlightId flight, const TierKeys::Name& key, std::shared_ptr<SharedTier::Found> found) {
  parts_.threads->transfers->Post([this, flight, key, found] {
    const absl::Status status = parts_.tier->Take(key.ns, std::move(*found));
    if (!status.ok()) spdlog::warn("take a key from the shared tier: {}", status.ToString());
    parts_.keys->Forget(key.compile_key);
    parts_.threads->strand->Post(
        [this, flight, known = parts_.keys->Load(key.ns, key.compile_key), whole = status.ok()]() mutable {
          flights_.Taken(flight, std::move(known), whole);
        });
  });
}

void TierSteps::Claim(FlightId flight, const TierKeys::Name& key, MonotonicTime deadline) {
  parts_.tier->Claim(flight, key, deadline, [this, flight](TierClaims::Answer answer) {
    parts_.threads->strand->Post([this, flight, answer] { flights_.Claimed(flight, answer); });
  });
}

}  // namespace kiln
