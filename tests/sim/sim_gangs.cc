#include "tests/sim/sim_gangs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/flight/gangs.h"
#include "tests/sim/cluster_checks.h"
#include "tests/sim/sim_stories.h"

namespace kiln::sim {
namespace {

constexpr size_t kSealBytes = 100;  // of namespace, key and signature
constexpr int kShortened = 3600;    // of a verdict's life, where that fault is planted

MonotonicTime AfterNow(const Cluster& cluster, absl::Duration duration) {
  return cluster.clock.now + absl::ToChronoMicroseconds(duration);
}

}  // namespace

std::string TierNameOf(const GangName& name) { return absl::StrCat(name.compile_key, " ", name.gang); }

std::string Sealed(const v1::GangVerdict& verdict) {
  return std::string(kSealBytes, 's') + verdict.SerializeAsString();
}

v1::GangVerdict VerdictIn(const std::string& sealed) {
  v1::GangVerdict verdict;
  if (!sealed.empty()) verdict.ParseFromString(sealed.substr(kSealBytes));
  return verdict;
}

struct SimGangs::Decision {
  GangName name;
  GangDecision decision;
  std::function<void(GangAnswer)> answer;
  MonotonicTime deadline;
};

struct SimGangs::Awaited {
  GangName name;
  std::string variant_id;
  VariantAnswer answer;
  MonotonicTime deadline;
  absl::Duration pause = kGangPauseMin;
};

struct SimGangs::Kept {
  GangKeeper::News news;
  GangPutBack put_back;
  absl::Duration life;
};

SimGangs::SimGangs(Cluster* cluster, Host* host, TierLink* link, Outside outside)
    : cluster_(cluster), host_(host), link_(link), outside_(std::move(outside)), table_(&host->clock) {
  link_->At(cluster_->draw.Upto(milliseconds(2000)), [this] { Keep(); });
}

std::map<std::string, MonotonicTime> SimGangs::Listed() {
  std::map<std::string, MonotonicTime> listed;
  for (const GangTable::Listed& held : table_.List()) listed[TierNameOf(held.name)] = held.until;
  return listed;
}

// ---- The tier --------------------------------------------------------------------------------

// What stands there, as this daemon sees it: nothing, the same, earlier, later, another.
void SimGangs::Count(size_t question, const GangName& name, TierLink::Fate fate) {
  const v1::GangVerdict held = table_.Held(name);
  const v1::GangVerdict there = VerdictIn(cluster_->tier.Verdict(TierNameOf(name)));
  size_t state = 0;
  if (!IsEmpty(there)) {
    switch (Compare(held, there)) {
      case GangAgreement::kSame: state = 1; break;
      case GangAgreement::kSecondIsEarlier: state = 2; break;
      case GangAgreement::kFirstIsEarlier: state = 3; break;
      case GangAgreement::kContradict: state = 4; break;
    }
  }
  // Those of which nothing was heard are together.
  const size_t input = fate == TierLink::Fate::kTold ? question : 4 + static_cast<size_t>(fate);
  cluster_->coverage->verdicts.Count(input, state);
}

std::string SimGangs::AskTier(const GangName& name, const GangDecision::Question& question,
                              absl::Duration life, bool puts_back, TierLink::Fate fate) {
  const std::string there = TierNameOf(name);
  const bool writes = question.wanted.has_value();
  Count(puts_back ? (writes ? 3 : 2) : (writes ? 1 : 0), name, fate);
  if (fate == TierLink::Fate::kCut) return "";
  if (!writes) return cluster_->tier.Read(there);
  const std::string wanted = Sealed(*question.wanted);
  if (question.wanted->has_refusal() && cluster_->Plant(ClusterFault::kLocalRefusal, 100)) return wanted;
  if (puts_back && cluster_->tier.Verdict(there) == question.seen) ++cluster_->outcome.put_back;
  if (cluster_->Plant(ClusterFault::kShortVerdict, 100)) life /= kShortened;
  const std::string stands = cluster_->tier.Replace(there, question.seen, wanted, life);
  cluster_->checks->VerdictAsked(name);
  return stands;
}

// ---- Decisions -------------------------------------------------------------------------------

void SimGangs::Decide(const GangName& name, const v1::Hints& hints, const GangProposal& proposal,
                      std::function<void(GangAnswer)> answer) {
  if (!proposal.refusal.ok()) cluster_->checks->Proposed(name, proposal.refusal);
  if (GangAnswer held = table_.Find(name, hints); held.kind != GangAnswer::Kind::kOpen) {
    cluster_->coverage->gangs.Count(static_cast<size_t>(held.kind), 0);
    answer(std::move(held));
    return;
  }
  if (cluster_->Plant(ClusterFault::kOwnList, 20)) {
    answer(table_.Decide(name, hints, proposal));
    return;
  }
  Step(std::make_shared<Decision>(Decision{name, GangDecision(&table_, name, hints, proposal),
                                           std::move(answer), AfterNow(*cluster_, kVerdictPatience)}));
}

void SimGangs::Step(const DecisionPtr& decision) {
  const std::optional<GangDecision::Question> question = decision->decision.Next();
  if (!question.has_value()) {
    Finish(decision);
    return;
  }
  auto stands = std::make_shared<std::string>();
  link_->Ask(
      TierLink::Kind::kVerdict,
      [this, decision, question = *question, stands](TierLink::Fate fate) {
        *stands = AskTier(decision->name, question, kGangVerdictLife, /*puts_back=*/false, fate);
        if (fate == TierLink::Fate::kTold) cluster_->stories->DecisionComes(host_);
      },
      [this, decision, stands](const absl::Status& status) {
        if (status.ok()) {
          decision->decision.Told(*stands, VerdictIn(*stands));
          Step(decision);
          return;
        }
        const std::optional<absl::Duration> pause =
            decision->decision.Untold(status, cluster_->clock.now, decision->deadline);
        if (pause.has_value()) {
          link_->At(absl::ToChronoMicroseconds(*pause), [this, decision] { Step(decision); });
        } else {
          Finish(decision);
        }
      });
}

void SimGangs::Finish(const DecisionPtr& decision) {
  const GangAnswer& answer = decision->decision.answer();
  cluster_->coverage->gangs.Count(static_cast<size_t>(answer.kind), host_->cut ? 2 : 1);
  if (decision->decision.adds()) outside_.renew(decision->name.compile_key, answer.variant_id);
  decision->answer(answer);
}

// ---- Variants --------------------------------------------------------------------------------

void SimGangs::Variant(const GangName& name, const std::string& variant_id, VariantAnswer answer) {
  auto awaited = std::make_shared<Awaited>(
      Awaited{name, variant_id, std::move(answer), AfterNow(*cluster_, kVariantPatience)});
  link_->At(microseconds(0), [this, awaited] { Await(awaited, /*brought=*/false); });
}

void SimGangs::Await(const std::shared_ptr<Awaited>& awaited, bool brought) {
  const KnownKeyPtr known = host_->disk.Known(awaited->name.compile_key);
  if (const KnownVariant* variant = VariantById(*known, awaited->variant_id); variant != nullptr) {
    awaited->answer(*variant);
    return;
  }
  if (!brought) {
    outside_.bring(awaited->name.compile_key, [this, awaited] { Await(awaited, /*brought=*/true); });
    return;
  }
  if (AfterNow(*cluster_, awaited->pause) >= awaited->deadline) {
    awaited->answer(absl::NotFoundError("the variant that the gang runs is not kept any more"));
    return;
  }
  link_->At(absl::ToChronoMicroseconds(awaited->pause), [this, awaited] { Await(awaited, false); });
  awaited->pause = std::min(awaited->pause * 2, kGangPauseMax);
}

// ---- Keeping ---------------------------------------------------------------------------------

void SimGangs::Keep() {
  if (cluster_->over) return;
  KeepAll();
}

void SimGangs::KeepAll() {
  const auto again = [this] { link_->At(absl::ToChronoMicroseconds(kKeepEvery), [this] { Keep(); }); };
  auto held = std::make_shared<std::vector<GangTable::Listed>>(keeper_.Due());
  if (held->empty() || cluster_->Plant(ClusterFault::kNotKept, 100)) {
    again();
    return;
  }
  auto marks = std::make_shared<std::vector<std::string>>();
  link_->Ask(
      TierLink::Kind::kVerdict,
      [this, held, marks](TierLink::Fate fate) {
        for (const GangTable::Listed& listed : *held) {
          Count(4, listed.name, fate);
          absl::Duration left = absl::FromChrono(listed.until - cluster_->clock.now);
          if (cluster_->Plant(ClusterFault::kShortVerdict, 100)) left /= kShortened;
          if (fate != TierLink::Fate::kCut)
            marks->push_back(cluster_->tier.Lengthen(TierNameOf(listed.name), left));
        }
      },
      [this, held, marks, again](const absl::Status& status) {
        again();
        for (size_t i = 0; status.ok() && i < held->size(); ++i) {
          const std::optional<GangKeeper::News> news = keeper_.Look((*held)[i].name, (*marks)[i]);
          if (!news.has_value() || cluster_->Plant(ClusterFault::kNotPutBack, 100)) continue;
          PutBack(std::make_shared<Kept>(Kept{*news, GangPutBack(&table_, news->name),
                                              absl::FromChrono((*held)[i].until - cluster_->clock.now)}));
        }
      });
}

void SimGangs::PutBack(const std::shared_ptr<Kept>& kept) {
  const std::optional<GangDecision::Question> question = kept->put_back.Next();
  if (!question.has_value()) {
    keeper_.Seen(kept->news, cluster_->Plant(ClusterFault::kSeenEarly, 100) ? v1::GangVerdict()
                                                                            : kept->put_back.written());
    if (!kept->put_back.status().ok()) ++cluster_->outcome.met;
    for (const v1::GangVerdict::Variant& variant : kept->put_back.written().variants())
      outside_.renew(kept->news.name.compile_key, variant.variant_id());
    return;
  }
  const microseconds late = cluster_->stories->PutsBack(host_, kept->news.name, *question);
  if (late == microseconds(0)) {
    AskToPutBack(kept, *question);
  } else {
    link_->At(late, [this, kept, question = *question] { AskToPutBack(kept, question); });
  }
}

void SimGangs::AskToPutBack(const std::shared_ptr<Kept>& kept, const GangDecision::Question& question) {
  auto stands = std::make_shared<std::string>();
  link_->Ask(
      TierLink::Kind::kVerdict,
      [this, kept, question, stands](TierLink::Fate fate) {
        *stands = AskTier(kept->news.name, question, kept->life, /*puts_back=*/true, fate);
      },
      [this, kept, stands](const absl::Status& status) {
        if (!status.ok()) return;  // the next time
        kept->put_back.Told(*stands, VerdictIn(*stands));
        PutBack(kept);
      });
}

}  // namespace kiln::sim
