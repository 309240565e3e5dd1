#include "server/flight/chores.h"

#include <utility>

#include "absl/status/status.h"

namespace kiln {

uint64_t Chores::Submit(const Caller& caller, WorkerTask task) {
  return Add(std::make_shared<Chore>(Chore{caller, std::move(task), nullptr}));
}

uint64_t Chores::SubmitMeasuring(const Caller& caller, std::function<void(bool runs)> measure) {
  return Add(std::make_shared<Chore>(Chore{caller, {}, std::move(measure)}));
}

// Shared, since std::function copies.
uint64_t Chores::Add(std::shared_ptr<Chore> chore) {
  const uint64_t number = ++last_;
  parts_.threads->strand->Post([this, number, chore = std::move(chore)] {
    if (closed_) {
      chore->Cancel("the daemon stops");
      return;
    }
    const TaskQueue::Kind kind = chore->measure ? TaskQueue::Kind::kTune : TaskQueue::Kind::kEmit;
    const Caller caller = chore->caller;
    waiting_[number] = std::move(*chore);
    parts_.table->Chore(number, caller, kind);
  });
  return number;
}

void Chores::Withdraw(uint64_t number) {
  parts_.threads->strand->Post([this, number] {
    const auto found = waiting_.find(number);
    if (found == waiting_.end()) return;
    parts_.table->Withdraw(number);
    const Chore withdrawn = std::move(waiting_.extract(found).mapped());
    withdrawn.Cancel("nobody waits for the answer");
  });
}

void Chores::Chore::Cancel(const char* why) const {
  if (measure) {
    measure(/*runs=*/false);
  } else {
    task.done({absl::CancelledError(why), {}, false});
  }
}

void Chores::Start(TaskId id, uint64_t number) {
  Chore chore = std::move(waiting_.extract(number).mapped());
  if (chore.measure) {
    StartMeasuring(id, std::move(chore));
    return;
  }
  chore.task.done = [this, id, done = std::move(chore.task.done)](WorkerResult result) {
    const double seconds = result.seconds;
    const bool ok = result.status.ok();
    done(std::move(result));
    parts_.threads->strand->Post([this, id, seconds, ok] {
      parts_.table->Ended(id, seconds, ok);
      parts_.at_work->End();
    });
  };
  parts_.pool->Submit(std::move(chore.task));
}

void Chores::StartMeasuring(TaskId id, Chore chore) {
  parts_.threads->gpus->Post([this, id, chore = std::move(chore)] {
    const MonotonicTime begin = parts_.clock->Now();
    chore.measure(/*runs=*/true);
    const double seconds = SecondsBetween(begin, parts_.clock->Now());
    parts_.stats->uses.CountSeconds(chore.caller.tenant, chore.caller.job, seconds);
    parts_.threads->strand->Post([this, id, seconds] {
      parts_.table->Ended(id, seconds, /*typical=*/false);
      parts_.at_work->End();
    });
  });
}

void Chores::Close() {
  closed_ = true;
  for (const auto& [number, chore] : waiting_) chore.Cancel("the daemon stops");
}

}  // namespace kiln
