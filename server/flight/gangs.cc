#include "server/flight/gangs.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "server/flight/gang_decision.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr size_t kThreads = kTierVerdictAskers / 2;  // of each kind, a connection each
constexpr absl::Duration kPauseMin = absl::Milliseconds(10);
constexpr absl::Duration kPauseMax = absl::Milliseconds(250);
constexpr size_t kKeptAtOnce = 256;

TierVerdicts::Name TierNameOf(const GangName& name) { return {name.ns, name.gang, name.compile_key}; }

// False where it would end too late.
bool Pause(absl::Duration* pause, MonotonicTime deadline) {
  if (MonotonicAfter(*pause) >= deadline) return false;
  absl::SleepFor(*pause);
  *pause = std::min(*pause * 2, kPauseMax);
  return true;
}

}  // namespace

GangProposal ProposalOf(const KnownKey& known, const v1::Hints& hints, absl::Time now) {
  GangProposal proposal;
  if (const KnownVariant* variant = ChooseVariant(known, hints); variant != nullptr) {
    proposal.variant_id = variant->variant_id;
    proposal.guards = variant->guards;
  } else {
    proposal.refusal = RefusalOf(known, now);
  }
  return proposal;
}

absl::StatusOr<std::unique_ptr<Gangs>> Gangs::Create(const Clock* clock, StoredKeys* keys, TierKeys* tier) {
  std::unique_ptr<Gangs> made(new Gangs(clock, keys, tier));
  KILN_ASSIGN_OR_RETURN(made->brings_, ThreadExecutor::Create(kThreads));
  if (tier == nullptr) return made;
  KILN_ASSIGN_OR_RETURN(made->asks_, ThreadExecutor::Create(kThreads));
  KILN_ASSIGN_OR_RETURN(made->keeper_, StartThread([gangs = made.get()] { gangs->Keep(); }));
  return made;
}

Gangs::~Gangs() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    closed_.SignalAll();
  }
  if (keeper_.joinable()) keeper_.join();
}

// ---- Decisions -------------------------------------------------------------------------------

const KnownVariant* Gangs::Find(const GangName& name, const v1::Hints& hints, const KnownKey& known) {
  GangAnswer answer = table_.Find(name, hints);
  if (answer.kind == GangAnswer::Kind::kOpen && tier_ == nullptr) {
    const KnownVariant* variant = ChooseVariant(known, hints);
    if (variant == nullptr) return nullptr;
    GangProposal proposal;
    proposal.variant_id = variant->variant_id;
    proposal.guards = variant->guards;
    answer = table_.Decide(name, hints, proposal);
  }
  if (answer.kind != GangAnswer::Kind::kVariant) return nullptr;
  return VariantById(known, answer.variant_id);
}

void Gangs::Decide(const GangName& name, const v1::Hints& hints, const GangProposal& proposal,
                   std::function<void(GangAnswer)> answer) {
  if (tier_ == nullptr) {
    answer(table_.Decide(name, hints, proposal));
    return;
  }
  if (GangAnswer held = table_.Find(name, hints); held.kind != GangAnswer::Kind::kOpen) {
    answer(std::move(held));
    return;
  }
  asks_->Post(
      [this, name, hints, proposal, answer = std::move(answer), deadline = MonotonicAfter(kVerdictPatience)] {
        answer(DecideInTier(name, hints, proposal, deadline));
      });
}

GangAnswer Gangs::DecideInTier(const GangName& name, const v1::Hints& hints, const GangProposal& proposal,
                               MonotonicTime deadline) {
  GangDecision decision(&table_, name, hints, proposal);
  absl::Duration pause = kPauseMin;
  bool replaced = false;
  while (const std::optional<GangDecision::Question> question = decision.Next()) {
    absl::StatusOr<TierVerdicts::Value> there =
        question->wanted.has_value() ? tier_->verdicts()->Replace(TierNameOf(name), question->seen,
                                                                  *question->wanted, kGangVerdictLife)
                                     : tier_->verdicts()->Read(TierNameOf(name));
    replaced = question->wanted.has_value();
    if (there.ok()) {
      decision.Told(std::move(there->sealed), std::move(there->verdict));
    } else if (!Pause(&pause, deadline)) {  // else whatever was written comes back with the next question
      return UnknownVerdict(absl::Status(
          there.status().code(),
          absl::StrCat("the shared tier does not say what the gang is served: ", there.status().message())));
    }
  }
  // Others are told of it, and have to find it.
  if (replaced && !proposal.variant_id.empty() && decision.answer().variant_id == proposal.variant_id)
    tier_->Renew(name.ns, {EntryKind::kManifest, ManifestEntryKey(name.compile_key, proposal.variant_id)});
  return decision.answer();
}

