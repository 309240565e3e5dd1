#include "server/flight/flight_workers.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace kiln {

void FlightWorkers::Start(TaskId id, FlightId flight, FlightRequestPtr request, const FlightTask& task) {
  if (closed_) return;
  at_work_.Begin();
  if (flight == 0) {
    chores_.Start(id, task.number);
    return;
  }
  if (task.kind == TaskQueue::Kind::kForward) {
    parts_.upstream->Forward(id, flight, std::move(request));
    return;
  }
  const CompilePtr compile = CompileOf(flight, request);
  if (task.kind == TaskQueue::Kind::kTune) {
    StartTuning(id, flight, compile, request->caller);
  } else {
    StartWork(id, flight, compile, request->caller, task.number);
  }
}

void FlightWorkers::Stop(FlightId flight) {
  if (parts_.upstream != nullptr) parts_.upstream->Stop(flight);
  const auto found = compiles_.find(flight);
  if (found == compiles_.end()) return;
  found->second->Stop();
  compiles_.erase(found);
}

FlightWorkers::CompilePtr FlightWorkers::CompileOf(FlightId flight, const FlightRequestPtr& request) {
  CompilePtr& compile = compiles_[flight];
  if (compile != nullptr) return compile;
  FlightCompile::Outside outside;
  outside.progress = [this, flight](absl::string_view phase, FlightEventPtr event) {
    parts_.threads->strand->Post([this, flight, phase = std::string(phase), event = std::move(event)] {
      parts_.table->Progress(flight, phase, event);
    });
  };
  outside.ask = [this, flight](std::vector<FlightTask> tasks) {
    parts_.threads->strand->Post(
        [this, flight, tasks = std::move(tasks)] { parts_.table->Asked(flight, tasks); });
  };
  compile = std::make_shared<FlightCompile>(parts_.compiler, request, std::move(outside));
  return compile;
}

void FlightWorkers::StartWork(TaskId id, FlightId flight, const CompilePtr& compile, const Caller& caller,
                              uint64_t number) {
  WorkerTask task = compile->TaskFor(number);
  task.done = [this, id, flight, compile, caller, number](WorkerResult result) {
    parts_.stats->uses.CountSeconds(caller.tenant, caller.job, result.seconds);
    parts_.threads->strand->Post([this, id, seconds = result.seconds, ok = result.status.ok()] {
      parts_.table->Ended(id, seconds, ok);
    });
    auto taken = std::make_shared<WorkerResult>(std::move(result));  // std::function copies
    Take(flight, compile, [compile, number, taken] { return compile->After(number, std::move(*taken)); });
  };
  parts_.pool->Submit(std::move(task));
}

void FlightWorkers::StartTuning(TaskId id, FlightId flight, const CompilePtr& compile, const Caller& caller) {
  parts_.threads->gpus->Post([this, id, flight, compile, caller] {
    const MonotonicTime begin = parts_.clock->Now();
    compile->TuneOnGpu();
    const double seconds = SecondsBetween(begin, parts_.clock->Now());
    parts_.stats->uses.CountSeconds(caller.tenant, caller.job, seconds);
    parts_.threads->strand->Post([this, id, seconds] { parts_.table->Ended(id, seconds, /*typical=*/true); });
    Take(flight, compile, [compile] { return compile->AfterTuning(); });
  });
}

void FlightWorkers::Take(FlightId flight, const CompilePtr& compile, std::function<FlightNext()> step) {
  parts_.threads->disk->Post(
      [this, flight, compile, step = std::move(step)] { Advance(flight, compile, step()); });
}

void FlightWorkers::Advance(FlightId flight, const CompilePtr& compile, FlightNext next) {
  if (next.tries_tuning) {
    // Not where look-ups wait, whose limits run.
    ThreadExecutor* const threads =
        parts_.threads->transfers == nullptr ? parts_.threads->disk.get() : parts_.threads->transfers.get();
    threads->Post([this, flight, compile] { Advance(flight, compile, compile->TryTuning()); });
    return;
  }
  parts_.threads->strand->Post([this, flight, next = std::move(next)]() mutable {
    const bool over = next.outcome.has_value();
    parts_.table->Advanced(flight, std::move(next));
    if (over) compiles_.erase(flight);
    at_work_.End();
  });
}

void FlightWorkers::Close() {
  closed_ = true;
  for (const auto& [id, compile] : compiles_) compile->Stop();
  if (parts_.upstream != nullptr) parts_.upstream->Close();
  chores_.Close();
}

}  // namespace kiln
