// What one daemon of a simulated cluster has its upstream do: the real ForwardTable, and between it and the
// upstream's daemon what UpstreamFlights does with gRPC, over a link that can be cut. Threads: one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "server/flight/flight_table.h"
#include "server/flight/forward_table.h"
#include "tests/sim/cluster.h"
#include "tests/sim/tier_link.h"

namespace kiln::sim {

enum class ForwardInput {
  kForward,
  kPacked,
  kProgram,
  kVerdict,
  kFull,
  kLate,
  kBroken,
  kCancelled,
  kWaited,
  kDue,
  kTaken,
  kNotTaken,
  kStop,
};

struct SimQuestion;

class SimUpstream {
 public:
  struct Outside {
    std::function<void(FlightId, KnownKeyPtr, FlightTable::Where)> looked;
    std::function<void(TaskId, FlightId, FlightNext)> ended;
    std::function<MonotonicTime(FlightId)> deadline;  // the latest of its callers
  };
  // All outlive it. `farm`: whose daemon is the upstream; `link`: the daemon's own, for its time.
  SimUpstream(Cluster* cluster, Host* host, Host* farm, TierLink* link, Outside outside);

  void LookFurther(FlightId flight, const FlightRequest& request, const v1::Hints& hints, KnownKeyPtr known);
  // As UpstreamFlights': what the gang of a call is served, whatever is here.
  void LookUpForGang(const SimQuestion& question, std::function<void(const KnownKeyPtr&)> answer);
  void Forward(TaskId task, FlightId flight, FlightRequestPtr request);
  void Stop(FlightId flight);
  // Whether something is coming of a flight.
  bool Has(FlightId flight) const;
  bool empty() const { return requests_.empty(); }

 private:
  struct Call;
  using CallPtr = std::shared_ptr<Call>;
  struct Alarm {
    FlightId flight = 0;
    std::function<void()> rings;
  };
  void Give(ForwardInput input, FlightId flight, const std::function<void()>& call);
  ForwardTable::Outside TableOutside();
  using Told = std::function<void(KnownKeyPtr, FlightTable::Where)>;
  void Ask(const SimQuestion& question, const KnownKeyPtr& known, const Told& told);
  void WatchLookup(const SimQuestion& question, const KnownKeyPtr& known, const Told& told,
                   const std::shared_ptr<bool>& heard);
  void Away(const SimQuestion& question, const absl::Status& why, const KnownKeyPtr& known, const Told& told);
  void Begin(FlightId flight, ForwardTable::Turn turn, MonotonicTime deadline);
  void SetAlarm(FlightId flight, microseconds delay, std::function<void()> rings);
  void Ring(uint64_t alarm);
  void Compile(const CallPtr& call);
  void Upload(const CallPtr& call);
  void Watch(const CallPtr& call);
  void End(const CallPtr& call, ForwardedEnd end);
  void Take(FlightId flight, const ForwardedEnd& end);
  bool IsThere(const Call& call) const;

  Cluster* const cluster_;
  Host* const host_;
  Host* const farm_;
  TierLink* const link_;
  const Outside outside_;
  const bool compiles_here_;
  ForwardTable table_;
  std::map<FlightId, FlightRequestPtr> requests_;  // those of table_
  std::map<std::pair<FlightId, ForwardTable::Turn>, CallPtr> calls_;
  std::map<uint64_t, Alarm> alarms_;
  uint64_t last_alarm_ = 0;
  std::set<FlightId> looking_;
};

}  // namespace kiln::sim