// ---- Variants --------------------------------------------------------------------------------

void Gangs::Variant(const GangName& name, const std::string& variant_id, VariantAnswer answer) {
  brings_->Post(
      [this, name, variant_id, answer = std::move(answer), deadline = MonotonicAfter(kVariantPatience)] {
        answer(AwaitVariant(name, variant_id, deadline));
      });
}

absl::StatusOr<KnownVariant> Gangs::AwaitVariant(const GangName& name, const std::string& variant_id,
                                                 MonotonicTime deadline) {
  absl::Duration pause = kPauseMin;
  do {
    for (const bool brought : {false, true}) {
      if (brought && tier_ != nullptr) BringFromTier(name);
      const KnownKeyPtr known = keys_->Load(name.ns, name.compile_key);
      if (const KnownVariant* variant = VariantById(*known, variant_id); variant != nullptr) return *variant;
    }
  } while (tier_ != nullptr && Pause(&pause, deadline));
  return absl::NotFoundError("the variant that the gang runs is not kept any more");
}

// Whatever the tier has of the key; nothing is no error.
void Gangs::BringFromTier(const GangName& name) {
  absl::StatusOr<SharedTier::Found> found = tier_->LookUp({name.ns, name.compile_key}, tier_->Deadline());
  if (!found.ok()) return;
  if (const absl::Status taken = tier_->Take(name.ns, *std::move(found)); !taken.ok()) {
    spdlog::warn("take a gang's variant from the shared tier: {}", taken.ToString());
  }
  keys_->Forget(name.compile_key);
}

// ---- Keeping ---------------------------------------------------------------------------------

void Gangs::Keep() {
  while (true) {
    {
      const MonotonicTime next = MonotonicAfter(kKeepEvery);
      absl::MutexLock lock(&mutex_);
      while (!closing_ && MonotonicNow() < next) closed_.WaitUntil(&mutex_, next);
      if (closing_) return;
    }
    KeepAll();
  }
}

void Gangs::KeepAll() {
  const std::vector<GangTable::Listed> held = table_.List();
  for (size_t begin = 0; begin < held.size(); begin += kKeptAtOnce) {
    std::vector<TierVerdicts::Life> lives;
    for (size_t i = begin; i < std::min(begin + kKeptAtOnce, held.size()); ++i)
      lives.push_back({TierNameOf(held[i].name), absl::FromChrono(held[i].until - MonotonicNow())});
    const absl::StatusOr<std::vector<size_t>> there = tier_->verdicts()->Renew(lives);
    if (!there.ok()) return;  // the next time
    for (size_t i = 0; i < lives.size(); ++i) {
      const size_t here = tier_->verdicts()->SealedBytes(lives[i].name, table_.Held(held[begin + i].name));
      if ((*there)[i] + TierVerdicts::kSealedSlack < here) PutBack(held[begin + i].name, lives[i].left);
    }
  }
}

// The tier was flushed, or a server that lags has become its master: it has less than was told.
void Gangs::PutBack(const GangName& name, absl::Duration life) {
  const TierVerdicts::Name there = TierNameOf(name);
  absl::StatusOr<TierVerdicts::Value> stands = tier_->verdicts()->Read(there);
  absl::Status adopted = stands.status();
  if (stands.ok()) adopted = table_.Adopt(name, stands->verdict);
  const v1::GangVerdict held = table_.Held(name);
  if (adopted.ok() && !IsEmpty(held) && Compare(held, stands->verdict) == GangAgreement::kSecondIsEarlier) {
    const std::string seen = std::move(stands->sealed);
    stands = tier_->verdicts()->Replace(there, seen, held, life);
    adopted = stands.status();
    if (stands.ok()) adopted = table_.Adopt(name, std::move(stands->verdict));
    // The programs may have gone with it.
    for (const v1::GangVerdict::Variant& variant : held.variants())
      tier_->Renew(name.ns, {EntryKind::kManifest, ManifestEntryKey(name.compile_key, variant.variant_id())});
  }
  // The tier's trouble is for the next time.
  if (stands.ok() && !adopted.ok())
    spdlog::warn("put a gang's verdict back into the shared tier: {}", adopted.ToString());
}

}  // namespace kiln
