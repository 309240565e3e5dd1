// Answers look-ups: what is known of a request's key, without starting anything.
//
//   Find: a hit, or a miss that is certain, from memory, on the caller's thread
//   Lookup: with the store, on a thread of the disk's; for a gang's member by its verdict, here or upstream
//
// A miss names the running flight that the caller would join. Each answer is counted as its caller's.
//
// Thread-safe. Errors are answers: a refusal of the compiler, or of a gang's verdict.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kiln/v1/compile.pb.h"
#include "server/flight/flight_request.h"
#include "server/flight/gangs.h"
#include "server/flight/joinable_keys.h"
#include "server/flight/known_key.h"
#include "server/flight/stored_keys.h"
#include "server/flight/tier_keys.h"
#include "server/flight/upstream_flights.h"
#include "server/observe/stats.h"
#include "server/schedule/clock.h"
#include "server/schedule/executor.h"

namespace kiln {

class Lookups {
 public:
  // The job of the flight in a slot (flight_request.h), empty where there is none: told on another thread.
  using JobOf = std::function<void(const std::string& slot, std::function<void(std::string)>)>;
  // All but the last two outlive it.
  struct Parts {
    const Clock* clock;
    Stats* stats;
    StoredKeys* keys;
    TierKeys* tier;             // null: none
    UpstreamFlights* upstream;  // null: none
    Gangs* gangs;
    const JoinableKeys* joinable;
    Executor* disk;
    std::string fingerprint;  // of this daemon's compiler
    JobOf job_of;
  };
  explicit Lookups(Parts parts) : parts_(std::move(parts)) {}

  // What a request is compiled under here.
  std::string KeyOf(const std::string& ns, const std::string& request_key) const;

  struct Question {
    std::string request_key;
    v1::Hints hints;
    Caller caller;
    v1::Gang gang;                  // the caller's; without an id: it is in none
    std::vector<std::string> hops;  // daemons that it has passed
    bool may_compile = true;        // by the caller's role; else what is outdated is a hit

    Outdated outdated() const { return may_compile ? Outdated::kSkip : Outdated::kTake; }
  };
  // The reply, serialized; nullptr: ask Lookup.
  std::shared_ptr<const std::string> Find(const Question& question);
  // `answer` is called once, on another thread, with a serialized LookupReply.
  using Answer = std::function<void(std::shared_ptr<const std::string>)>;
  void Lookup(Question question, Answer answer);

 private:
  // What a request may be stored under: as the upstream's compiler makes it, then as this one's. A hit makes
  // one, and no room for it.
  using Keys = absl::InlinedVector<std::string, 2>;
  Keys KeysOf(const std::string& ns, const std::string& request_key) const;

  std::shared_ptr<const std::string> FindForGang(const Question& question);
  void LookupHere(const Question& question, const Answer& answer);
  void CountHit(const KnownVariant& variant, const Caller& caller);
  std::shared_ptr<const std::string> CountedHit(const KnownVariant& variant, const Caller& caller);
  // `compile_key` is the request's in the caller's own namespace.
  void AnswerHit(const KnownVariant& variant, const std::string& compile_key, const Caller& caller,
                 const Answer& answer);
  // `slot`: of the flight that its caller would join.
  void AnswerMiss(const std::string& compile_key, const std::string& slot, const Caller& caller,
                  const Answer& answer);
  void AnswerGang(const GangName& name, KnownKeyPtr known, const Question& question, const Answer& answer);
  void AnswerGangByUpstream(Question question, Answer answer);

  const Parts parts_;
};

}  // namespace kiln
