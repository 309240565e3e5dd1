#include "server/flight/gang_decision.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {

std::optional<GangDecision::Question> GangDecision::Next() {
  if (!contradiction_.ok()) {
    answer_ = UnknownVerdict(contradiction_);
    return std::nullopt;
  }
  answer_ = table_->Find(name_, hints_);
  if (answer_.kind != GangAnswer::Kind::kOpen) return std::nullopt;
  if (seen_.has_value() && proposal_.empty()) return std::nullopt;
  if (++asked_ > kGangAsksMax) {
    answer_ =
        UnknownVerdict(absl::AbortedError("the shared tier says something else each time that it is asked"));
    return std::nullopt;
  }
  Question question;
  adds_ = false;
  if (proposal_.empty()) return question;
  absl::StatusOr<v1::GangVerdict> extended = Extended(table_->Held(name_), proposal_);
  if (extended.ok()) {
    question.wanted = *std::move(extended);
    question.seen = seen_.value_or("");
    adds_ = true;
  } else if (seen_.has_value()) {  // and not by what is held here alone
    answer_ = UnknownVerdict(extended.status());
    return std::nullopt;
  }
  return question;
}

void GangDecision::Told(std::string sealed, v1::GangVerdict verdict) {
  seen_ = std::move(sealed);
  contradiction_ = table_->Adopt(name_, std::move(verdict));
}

std::optional<absl::Duration> GangDecision::Untold(const absl::Status& why, MonotonicTime now,
                                                   MonotonicTime deadline) {
  if (now + absl::ToChronoNanoseconds(pause_) < deadline) {
    return std::exchange(pause_, std::min(pause_ * 2, kGangPauseMax));
  }
  answer_ = UnknownVerdict(absl::Status(
      why.code(), absl::StrCat("the shared tier does not say what the gang is served: ", why.message())));
  return std::nullopt;
}

}  // namespace kiln
