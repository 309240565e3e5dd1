#include "server/flight/flight_index.h"

#include <algorithm>
#include <utility>

namespace kiln {

Flight& FlightIndex::Add(FlightRequest request, std::string slot, std::string job_id, MonotonicTime now) {
  auto flight = std::make_unique<Flight>();
  flight->id = NextNumber();
  request.job.id = std::move(job_id);
  request.job.created = now;
  request.job.program = flight->id;
  flight->request = std::make_shared<FlightRequest>(std::move(request));
  flight->slot = std::move(slot);
  if (!flight->slot.empty()) {
    by_slot_[flight->slot] = flight->id;
    if (joinable_ != nullptr) joinable_->Add(flight->slot);
  }
  by_job_[flight->request->job.id] = flight->id;
  Flight& made = *flight;
  flights_[made.id] = std::move(flight);
  return made;
}

void FlightIndex::Hide(const Flight& flight) {
  if (const auto found = by_slot_.find(flight.slot); found != by_slot_.end() && found->second == flight.id) {
    by_slot_.erase(found);
    if (joinable_ != nullptr) joinable_->Remove(flight.slot);
  }
  if (const auto found = by_job_.find(flight.request->job.id);
      found != by_job_.end() && found->second == flight.id) {
    by_job_.erase(found);
  }
}

void FlightIndex::Erase(const Flight& flight) {
  Hide(flight);
  flights_.erase(flight.id);
}

Flight* FlightIndex::Find(FlightId id) const {
  const auto found = flights_.find(id);
  return found == flights_.end() ? nullptr : found->second.get();
}

Flight* FlightIndex::OfSlot(const std::string& slot) const {
  const auto found = by_slot_.find(slot);
  return found == by_slot_.end() ? nullptr : Find(found->second);
}

Flight* FlightIndex::OfJob(const std::string& job_id) const {
  const auto found = by_job_.find(job_id);
  return found == by_job_.end() ? nullptr : Find(found->second);
}

std::vector<v1::JobInfo> FlightIndex::Jobs(MonotonicTime now) const {
  std::vector<v1::JobInfo> jobs;
  for (const auto& [id, flight] : flights_) {
    v1::JobInfo& job = jobs.emplace_back();
    job.set_job_id(flight->request->job.id);
    job.set_compile_key(flight->request->compile_key);
    job.set_title(flight->request->notes.title());
    job.set_phase(flight->state == FlightState::kRunning ? flight->progress.phase
                                                         : FlightStateName(flight->state));
    job.set_kernels_done(flight->progress.kernels_done);
    job.set_kernels_total(flight->progress.kernels_total);
    job.set_waiters(static_cast<uint32_t>(flight->waiters.size()));
    job.set_seconds(SecondsBetween(flight->request->job.created, now));
    job.set_tenant(flight->request->caller.tenant);
    job.set_job(flight->request->caller.job);
    job.set_graph_bytes(flight->request->bytes.all);
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const v1::JobInfo& a, const v1::JobInfo& b) { return a.seconds() > b.seconds(); });
  return jobs;
}

}  // namespace kiln
