// How what a daemon holds of one gang gets back into a tier that has lost it, step by step, as a decision
// does (gang_decision.h): the tier was flushed, or a server that lags has become its master. What stands
// there by now is taken where it is later, and never overwritten where it says something else. Where another
// daemon has put back less meanwhile, the rest is written behind it.
//
// Threads: one at a time; the table is everybody's. Limits: a read and kPutBackWritesMax writes.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/flight/gang_decision.h"
#include "server/flight/gang_table.h"
#include "server/flight/gang_verdict.h"

namespace kiln {

class GangPutBack {
 public:
  // The table outlives it.
  GangPutBack(GangTable* table, GangName name) : table_(table), name_(std::move(name)) {}

  // What to ask the tier next; nothing: it is over.
  std::optional<GangDecision::Question> Next();
  // As GangDecision's. Where the tier does not say, it is over until the next time.
  void Told(std::string sealed, v1::GangVerdict verdict);

  // ABORTED: the tier has another verdict than this daemon, whose members are told nothing from now on.
  const absl::Status& status() const { return status_; }
  // What was last to be written; its programs may have gone with it. Empty: nothing was.
  const v1::GangVerdict& written() const { return written_; }

 private:
  GangTable* const table_;
  const GangName name_;
  std::optional<std::string> seen_;
  v1::GangVerdict there_;
  v1::GangVerdict written_;
  int writes_ = 0;
  absl::Status status_;
};

}  // namespace kiln
