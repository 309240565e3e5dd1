#include "server/flight/gang_put_back.h"

#include "server/server_limits.h"

namespace kiln {

std::optional<GangDecision::Question> GangPutBack::Next() {
  GangDecision::Question question;
  if (!seen_.has_value()) return question;
  if (!status_.ok() || writes_ == kPutBackWritesMax) return std::nullopt;
  v1::GangVerdict held = table_->Held(name_);
  if (IsEmpty(held) || Compare(held, there_) != GangAgreement::kSecondIsEarlier) return std::nullopt;
  ++writes_;
  written_ = held;
  question.wanted = std::move(held);
  question.seen = *seen_;
  return question;
}

void GangPutBack::Told(std::string sealed, v1::GangVerdict verdict) {
  seen_ = std::move(sealed);
  there_ = verdict;
  status_ = table_->Adopt(name_, std::move(verdict));
}

}  // namespace kiln
