#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/flight/refusals.h"
#include "tests/sim/flight_world.h"

namespace kiln::sim {

// ---- What must hold --------------------------------------------------------------------------

// Somebody has been asked, lately unless there is nobody else.
bool World::UploadIsComing(FlightId flight) {
  const auto has = [&](bool asked) {
    return std::any_of(active_.begin(), active_.end(), [&](const SimCaller* caller) {
      return !caller->attached && caller->asked == asked && table_->FlightOfCall(caller->id) == flight;
    });
  };
  return has(true) &&
         (!has(false) || clock_.now - kTimerLate <= last_asked_[flight] + options_.upload_patience);
}

bool World::HasSomethingComing(FlightId flight) {
  switch (table_->StateOfFlight(flight)) {
    case State::kLooking: return looking_.contains(flight);
    case State::kQueued: return AtWork(/*gpu=*/false) >= options_.tasks.workers || !MayBegin();
    case State::kRunning: return compiles_.contains(flight) && compiles_.at(flight).at_work > 0;
    case State::kWaiting:
      return compiles_.at(flight).at_work == 0 &&
             (AtWork(/*gpu=*/false) >= options_.tasks.workers || AtWork(/*gpu=*/true) >= options_.tasks.gpus);
    case State::kStoring: return storing_.contains(flight);
    case State::kUploading: return UploadIsComing(flight);
    case State::kNone:
    case State::kDying: return false;
  }
  return false;
}

void World::CheckRefusal(const SimCaller& caller, const absl::Status& status) {
  if (absl::StrContains(status.message(), "longer")) {
    ++outcome_.refused_early;
    if (caller.deadline == MonotonicTime::max()) Fail("a caller is refused that would wait for ever");
    if (table_->tasks().waiting_for_workers() == 0) Fail("a caller is refused for a queue that is empty");
    if (!PushbackOf(status).has_value()) Fail("a refusal does not say when to come again");
    return;
  }
  const bool places = table_->places() >= options_.tasks.workers + options_.queue_max;
  if (!places && table_->graphs_bytes() + kBytesMax <= options_.graphs_bytes_max)
    Fail("a caller is refused though there is a place");
  if (!PushbackOf(status).has_value()) Fail("a refusal does not say when to come again");
  // Flights that hold a place, and those of them that could give it to another tenant.
  std::set<FlightId> placed = Placed(), waiting;
  for (const SimCaller* other : active_) {
    const FlightId flight = table_->FlightOfCall(other->id);
    const State state = table_->StateOfFlight(flight);
    if (state == State::kQueued || state == State::kUploading || state == State::kWaiting)
      waiting.insert(flight);
  }
  const auto weight = [places](const std::string& key) { return places ? 1 : BytesOf(key); };
  std::map<std::string, uint64_t> held;
  std::set<std::string> could_give;
  placed.insert(waiting.begin(), waiting.end());
  for (const FlightId flight : placed) {
    held[TenantOf(keys_of_flights_[flight])] +=
        weight(keys_of_flights_[flight]) + (places ? 0 : held_bytes_[flight]);
  }
  for (const FlightId flight : waiting) could_give.insert(TenantOf(keys_of_flights_[flight]));
  for (const SimCaller* unpacked : unpacking_) {
    if (!places && IsCharged(*unpacked)) held[TenantOf(unpacked->key)] += kUploadBytes;
  }
  for (const std::string& tenant : could_give) {
    if (held[tenant] > held[TenantOf(caller.key)] + weight(caller.key))
      Fail("a tenant is refused for one that holds more places or bytes");
  }
}

void World::CheckCall(const SimCaller& caller) {
  const FlightId flight = table_->FlightOfCall(caller.id);
  if (caller.ended || caller.cancelled) {
    if (flight != 0) Fail(absl::StrCat("caller ", caller.id, " is gone, and still waits"));
    return;
  }
  if (caller.deadline < clock_.now - kTimerLate)
    Fail(absl::StrCat("caller ", caller.id, " waits beyond its deadline"));
  if (!HasSomethingComing(flight)) {
    Fail(absl::StrCat("caller ", caller.id, " waits for the dead: a flight that is ",
                      FlightStateName(table_->StateOfFlight(flight))));
  }
}

// Who works is what the table believes, and nobody idles while there is something to do.
void World::CheckSlots() {
  const TaskQueue& tasks = table_->tasks();
  const size_t workers = AtWork(/*gpu=*/false), gpus = AtWork(/*gpu=*/true);
  if (workers > options_.tasks.workers || gpus > options_.tasks.gpus) Fail("more work than there are slots");
  if (workers < options_.tasks.workers && tasks.waiting_for_workers() > (MayBegin() ? 0 : table_->queued()))
    Fail("a worker idles while a task waits for one");
  if (gpus < options_.tasks.gpus && tasks.waiting_for_gpus() > 0)
    Fail("a GPU idles while a task waits for one");
  if (tasks.workers_busy() != workers || tasks.gpus_busy() != gpus) {
    Fail(absl::StrCat("a slot leaks: ", tasks.workers_busy(), " workers and ", tasks.gpus_busy(),
                      " GPUs taken, ", workers, " and ", gpus, " at work"));
  }
}

void World::Check() {
  if (!outcome_.violation.empty()) return;
  std::set<FlightId> queued, uploading;
  for (SimCaller* caller : active_) {
    // One that was lost is not told of its end.
    if (caller->lost && table_->FlightOfCall(caller->id) == 0) caller->cancelled = true;
    CheckCall(*caller);
    const FlightId flight = table_->FlightOfCall(caller->id);
    if (table_->StateOfFlight(flight) == State::kQueued) queued.insert(flight);
    if (table_->StateOfFlight(flight) == State::kUploading) uploading.insert(flight);
  }
  std::erase_if(active_, [](const SimCaller* caller) { return caller->ended || caller->cancelled; });
  CheckSlots();
  const size_t compiling =
      std::count_if(compiles_.begin(), compiles_.end(), [](const auto& of) { return !of.second.told; });
  if (table_->begun() != compiling + storing_.size()) {
    Fail(absl::StrCat("a place leaks: ", table_->begun(), " flights have begun, ", compiling,
                      " are compiled, ", storing_.size(), " stored"));
  }
  if (table_->queued() != queued.size()) Fail("a place leaks: a flight is queued for nobody");
  if (table_->places() != table_->begun() + queued.size() + uploading.size()) {
    Fail(absl::StrCat("a place leaks: ", table_->places(), " taken"));
  }
  if (const uint64_t bytes = BytesHeld(); table_->graphs_bytes() != bytes)
    Fail(absl::StrCat("bytes leak: ", table_->graphs_bytes(), " held, ", bytes, " there"));
  if (BytesOfGraphs() > options_.graphs_bytes_max) Fail("more bytes of graphs are held than there may be");
}

void World::CheckAtRest() {
  for (const auto& caller : callers_) {
    if (!caller->ended && !caller->cancelled)
      Fail(absl::StrCat("caller ", caller->id, " was never answered"));
  }
  if (table_->calls() + table_->flights() + table_->places() + table_->begun() + table_->graphs_bytes() +
          table_->tasks().waiting_for_workers() + table_->tasks().waiting_for_gpus() + AtWork(false) +
          AtWork(true) !=
      0) {
    Fail("something is left when all is over");
  }
  if (table_->NextTick().has_value()) Fail("a timer is left when all is over");
}

}  // namespace kiln::sim
