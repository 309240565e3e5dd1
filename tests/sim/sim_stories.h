// Troubles that come just as something is on its way, which seeds alone hardly ever draw. Each is planned for
// a time that is drawn, and happens once, as soon as there is what it takes. Threads: one.
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <utility>

#include "server/flight/flight_table.h"
#include "server/flight/gang_decision.h"
#include "server/flight/gang_table.h"
#include "server/flight/gang_verdict.h"
#include "tests/sim/cluster.h"

namespace kiln::sim {

class SimStories {
 public:
  enum class Kind {
    kLeftAsOurs,      // all callers of a flight leave while it is told that the claim is its own
    kLeftAsNobodys,   // or that the tier does not say
    kLeftAsAway,      // or that its upstream is away
    kLeftAsTaken,     // or while what the upstream made is fetched, and is gone
    kCutAsForwarded,  // a link is cut while a flight is forwarded of which an upload has stalled
    kCutAsDecided,    // a link is cut while the tier's word on a gang is on its way back
    kCutAsPutBack,    // while the tier has less of a verdict than who is about to put it back
    kLostAgain,       // the tier loses what is put back, and has as little again
    kOvertaken,       // who puts a verdict back comes after a member who has got more of it there
    kRepeated,        // or as much
    kForestalled,     // or another; and before that, members there ask for more than it holds
  };
  static constexpr size_t kKinds = 11;

  // Whom they happen to. False: not to these.
  struct Outside {
    std::function<void(Host*)> cut;
    std::function<void()> lose;  // what the tier gets from now on
    std::function<bool(const Host&, FlightId)> leave;
    std::function<bool(const Host&, FlightId)> stalls;
    std::function<void(const Host&, FlightId)> upload;          // what stalls
    std::function<bool(Host*, const GangName&, int size)> ask;  // as a member
    std::function<void(Host*)> crowd;                           // by some who come there
  };
  // The cluster outlives it.
  explicit SimStories(Cluster* cluster) : cluster_(cluster) {}

  void Begin(Outside outside) { outside_ = std::move(outside); }
  void Plan(Kind kind) { planned_.insert(kind); }

  // ---- What is on its way ----
  // A flight goes to another state, and its graph may be here by now.
  void GoesOn(const Host& host, FlightId flight) { outside_.upload(host, flight); }
  void Forwards(Host* host, FlightId flight);
  // Whether its callers leave.
  bool AnswerComes(Kind as, const Host& host, FlightId flight);
  void DecisionComes(Host* host);
  // How long a daemon that has looked takes until it asks that.
  microseconds PutsBack(Host* host, const GangName& name, const GangDecision::Question& question);

 private:
  // False: it is not planned.
  bool Happens(Kind kind) { return planned_.erase(kind) > 0; }
  // Or there is not what it takes.
  bool Play(Kind kind, const std::function<bool()>& story);
  bool Forestall(const Host& host, const GangName& name, const v1::GangVerdict& wanted, GangAgreement with);
  bool Adds(Host* host, const GangName& name, const v1::GangVerdict& to, GangAgreement with);
  bool Reaches(const Host& host, const Host& other) const;

  Cluster* const cluster_;
  Outside outside_;
  std::set<Kind> planned_;
};

}  // namespace kiln::sim
