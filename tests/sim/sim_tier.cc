#include "tests/sim/sim_tier.h"

#include <algorithm>

namespace kiln::sim {

// Empty: there is none, or it has ended.
std::string SimTier::Get(Endings* endings, const std::string& name) {
  const auto found = endings->find(name);
  if (found == endings->end()) return "";
  if (found->second.until > clock_->now) return found->second.value;
  endings->erase(found);
  return "";
}

bool SimTier::Ask(const ClaimTable::Question& question) {
  const std::string owner = Owner(question.name);
  switch (question.kind) {
    case ClaimTable::Question::Kind::kAcquire:
      if (!owner.empty()) return false;
      break;
    case ClaimTable::Question::Kind::kRenew:
      if (!owner.empty() && owner != question.token && !blind) return false;
      break;
    case ClaimTable::Question::Kind::kRelease:
      return (owner == question.token || blind) && data_.claims.erase(question.name) > 0;
  }
  data_.claims[question.name] = {question.token, After(kClaimLife)};
  return true;
}

std::string SimTier::Read(const std::string& name) { return Verdict(name); }

std::string SimTier::Replace(const std::string& name, const std::string& seen, const std::string& wanted,
                             absl::Duration life) {
  std::string there = Verdict(name);
  if (there != seen) return there;
  data_.verdicts[name] = {wanted, std::max(EndOfVerdict(name), After(life))};
  return wanted;
}

std::string SimTier::Lengthen(const std::string& name, absl::Duration left) {
  std::string there = Verdict(name);
  if (there.empty()) return there;
  Ending& ending = data_.verdicts.at(name);
  ending.until = std::max(ending.until, After(left));
  return there;
}

MonotonicTime SimTier::EndOfVerdict(const std::string& name) const {
  const auto found = data_.verdicts.find(name);
  return found == data_.verdicts.end() ? MonotonicTime::min() : found->second.until;
}

MonotonicTime SimTier::EndOfClaim(const std::string& name) const {
  const auto found = data_.claims.find(name);
  return found == data_.claims.end() ? MonotonicTime::min() : found->second.until;
}

}  // namespace kiln::sim
