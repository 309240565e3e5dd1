// What the gangs of this daemon's callers are served: decides for each member, so that equal hints get an
// equal variant, and nobody a program where another is told to fall back.
//
// A daemon by itself decides in memory. Where there is a shared tier, members may be at other daemons: what
// is held here is a part of what the tier has, or all of it, which answers most; what it does not answer is
// decided in the tier, within kVerdictPatience, and told as kUnknown where that does not answer. A variant
// that another daemon has told is brought from there, within kVariantPatience. What is held is put back into
// a tier that lost it, within kKeepEvery.
//
// Threads: thread-safe. No call blocks: what may is done by threads of its own, which also call `answer`
// then; else it is called before the call returns. Errors: answers of kUnknown.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/monotonic_time.h"
#include "server/flight/gang_decider.h"
#include "server/flight/gang_decision.h"
#include "server/flight/gang_keeper.h"
#include "server/flight/gang_table.h"
#include "server/flight/gang_variants.h"
#include "server/flight/gang_verdict.h"
#include "server/flight/known_key.h"
#include "server/flight/stored_keys.h"
#include "server/flight/tier_keys.h"
#include "server/schedule/clock.h"
#include "server/schedule/thread_executor.h"

namespace kiln {

inline constexpr absl::Duration kVerdictPatience = absl::Seconds(1);
inline constexpr absl::Duration kKeepEvery = absl::Seconds(2);

// What is known of a key for one member.
GangProposal ProposalOf(const KnownKey& known, const v1::Hints& hints, absl::Time now,
                        Outdated outdated = Outdated::kSkip);

class Gangs final : public GangDecider {
 public:
  // All outlive this. `tier` is nullptr where there is none. UNAVAILABLE where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<Gangs>> Create(const Clock* clock, StoredKeys* keys, TierKeys* tier);
  ~Gangs() override;

  // From memory alone: the variant of `known` that the member is to be answered with; nullptr: ask Decide.
  const KnownVariant* Find(const GangName& name, const v1::Hints& hints, const KnownKey& known);
  void Decide(const GangName& name, const v1::Hints& hints, const GangProposal& proposal,
              std::function<void(GangAnswer)> answer) override;
  // The variant by its id, of the namespaces too that are read besides. NOT_FOUND where it is no more; else
  // GangVariants' errors.
  void Variant(const GangName& name, const std::string& variant_id, VariantAnswer answer) override {
    variants_->Bring(name, variant_id, std::move(answer));
  }

 private:
  Gangs(const Clock* clock, StoredKeys* keys, TierKeys* tier) : keys_(keys), tier_(tier), table_(clock) {}

  // `life`: of what is written.
  absl::StatusOr<TierVerdicts::Value> Ask(const GangName& name, const GangDecision::Question& question,
                                          absl::Duration life);
  GangAnswer DecideInTier(const GangName& name, const v1::Hints& hints, const GangProposal& proposal,
                          MonotonicTime deadline);
  absl::StatusOr<KnownVariant> LookForVariant(const GangName& name, const std::string& variant_id);
  void BringFromTier(const GangName& name);
  void Keep() ABSL_LOCKS_EXCLUDED(mutex_);
  void KeepAll();
  std::optional<v1::GangVerdict> PutBack(const GangName& name, absl::Duration life);

  StoredKeys* const keys_;
  TierKeys* const tier_;
  GangTable table_;
  GangKeeper keeper_{&table_};  // the thread's that keeps

  absl::Mutex mutex_;
  MonotonicCondVar closed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;

  // These use all of the above, and who is answered by the second asks the first.
  std::unique_ptr<GangVariants> variants_;
  std::unique_ptr<ThreadExecutor> asks_;  // short; where there is a tier
  std::thread keeps_;                     // likewise
};

}  // namespace kiln
