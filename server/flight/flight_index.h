// The flights of a daemon, by number, slot and job.
//
// A flight that is hidden can be joined and attached to no more, and is here until it is erased. One without
// a slot (a debug call's) is found by number and job alone.
//
// Ownership: it owns the flights; a pointer is good until that one's Erase. Threads: one at a time (the
// table's strand); `joinable` is told of each slot for those who may not wait for it. Limits: who adds bounds
// what is here.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kiln/v1/admin.pb.h"
#include "server/flight/flight.h"
#include "server/flight/joinable_keys.h"

namespace kiln {

class FlightIndex {
 public:
  // `joinable` may be nullptr; it outlives the index.
  explicit FlightIndex(JoinableKeys* joinable) : joinable_(joinable) {}

  // A number for a flight or a chore, in the order of arrival; never twice.
  FlightId NextNumber() { return ++last_; }
  // One that looks. An empty slot is one that nobody can name.
  Flight& Add(FlightRequest request, std::string slot, std::string job_id, MonotonicTime now);
  void Hide(const Flight& flight);   // nobody can join it any more
  void Erase(const Flight& flight);  // hides it too

  // nullptr: there is none.
  Flight* Find(FlightId id) const;
  Flight* OfSlot(const std::string& slot) const;
  Flight* OfJob(const std::string& job_id) const;
  const absl::flat_hash_map<FlightId, std::unique_ptr<Flight>>& all() const { return flights_; }
  // For people, the oldest first.
  std::vector<v1::JobInfo> Jobs(MonotonicTime now) const;

 private:
  JoinableKeys* const joinable_;
  absl::flat_hash_map<FlightId, std::unique_ptr<Flight>> flights_;
  absl::flat_hash_map<std::string, FlightId> by_slot_;  // those that can be joined
  absl::flat_hash_map<std::string, FlightId> by_job_;
  FlightId last_ = 0;
};

}  // namespace kiln
