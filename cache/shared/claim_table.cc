#include "cache/shared/claim_table.h"

#include <algorithm>

namespace kiln {
namespace {

constexpr absl::Duration kRenewEvery = absl::Milliseconds(2500);  // thrice in a claim's life
constexpr absl::Duration kPauseMin = absl::Milliseconds(5);

}  // namespace

void ClaimTable::Claim(uint64_t id, std::string name, MonotonicTime deadline,
                       std::function<void(Answer)> answer, MonotonicTime now) {
  if (const auto found = held_.find(id);
      found != held_.end() && found->second.ours && !found->second.released) {
    answer(Answer::kOurs);
    return;
  }
  Held held;
  held.name = std::move(name);
  held.token = new_token_();
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
  if (found == held_.end()) return;
  // One that is being asked for may be ours already.
  found->second.released = true;
  found->second.next = now;
}

void ClaimTable::ReleaseAll(MonotonicTime now) {
  for (const auto& [id, held] : held_) Release(id, now);
}

std::vector<ClaimTable::Question> ClaimTable::Due(MonotonicTime now) {
  absl::erase_if(held_, [now](const auto& entry) {
    const Held& held = entry.second;
    const bool late = !held.released && held.deadline <= now;
    if (late) held.answer(Answer::kNobodys);
    return late;
  });
  std::vector<Question> due;
  for (const auto& [id, held] : held_) {
    if (held.next > now) continue;
    const Question::Kind kind = held.released ? Question::Kind::kGiveBack
                                : held.ours   ? Question::Kind::kPutOff
                                              : Question::Kind::kTake;
    due.push_back({kind, id, held.name, held.token, held.deadline});
  }
  return due;
}

void ClaimTable::Told(const Question& question, std::optional<bool> yes, MonotonicTime now) {
  const auto held = held_.find(question.id);
  if (held == held_.end() || held->second.token != question.token) return;
  if (question.kind == Question::Kind::kGiveBack || !Take(&held->second, yes, now)) held_.erase(held);
}

bool ClaimTable::Take(Held* held, std::optional<bool> yes, MonotonicTime now) {
  held->deadline = MonotonicTime::max();
  if (held->released) {  // meanwhile; given back at once
    held->next = now;
    return true;
  }
  if (held->ours) {
    held->next = now + absl::ToChronoNanoseconds(kRenewEvery);
    return yes.value_or(true);  // another's: it is over
  }
  if (yes.value_or(false)) {
    held->ours = true;
    held->next = now + absl::ToChronoNanoseconds(kRenewEvery);
    held->answer(Answer::kOurs);
    return true;
  }
  if (!yes.has_value() || now >= held->patience) {
    held->answer(Answer::kNobodys);
    return false;
  }
  held->next = now + absl::ToChronoNanoseconds(held->pause);
  held->pause = std::min(held->pause * 2, kClaimPauseMax);
  return true;
}

MonotonicTime ClaimTable::Next() const {
  MonotonicTime next = MonotonicTime::max();
  for (const auto& [id, held] : held_) next = std::min(next, held.next);
  return next;
}

}  // namespace kiln
