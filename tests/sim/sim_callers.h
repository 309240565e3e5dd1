// Callers of a simulated cluster: each looks up, and where there is nothing has it compiled; comes back, at
// another host, when its daemon is gone or cannot be reached; and leaves when its time is over. Threads: one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "server/flight/flight_table.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sim_daemon.h"

namespace kiln::sim {

class SimCallers {
 public:
  // The cluster outlives them.
  explicit SimCallers(Cluster* cluster);
  ~SimCallers();

  void Arrive(SimQuestion question, Host* host);
  // Its daemon has just ended.
  void Broken(const Host& host);
  // Some of those that wait can't reach their daemon any more, which learns of it later.
  void CutOff();
  // All that wait for a flight leave. False: nobody does.
  bool LeaveFlight(const Host& host, FlightId flight);
  // Whether uploads of it have stalled; they go on.
  bool Stalls(const Host& host, FlightId flight) { return !StalledOf(host, flight).empty(); }
  void EndUploads(const Host& host, FlightId flight);

  size_t active() const;
  void CheckAtRest() const;

 private:
  struct Caller;
  struct Attempt;
  using AttemptPtr = std::shared_ptr<Attempt>;
  void Ask(Caller* caller);
  void Found(const AttemptPtr& attempt, const SimDaemon::Found& found);
  void Leave(Caller* caller, bool comes_back);
  void Told(Attempt* attempt, const v1::CompileEvent& event);
  void Answer(Attempt* attempt, const v1::Manifest& manifest, bool durable);
  void Refuse(Attempt* attempt, const absl::Status& refusal, bool no_verdict);
  void Upload(const AttemptPtr& attempt);
  std::vector<AttemptPtr> StalledOf(const Host& host, FlightId flight);
  void EndUpload(const AttemptPtr& attempt, int fails);
  void Ended(Attempt* attempt, const absl::Status& status);
  bool Reaches(const Attempt& attempt) const;

  Cluster* const cluster_;
  std::vector<std::unique_ptr<Caller>> callers_;
  std::vector<AttemptPtr> stalled_;  // whose uploads have
};

}  // namespace kiln::sim
