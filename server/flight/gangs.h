// What the gangs of this daemon's callers are served: decides for each member, so that equal hints get an
// equal variant, and nobody a program where another is told to fall back. A daemon by itself decides in
// memory.
//
// Threads: thread-safe. No call blocks: what reads the disk is done by a thread of its own, which also calls
// `answer` then; else it is called before the call returns. Errors: answers of kUnknown.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/flight/gang_table.h"
#include "server/flight/gang_verdict.h"
#include "server/flight/known_key.h"
#include "server/flight/stored_keys.h"
#include "server/schedule/clock.h"
#include "server/schedule/thread_executor.h"

namespace kiln {

// The variant of this id; nullptr where there is none. Points into `known`.
const KnownVariant* VariantById(const KnownKey& known, const std::string& variant_id);

// What is known of a key for one member.
GangProposal ProposalOf(const KnownKey& known, const v1::Hints& hints, absl::Time now);

class Gangs {
 public:
  // All outlive this. UNAVAILABLE where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<Gangs>> Create(const Clock* clock, StoredKeys* keys);

  // From memory alone: the variant of `known` that the member is to be answered with; nullptr: ask Decide.
  const KnownVariant* Find(const GangName& name, const v1::Hints& hints, const KnownKey& known);
  // kOpen only where nothing is proposed.
  void Decide(const GangName& name, const v1::Hints& hints, const GangProposal& proposal,
              std::function<void(GangAnswer)> answer);
  // The variant by its id. NOT_FOUND where it is no more.
  using VariantAnswer = std::function<void(absl::StatusOr<KnownVariant>)>;
  void Variant(const GangName& name, const std::string& variant_id, VariantAnswer answer);

 private:
  Gangs(const Clock* clock, StoredKeys* keys) : keys_(keys), table_(clock) {}

  StoredKeys* const keys_;
  GangTable table_;
  std::unique_ptr<ThreadExecutor> asks_;  // last: it uses all of the above
};

}  // namespace kiln
