#include "tests/sim/tier_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster_checks.h"

namespace kiln::sim {
namespace {

constexpr milliseconds kLookupLimit(50);
constexpr seconds kWritePatience(30);
constexpr seconds kWritePauseMax(2);

}  // namespace

// ---- The link --------------------------------------------------------------------------------

void TierLink::At(microseconds delay, std::function<void()> what) {
  cluster_->At(delay, [life = life_, what = std::move(what)] {
    if (!life.expired()) what();
  });
}

void TierLink::NotTold(Kind kind, microseconds delay, const absl::Status& why,
                       const std::function<void(const absl::Status&)>& told) {
  if (cluster_->Plant(ClusterFault::kLostWaiter, kind == Kind::kLook ? 30 : 0)) return;
  At(delay, [this, kind, why, told] {
    host_->trouble = cluster_->clock.now;
    if (!absl::IsUnavailable(why)) {
      if (kind == Kind::kLook) looks_.Failed(cluster_->clock.now);
      if (kind == Kind::kVerdict) verdicts_.Failed(cluster_->clock.now);
    }
    told(why);
  });
}

void TierLink::Ask(Kind kind, std::function<void(Fate)> apply,
                   std::function<void(const absl::Status&)> told) {
  Draw& draw = cluster_->draw;
  const Breaker* const breaker = kind == Kind::kLook      ? &looks_
                                 : kind == Kind::kVerdict ? &verdicts_
                                                          : nullptr;
  if (breaker != nullptr && !breaker->Allows(cluster_->clock.now)) {
    NotTold(kind, microseconds(0), absl::UnavailableError("it was slow lately"), told);
    return;
  }
  const absl::Status late = absl::DeadlineExceededError("the shared tier did not answer in time");
  const bool known = host_->cut && draw.Chance(50);
  if (host_->cut) {
    apply(Fate::kCut);
    NotTold(kind, known ? microseconds(0) : kLookupLimit,
            known ? absl::UnavailableError("no connection") : late, told);
    return;
  }
  const microseconds there = draw.Upto(host_->slow), back = draw.Upto(host_->slow);
  const bool lost = draw.Chance(host_->lossy);
  // The daemon may end meanwhile: what it sent goes on, and what has ended is kept to the history's end.
  cluster_->At(there, [this, life = life_, kind, apply = std::move(apply), told = std::move(told), there,
                       back, lost, late] {
    if (life.expired()) {
      apply(Fate::kLost);
      return;
    }
    const bool cut = host_->cut;
    const bool slow = kind != Kind::kWrite && there + back > kLookupLimit;
    apply(cut ? Fate::kCut : lost || slow ? Fate::kLost : Fate::kTold);
    if (cut || lost || slow) {
      NotTold(kind, std::max(microseconds(0), microseconds(kLookupLimit) - there), late, told);
      return;
    }
    At(back, [this, kind, told] {
      if (kind == Kind::kLook) looks_.Succeeded();
      if (kind == Kind::kVerdict) verdicts_.Succeeded();
      told(absl::OkStatus());
    });
  });
}

// ---- Claims ----------------------------------------------------------------------------------

LinkClaims::LinkClaims(Cluster* cluster, Host* host, TierLink* link, uint64_t life)
    : cluster_(cluster), host_(host), link_(link), life_(life), table_([this] {
        return absl::StrCat(host_->number, ".", life_, ".", ++tokens_);
      }) {}

void LinkClaims::Claim(uint64_t id, const std::string& name, std::function<void(ClaimTable::Answer)> answer) {
  // Each question has the link's limit.
  table_.Claim(id, name, MonotonicTime::max(), std::move(answer), cluster_->clock.now);
  Run();
}

void LinkClaims::Release(uint64_t id) {
  table_.Release(id, cluster_->clock.now);
  Run();
}

void LinkClaims::Run() {
  if (asking_) return;
  const MonotonicTime now = cluster_->clock.now;
  auto due = std::make_shared<std::vector<ClaimTable::Question>>(table_.Due(now));
  if (due->empty()) {
    const MonotonicTime next = table_.Next();
    if (next >= wakes_) return;
    wakes_ = next;
    link_->At(std::chrono::duration_cast<microseconds>(next - now), [this] {
      wakes_ = MonotonicTime::max();
      Run();
    });
    return;
  }
  asking_ = true;
  auto yes = std::make_shared<std::vector<bool>>();
  link_->Ask(
      TierLink::Kind::kClaim,
      [this, due, yes](TierLink::Fate fate) {
        for (const ClaimTable::Question& question : *due) yes->push_back(AtTier(question, fate));
      },
      [this, due, yes](const absl::Status& status) {
        asking_ = false;
        for (size_t i = 0; i < due->size(); ++i) {
          ++cluster_->outcome.events;
          if (!status.ok() && cluster_->Plant(ClusterFault::kForgottenClaim, 100))
            forgotten_.insert((*due)[i].id);
          table_.Told((*due)[i], status.ok() ? std::optional<bool>((*yes)[i]) : std::nullopt,
                      cluster_->clock.now);
        }
        Run();
      });
}

bool LinkClaims::AtTier(const ClaimTable::Question& question, TierLink::Fate fate) {
  const std::string owner = cluster_->tier.Owner(question.name);
  const size_t kind = static_cast<size_t>(question.kind);
  cluster_->coverage->claims.Count(3 * kind + static_cast<size_t>(fate), owner.empty()             ? 0
                                                                         : owner == question.token ? 1
                                                                                                   : 2);
  if (fate == TierLink::Fate::kCut) return false;
  const bool takes = question.kind == ClaimTable::Question::Kind::kAcquire;
  if (!takes && forgotten_.contains(question.id)) return false;
  if (takes && !owner.empty() && cluster_->Plant(ClusterFault::kIgnoredClaim, 30)) {
    cluster_->checks->ClaimAsked(*host_, question, /*yes=*/true);
    return true;
  }
  if (question.kind == ClaimTable::Question::Kind::kRenew && cluster_->Plant(ClusterFault::kNotRenewed, 100))
    return true;
  if (question.kind == ClaimTable::Question::Kind::kRelease &&
      cluster_->Plant(ClusterFault::kNotReleased, 30))
    return true;
  const bool yes = cluster_->tier.Ask(question);
  cluster_->checks->ClaimAsked(*host_, question, yes);
  return yes;
}

// ---- Writes ----------------------------------------------------------------------------------

void LinkWriter::Post(std::function<void()> write, std::function<void()> ended) {
  queue_.push_back({std::move(write), std::move(ended), cluster_->clock.now + kWritePatience});
  if (queue_.size() == 1) Run();
}

void LinkWriter::Run() {
  if (queue_.front().write == nullptr) {
    link_->At(microseconds(0), [this] { End(); });
  } else {
    queue_.front().patience = cluster_->clock.now + kWritePatience;
    Try();
  }
}

void LinkWriter::Try() {
  link_->Ask(
      TierLink::Kind::kWrite,
      [write = queue_.front().write](TierLink::Fate fate) {
        if (fate != TierLink::Fate::kCut) write();
      },
      [this](const absl::Status& status) {
        Job& job = queue_.front();
        if (status.ok() || cluster_->clock.now >= job.patience) {
          End();
          return;
        }
        link_->At(job.pause, [this] { Try(); });
        job.pause = std::min(job.pause * 2, microseconds(kWritePauseMax));
      });
}

void LinkWriter::End() {
  const std::function<void()> ended = std::move(queue_.front().ended);
  queue_.pop_front();
  if (!queue_.empty()) Run();
  if (ended) ended();
}

}  // namespace kiln::sim
