// How one member's answer is found where verdicts are in a tier that daemons share, step by step: what to ask
// the tier next, by what is held here and what the tier said last. Whoever runs it does the asking.
//
// Threads: one at a time; the table is everybody's. Errors: answers of kUnknown. Limits: kGangAsksMax
// questions, of which those that are not answered wait for each other within the deadline.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"
#include "server/flight/gang_table.h"
#include "server/flight/gang_verdict.h"

namespace kiln {

inline constexpr absl::Duration kGangPauseMin = absl::Milliseconds(10);
inline constexpr absl::Duration kGangPauseMax = absl::Milliseconds(250);

class GangDecision {
 public:
  // The table outlives it.
  GangDecision(GangTable* table, GangName name, v1::Hints hints, GangProposal proposal)
      : table_(table), name_(std::move(name)), hints_(std::move(hints)), proposal_(std::move(proposal)) {}

  // What stands in the tier is to be read, or to be replaced by `wanted` where it is `seen`.
  struct Question {
    std::optional<v1::GangVerdict> wanted;
    std::string seen;
  };
  // Nothing: `answer` is the member's.
  std::optional<Question> Next();
  // What stands in the tier by now, and, read, the verdict that it is.
  void Told(std::string sealed, v1::GangVerdict verdict);
  // The tier did not say; whatever it has written comes back with the next question. How long to wait before
  // that; nothing: it is over, the deadline is too near, and the answer is kUnknown for `why`.
  std::optional<absl::Duration> Untold(const absl::Status& why, MonotonicTime now, MonotonicTime deadline);

  // Whether the answer is what was proposed, and the tier was asked to have it: others are told of it, and
  // have to find it.
  bool adds() const {
    return adds_ && !proposal_.variant_id.empty() && answer_.variant_id == proposal_.variant_id;
  }
  const GangAnswer& answer() const { return answer_; }

 private:
  GangTable* const table_;
  const GangName name_;
  const v1::Hints hints_;
  const GangProposal proposal_;
  GangAnswer answer_;
  std::optional<std::string> seen_;
  absl::Status contradiction_;
  int asked_ = 0;
  bool adds_ = false;  // the last question
  absl::Duration pause_ = kGangPauseMin;
};

}  // namespace kiln
