#include "server/flight/gangs.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "server/flight/gang_put_back.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr size_t kThreads = kTierVerdictAskers - kVariantThreads;  // a connection each
constexpr size_t kKeptAtOnce = 256;

TierVerdicts::Name TierNameOf(const GangName& name) { return {name.ns, name.gang, name.compile_key}; }

}  // namespace

GangProposal ProposalOf(const KnownKey& known, const v1::Hints& hints, absl::Time now, Outdated outdated) {
  GangProposal proposal;
  if (const KnownVariant* variant = ChooseVariant(known, hints, outdated); variant != nullptr) {
    proposal.variant_id = variant->variant_id;
    proposal.guards = variant->guards;
  } else {
    proposal.refusal = RefusalOf(known, now);
  }
  return proposal;
}

absl::StatusOr<std::unique_ptr<Gangs>> Gangs::Create(const Clock* clock, StoredKeys* keys, TierKeys* tier) {
  std::unique_ptr<Gangs> made(new Gangs(clock, keys, tier));
  KILN_ASSIGN_OR_RETURN(made->variants_,
                        GangVariants::Create(
                            [gangs = made.get()](const GangName& name, const std::string& variant_id) {
                              return gangs->LookForVariant(name, variant_id);
                            },
                            /*may_come=*/tier != nullptr));
  if (tier == nullptr) return made;
  KILN_ASSIGN_OR_RETURN(made->asks_, ThreadExecutor::Create(kThreads));
  KILN_ASSIGN_OR_RETURN(made->keeps_, StartThread([gangs = made.get()] { gangs->Keep(); }));
  return made;
}

Gangs::~Gangs() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    closed_.SignalAll();
  }
  if (keeps_.joinable()) keeps_.join();
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

absl::StatusOr<TierVerdicts::Value> Gangs::Ask(const GangName& name, const GangDecision::Question& question,
                                               absl::Duration life) {
  TierVerdicts* const verdicts = tier_->verdicts();
  if (!question.wanted.has_value()) return verdicts->Read(TierNameOf(name));
  return verdicts->Replace(TierNameOf(name), question.seen, *question.wanted, life);
}

GangAnswer Gangs::DecideInTier(const GangName& name, const v1::Hints& hints, const GangProposal& proposal,
                               MonotonicTime deadline) {
  GangDecision decision(&table_, name, hints, proposal);
  while (const std::optional<GangDecision::Question> question = decision.Next()) {
    absl::StatusOr<TierVerdicts::Value> there = Ask(name, *question, kGangVerdictLife);
    if (there.ok()) {
      decision.Told(std::move(there->sealed), std::move(there->verdict));
      continue;
    }
    const std::optional<absl::Duration> pause = decision.Untold(there.status(), MonotonicNow(), deadline);
    if (!pause.has_value()) break;
    absl::SleepFor(*pause);
  }
  if (decision.adds())
    tier_->Renew(name.ns, {EntryKind::kManifest, ManifestEntryKey(name.compile_key, proposal.variant_id)});
  return decision.answer();
}

// ---- Variants --------------------------------------------------------------------------------

absl::StatusOr<KnownVariant> Gangs::LookForVariant(const GangName& name, const std::string& variant_id) {
  for (const bool brought : {false, true}) {
    if (brought && tier_ != nullptr) BringFromTier(name);
    const KnownKeyPtr known = name.request_key.empty()
                                  ? keys_->Load(name.ns, name.compile_key)
                                  : keys_->LoadReadable(name.ns, name.compile_key, name.request_key);
    if (const KnownVariant* variant = VariantById(*known, variant_id); variant != nullptr) return *variant;
  }
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
  const std::vector<GangTable::Listed> held = keeper_.Due();
  for (size_t begin = 0; begin < held.size(); begin += kKeptAtOnce) {
    std::vector<TierVerdicts::Life> lives;
    for (size_t i = begin; i < std::min(begin + kKeptAtOnce, held.size()); ++i)
      lives.push_back({TierNameOf(held[i].name), absl::FromChrono(held[i].until - MonotonicNow())});
    const std::vector<absl::StatusOr<std::string>> marks = tier_->verdicts()->Renew(lives);
    for (size_t i = 0; i < lives.size(); ++i) {
      if (!marks[i].ok()) continue;  // the next time
      const std::optional<GangKeeper::News> news = keeper_.Look(held[begin + i].name, *marks[i]);
      if (!news.has_value()) continue;
      const std::optional<v1::GangVerdict> written = PutBack(news->name, lives[i].left);
      if (!written.has_value()) return;
      keeper_.Seen(*news, *written);
    }
  }
}

// What was written; nothing where the tier does not say: the next time.
std::optional<v1::GangVerdict> Gangs::PutBack(const GangName& name, absl::Duration life) {
  GangPutBack put_back(&table_, name);
  bool told = true;
  while (const std::optional<GangDecision::Question> question = put_back.Next()) {
    absl::StatusOr<TierVerdicts::Value> there = Ask(name, *question, life);
    told = there.ok();
    if (!told) break;
    put_back.Told(std::move(there->sealed), std::move(there->verdict));
  }
  for (const v1::GangVerdict::Variant& variant : put_back.written().variants())
    tier_->Renew(name.ns, {EntryKind::kManifest, ManifestEntryKey(name.compile_key, variant.variant_id())});
  if (!put_back.status().ok())
    spdlog::warn("put a gang's verdict back into the shared tier: {}", put_back.status().ToString());
  return told ? std::optional(put_back.written()) : std::nullopt;
}

}  // namespace kiln
