#include "cache/shared/claim_table.h"

#include <algorithm>
#include <utility>

namespace kiln {
namespace {

constexpr absl::Duration kRenewEvery = absl::Milliseconds(2500);  // thrice in a claim's life
constexpr absl::Duration kPauseMin = absl::Milliseconds(5);

}  // namespace

void ClaimTable::Held::Tell(Answer what) {
  if (const auto told = std::exchange(answer, nullptr); told != nullptr) told(what);
}

void ClaimTable::Held::Pause(MonotonicTime now) {
  next = now + absl::ToChronoNanoseconds(pause);
  pause = std::min(pause * 2, kClaimPauseMax);
}

void ClaimTable::Claim(uint64_t id, std::string name, MonotonicTime deadline,
                       std::function<void(Answer)> answer, MonotonicTime now) {
  const auto found = held_.find(id);
  const bool again = found != held_.end() && !found->second.released;
  if (again && found->second.ours) {
    answer(Answer::kOurs);
    return;
  }
  Held held;
  held.name = std::move(name);
  // By another token what may be ours would be another's.
  held.in_doubt = again && found->second.in_doubt;
  held.token = held.in_doubt ? found->second.token : new_token_();
  held.answer = std::move(answer);
  held.next = now;
  held.deadline = deadline;
  held.patience = now + absl::ToChronoNanoseconds(kClaimPatience);
  held.pause = kPauseMin;
  held_[id] = std::move(held);
}

std::optional<std::string> ClaimTable::Ours(uint64_t id) const {
  const auto found = held_.find(id);
  if (found == held_.end() || !found->second.ours) return std::nullopt;
  return found->second.name;
}

void ClaimTable::Release(uint64_t id, MonotonicTime now) {
  const auto found = held_.find(id);
  if (found == held_.end() || found->second.released) return;
  // One that is being asked for may be ours already.
  Held& held = found->second;
  held.answer = nullptr;
  held.released = true;
  held.next = now;
  held.patience = now + absl::ToChronoNanoseconds(kClaimLife);
  held.pause = kPauseMin;
}

void ClaimTable::ReleaseAll(MonotonicTime now) {
  for (const auto& [id, held] : held_) Release(id, now);
}

std::vector<ClaimTable::Question> ClaimTable::Due(MonotonicTime now) {
  absl::erase_if(held_, [now](auto& entry) {
    Held& held = entry.second;
    if (held.released || held.deadline > now) return false;
    held.Tell(Answer::kNobodys);
    held.deadline = MonotonicTime::max();
    return !held.in_doubt;
  });
  std::vector<Question> due;
  for (const auto& [id, held] : held_) {
    if (held.next > now) continue;
    const Question::Kind kind = held.released                ? Question::Kind::kRelease
                                : held.ours || held.in_doubt ? Question::Kind::kRenew
                                                             : Question::Kind::kAcquire;
    due.push_back({kind, id, held.name, held.token, held.deadline});
  }
  return due;
}

void ClaimTable::Told(const Question& question, std::optional<bool> yes, MonotonicTime now) {
  const auto held = held_.find(question.id);
  if (held == held_.end() || held->second.token != question.token) return;
  const bool over = question.kind == Question::Kind::kRelease ? IsGone(&held->second, yes, now)
                                                              : !Take(&held->second, yes, now);
  if (over) held_.erase(held);
}

void ClaimTable::Cut(const Question& question, MonotonicTime now) {
  const auto found = held_.find(question.id);
  if (found == held_.end() || found->second.token != question.token) return;
  found->second.in_doubt = !found->second.ours;
  found->second.next = now;
}

bool ClaimTable::Take(Held* held, std::optional<bool> yes, MonotonicTime now) {
  held->deadline = MonotonicTime::max();
  if (held->released) {  // meanwhile; released at once
    held->next = now;
    return true;
  }
  if (yes.has_value() && !*yes) return !held->ours && Await(held, now);
  if (yes.has_value()) held->ours = true;
  held->in_doubt = !held->ours;
  held->next = now + absl::ToChronoNanoseconds(kRenewEvery);
  held->Tell(held->ours ? Answer::kOurs : Answer::kNobodys);
  return true;
}

// It is another's.
bool ClaimTable::Await(Held* held, MonotonicTime now) {
  held->in_doubt = false;
  if (now >= held->patience) held->Tell(Answer::kNobodys);
  if (held->answer == nullptr) return false;
  held->Pause(now);
  return true;
}

// After its release; where the tier may not have received that it is sent again, until the claim has expired.
bool ClaimTable::IsGone(Held* held, std::optional<bool> yes, MonotonicTime now) {
  if (yes.has_value() || now >= held->patience) return true;
  held->Pause(now);
  return false;
}

MonotonicTime ClaimTable::Next() const {
  MonotonicTime next = MonotonicTime::max();
  for (const auto& [id, held] : held_) next = std::min(next, held.next);
  return next;
}

}  // namespace kiln
