#include "server/pool/worker_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "server/server_limits.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr absl::Duration kHelloLimit = absl::Seconds(30);
constexpr absl::Duration kShelfLook = absl::Minutes(1);

absl::Status CheckFormats(const v1::WorkerHello& hello) {
  if (hello.compiler_fingerprint().empty()) {
    return absl::FailedPreconditionError(
        "the worker has no compiler fingerprint (linked without a build id?)");
  }
  if (hello.program_format() == kProgramFormatVersion && hello.graph_format() == kGraphFormatVersion)
    return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the worker has formats ", hello.graph_format(), " (graphs) and ", hello.program_format(),
                   " (programs), kilnd has ", kGraphFormatVersion, " and ", kProgramFormatVersion,
                   "; install kilnd and kiln-worker of one version"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerPool>> WorkerPool::Start(const Options& options, Zygote* zygote,
                                                              Stats* stats) {
  KILN_ASSIGN_OR_RETURN(auto first, WorkerProcess::Spawn(zygote, MonotonicAfter(kHelloLimit)));
  std::unique_ptr<WorkerPool> pool(new WorkerPool(options, zygote, stats));
  pool->hello_ = first->hello();
  KILN_RETURN_IF_ERROR(CheckFormats(pool->hello_));
  for (size_t slot = 0; slot < options.workers; ++slot) {
    auto run = [self = pool.get(), slot, worker = std::exchange(first, nullptr)]() mutable {
      self->Run(slot, std::move(worker));
    };
    KILN_ASSIGN_OR_RETURN(std::thread thread, StartThread(std::move(run)));
    pool->threads_.push_back(std::move(thread));
  }
  return pool;
}

WorkerPool::~WorkerPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  for (Slot& slot : slots_) {
    if (slot.task.has_value()) queue_.push_back(*std::move(slot.task));
  }
  for (WorkerTask& task : queue_) task.done({absl::CancelledError("the daemon stops"), {}, false});
}

void WorkerPool::Submit(WorkerTask task) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(std::move(task));
  Assign();
}

WorkerPool::Slot* WorkerPool::SlotFor(const std::string& tenant) {
  Slot* fresh = nullptr;
  Slot* another = nullptr;
  for (Slot& slot : slots_) {
    if (!slot.waits) continue;
    if (slot.tenant == tenant) return &slot;
    Slot*& kind = slot.tenant.has_value() ? another : fresh;
    if (kind == nullptr) kind = &slot;
  }
  return fresh != nullptr ? fresh : another;
}

void WorkerPool::Assign() {
  while (!queue_.empty()) {
    Slot* const slot = SlotFor(queue_.front().tenant);
    if (slot == nullptr) return;
    slot->waits = false;
    slot->task = std::move(queue_.front());
    queue_.pop_front();
    ++busy_;
  }
}

bool WorkerPool::Next(size_t slot, WorkerTask* task) {
  shelf_.EndIdle(MonotonicNow());
  absl::MutexLock lock(&mutex_);
  Slot& own = slots_[slot];
  own.waits = !own.task.has_value();
  Assign();
  const auto ready = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || own.task.has_value(); };
  while (!mutex_.AwaitWithTimeout(absl::Condition(&ready), kShelfLook)) {
    mutex_.Unlock();
    shelf_.EndIdle(MonotonicNow());
    mutex_.Lock();
  }
  if (stopping_) return false;
  *task = *std::exchange(own.task, std::nullopt);
  return true;
}

// Before the task's end is told, so that what follows from it finds the worker that has just served its
// tenant.
void WorkerPool::Finish(size_t slot, bool usable) {
  absl::MutexLock lock(&mutex_);
  --busy_;
  slots_[slot].waits = usable;
  Assign();
}

void WorkerPool::MakeRoomFor(size_t slot, const std::string& tenant,
                             std::unique_ptr<WorkerProcess>* process) {
  std::optional<std::string> served;
  {
    absl::MutexLock lock(&mutex_);
    served = slots_[slot].tenant;
    if (!served.has_value() || served == tenant) return;
    slots_[slot].tenant = std::nullopt;
  }
  if (*process != nullptr && (*process)->ResidentBytes() <= kShelvedBytesMax)
    shelf_.Put(*std::move(served), std::move(*process), MonotonicNow());
  *process = shelf_.Take(tenant);
  if (*process == nullptr) return;
  absl::MutexLock lock(&mutex_);
  slots_[slot].pid = (*process)->pid();
  slots_[slot].tenant = tenant;
}

absl::Status WorkerPool::EnsureProcess(size_t slot, std::unique_ptr<WorkerProcess>* process) {
  KILN_RETURN_IF_ERROR(health());
  if (*process != nullptr && (*process)->Alive()) return absl::OkStatus();
  if (*process != nullptr) {
    // Died between two tasks: no task's fault.
    stats_->workers.crashes++;
    spdlog::warn("worker {} lost while idle: {}", slot, (*process)->Stop().text);
    *process = nullptr;
  }
  KILN_ASSIGN_OR_RETURN(*process, WorkerProcess::Spawn(zygote_, MonotonicAfter(kHelloLimit)));
  absl::MutexLock lock(&mutex_);
  slots_[slot].pid = (*process)->pid();
  slots_[slot].tenant = std::nullopt;
  if ((*process)->hello().compiler_fingerprint() == hello_.compiler_fingerprint()) return absl::OkStatus();
  broken_ = absl::FailedPreconditionError("a worker of another build answered; restart the daemon");
  return broken_;
}

bool WorkerPool::Spent(size_t slot, const WorkerProcess& process) const {
  if (process.calls() >= options_.jobs_max) return true;
  const uint64_t resident = process.ResidentBytes();
  if (resident <= options_.resident_bytes_max) return false;
  spdlog::info("worker {} is replaced: it holds {} MiB after a job", slot, resident >> 20);
  return true;
}

void WorkerPool::Run(size_t slot, std::unique_ptr<WorkerProcess> process) {
  // Warm before the first task; a failure here shows again, with a caller to tell, at that task.
  if (process == nullptr) {
    if (absl::Status status = EnsureProcess(slot, &process); !status.ok()) {
      spdlog::warn("worker {}: {}", slot, std::string(status.message()));
    }
  } else {
    absl::MutexLock lock(&mutex_);
    slots_[slot].pid = process->pid();
  }
  WorkerTask task;
  while (Next(slot, &task)) {
    const MonotonicTime begin = MonotonicNow();
    WorkerResult result = Execute(slot, &process, &task);
    if (process != nullptr && Spent(slot, *process)) process = nullptr;
    result.seconds = SecondsBetween(begin, MonotonicNow());
    Finish(slot, process != nullptr);
    task.done(std::move(result));
    task = WorkerTask();
    // Replace a dead worker now, not when the next caller waits for it.
    if (process == nullptr) {
      if (absl::Status status = EnsureProcess(slot, &process); !status.ok()) {
        spdlog::warn("worker {}: {}", slot, std::string(status.message()));
      }
    }
  }
}

WorkerResult WorkerPool::Execute(size_t slot, std::unique_ptr<WorkerProcess>* process, WorkerTask* task) {
  if (task->abandoned && task->abandoned())
    return {absl::CancelledError("nobody waits for the answer"), {}, false};
  MakeRoomFor(slot, task->tenant, process);
  if (absl::Status status = EnsureProcess(slot, process); !status.ok()) return {std::move(status), {}, false};
  {
    absl::MutexLock lock(&mutex_);
    slots_[slot].tenant = task->tenant;
  }
  FrameWait wait;
  wait.deadline = MonotonicAfter(task->time_limit);
  wait.abandoned = [this, task] {
    if (task->abandoned && task->abandoned()) return true;
    absl::ReaderMutexLock lock(&mutex_);
    return stopping_;
  };
  const std::optional<uint64_t> oom_kills = options_.oom_kills();
  v1::Frame request = task->request();
  const bool plan = request.has_plan();
  absl::StatusOr<v1::Frame> reply = (*process)->Call(std::move(request), wait);
  if (reply.ok()) {
    if (reply->has_error()) return {StatusOf(reply->error()), {}, false};
    if (plan ? reply->has_plan_reply() : reply->has_emit_reply())
      return {absl::OkStatus(), *std::move(reply), false};
    reply = absl::DataLossError("an answer of the wrong kind");
  }
  const WorkerProcess::End end = (*process)->Stop();
  *process = nullptr;
  if (absl::IsCancelled(reply.status())) return {reply.status(), {}, false};
  if (absl::IsResourceExhausted(reply.status())) {
    // Beyond the limit of frames: no matter of time, as RESOURCE_EXHAUSTED would tell clients.
    return {absl::FailedPreconditionError(reply.status().message()), {}, false};
  }
  if (absl::IsDeadlineExceeded(reply.status())) {
    stats_->workers.timeouts++;
    return {absl::DeadlineExceededError(
                absl::StrCat("the ", plan ? "planning" : "code generation", " took longer than ",
                             absl::FormatDuration(task->time_limit), " and was ended")),
            {},
            false};
  }
  const bool killed_for_memory = end.killed && options_.oom_kills() > oom_kills;
  return Lost(slot, plan ? "planning" : "emitting", end, killed_for_memory, reply.status());
}

// What a worker's end says of the task that it had.
WorkerResult WorkerPool::Lost(size_t slot, const char* doing, const WorkerProcess::End& end,
                              bool killed_for_memory, const absl::Status& why) {
  if (end.out_of_memory) {
    spdlog::warn("worker {} ran out of memory while {}", slot, doing);
    return {absl::FailedPreconditionError(
                absl::StrCat("the compiler ran out of its memory of ", options_.memory_bytes >> 20,
                             " MiB; workers.memory_bytes in the file of kilnd --config raises it")),
            {},
            false};
  }
  if (killed_for_memory) {
    spdlog::warn("worker {} was killed by the kernel, which lacked memory, while {}", slot, doing);
    return {
        absl::FailedPreconditionError(
            "the host had no memory left for the compiler, and the kernel killed it; lower workers.count or "
            "workers.memory_bytes in the file of kilnd --config, or give kilnd's control group more"),
        {},
        false};
  }
  stats_->workers.crashes++;
  spdlog::warn("worker {} lost while {}: {}: {}", slot, doing, end.text, std::string(why.message()));
  WorkerResult lost{
      absl::UnavailableError(absl::StrCat("the compiler process ended by ", end.text)), {}, true};
  lost.killed = end.killed && absl::IsUnavailable(why);
  return lost;
}

size_t WorkerPool::busy() const {
  absl::ReaderMutexLock lock(&mutex_);
  return busy_;
}

absl::Status WorkerPool::health() const {
  absl::ReaderMutexLock lock(&mutex_);
  return broken_;
}

std::vector<pid_t> WorkerPool::pids() const {
  std::vector<pid_t> pids;
  absl::ReaderMutexLock lock(&mutex_);
  for (const Slot& slot : slots_) pids.push_back(slot.pid);
  return pids;
}

}  // namespace kiln
