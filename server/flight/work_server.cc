#include "server/flight/work_server.h"

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "server/flight/tuning_frames.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr absl::Duration kTellEvery = absl::Seconds(10);
constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr std::chrono::milliseconds kWaitStep(100);
constexpr absl::Duration kRenewEvery = absl::Seconds(2);  // a fifth of kTierWorkIdle
constexpr char kJob[] = "work list";
constexpr char kKernelName[] = "asked";

Caller CallerFor(const std::string& ns) { return {ns, kJob, Caller::Class::kBackground}; }

std::string NameOf(const WorkList::Claimed& claimed) { return ToHex(claimed.claim.subject).substr(0, 12); }

}  // namespace

absl::StatusOr<std::unique_ptr<WorkServer>> WorkServer::Create(Outside outside) {
  std::unique_ptr<WorkServer> made(new WorkServer(std::move(outside)));
  WorkServer* const server = made.get();
  KILN_ASSIGN_OR_RETURN(made->thread_, StartThread([server] { server->Run(); }));
  return made;
}

void WorkServer::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void WorkServer::AddTo(v1::TierWorkStatus* status) const {
  status->set_measured(measured_.load(std::memory_order_relaxed));
  status->set_failed(failed_.load(std::memory_order_relaxed));
  status->set_refused(refused_.load(std::memory_order_relaxed));
  absl::MutexLock lock(&mutex_);
  status->mutable_serves()->Assign(serves_.begin(), serves_.end());
  status->set_message(message_);
}

bool WorkServer::Closing() const {
  absl::MutexLock lock(&mutex_);
  return closing_;
}

void WorkServer::Pause(absl::Duration pause) {
  absl::MutexLock lock(&mutex_);
  if (!closing_) changed_.WaitUntil(&mutex_, MonotonicAfter(pause));
}

void WorkServer::Run() {
  MonotonicTime tell = MonotonicNow();
  while (!Closing()) {
    if (MonotonicNow() >= tell) {
      const absl::Status told = Tell();
      absl::MutexLock lock(&mutex_);
      message_ = std::string(told.message());
      tell = MonotonicAfter(kTellEvery);
    }
    if (!ServeOne()) Pause(kLookEvery);
  }
}

// Those that the tier does not know of for now are not served: nobody could form their records' keys.
absl::Status WorkServer::Tell() {
  const std::vector<v1::GpuFacts> kinds = outside_.gpus->Kinds([this] { return Closing(); });
  std::vector<std::string> serves;
  absl::Status why;
  devices_.clear();
  for (const std::string& ns : outside_.namespaces) {
    for (const v1::GpuFacts& facts : kinds) {
      const absl::Status told = outside_.list->Tell(ns, facts);
      why.Update(told);
      if (!told.ok()) continue;
      devices_.push_back({ns, facts});
      serves.push_back(WorkList::KindOf(facts));
    }
  }
  std::sort(serves.begin(), serves.end());
  serves.erase(std::unique(serves.begin(), serves.end()), serves.end());
  absl::MutexLock lock(&mutex_);
  serves_ = std::move(serves);
  return why;
}

bool WorkServer::ServeOne() {
  for (size_t tried = 0; tried < devices_.size(); ++tried) {
    const Device& device = devices_[next_++ % devices_.size()];
    if (Closing() || !outside_.coordinator->MayMeasureFor(device.ns)) continue;
    const absl::StatusOr<std::optional<WorkList::Claimed>> claimed =
        outside_.list->Claim(outside_.list->ListOf(device.ns, WorkList::KindOf(device.facts)));
    if (!claimed.ok() || !claimed->has_value()) continue;  // a tier that is away says so in its status
    Serve(device, **claimed);
    return true;
  }
  return false;
}

void WorkServer::Serve(const Device& device, const WorkList::Claimed& claimed) {
  const TierWork::List list = outside_.list->ListOf(device.ns, WorkList::KindOf(device.facts));
  bool tried = true;
  if (!claimed.work.ok()) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    spdlog::warn("{} of the work list of {} is refused: {}", NameOf(claimed), device.ns,
                 claimed.work.status().ToString());
    tried = false;
  } else if (claimed.claim.tries >= kTierWorkTriesMax) {
    failed_.fetch_add(1, std::memory_order_relaxed);
    spdlog::warn("{} of the work list of {} is given up: {} daemons ended over it", NameOf(claimed),
                 device.ns, claimed.claim.tries);
  } else if (const absl::Status measured = Measure(device, claimed); measured.ok()) {
    measured_.fetch_add(1, std::memory_order_relaxed);
  } else if (absl::IsCancelled(measured)) {
    outside_.list->tier().GiveBack(list, claimed.claim).IgnoreError();  // then it lapses
    return;
  } else {
    failed_.fetch_add(1, std::memory_order_relaxed);
    spdlog::warn("{} of the work list of {} can't be measured: {}", NameOf(claimed), device.ns,
                 measured.ToString());
  }
  // Where the tier is away it is claimed again, and then its record is here.
  if (const absl::Status ended = outside_.list->tier().End(list, claimed.claim, tried); !ended.ok())
    spdlog::info("{} of the work list of {} is not ended: {}", NameOf(claimed), device.ns, ended.ToString());
}

absl::Status WorkServer::Measure(const Device& device, const WorkList::Claimed& claimed) {
  const TierWork::List list = outside_.list->ListOf(device.ns, WorkList::KindOf(device.facts));
  // Shared with a task that may come to its turn when nobody waits any more.
  auto measured = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> answer = measured->get_future();
  const uint64_t number = outside_.coordinator->SubmitMeasuring(
      CallerFor(device.ns), [this, measured, ns = device.ns, work = *claimed.work](bool runs) {
        measured->set_value(runs ? MeasureNow(ns, work) : absl::CancelledError("it did not get its turn"));
      });
  MonotonicTime renew = MonotonicAfter(kRenewEvery);
  while (answer.wait_for(kWaitStep) != std::future_status::ready) {
    if (Closing()) outside_.coordinator->Withdraw(number);
    if (MonotonicNow() < renew) continue;
    outside_.list->tier().Renew(list, claimed.claim).IgnoreError();  // measured twice, at worst
    renew = MonotonicAfter(kRenewEvery);
  }
  KILN_RETURN_IF_ERROR(answer.get());
  // The record has been offered; now it has to be there.
  const std::string key = Tuner::KeyOf(device.ns, claimed.work->tunable, device.facts);
  if (const absl::Status there = outside_.records->Consult(device.ns, {key}); !there.ok())
    return absl::CancelledError(absl::StrCat("the tier does not take its record: ", there.message()));
  return absl::OkStatus();
}

// On a thread of the GPU's.
absl::Status WorkServer::MeasureNow(const std::string& ns, const WorkList::Work& work) {
  Tuner::Session session(*outside_.tuner, JobFor(ns, work));
  session.Begin(/*may_measure=*/true);
  const absl::Status measured = session.Measure(work.tunable).status();
  session.End();
  // Its device has gone: another daemon may have one.
  if (session.is_elsewhere()) return absl::CancelledError(measured.message());
  return measured;
}

Tuner::Job WorkServer::JobFor(const std::string& ns, const WorkList::Work& work) {
  Tuner::Job job;
  job.ns = ns;
  job.target = work.target;
  job.abandoned = [this] { return Closing(); };
  job.progress = [](uint32_t, uint32_t) {};
  job.natives = [this, ns, target = work.target](const v1::MatrixProduct& product) {
    return std::async(std::launch::deferred, [this, ns, frame = FrameOfProduct(product, target)] {
      return NativesOf(AskWorker(ns, frame));
    });
  };
  job.images = [this, ns, kernel = work.kernel, target = work.target](
                   const v1::KernelTunable& tunable) -> absl::StatusOr<std::vector<std::string>> {
    v1::KernelNotes notes;
    notes.set_name(kKernelName);
    KILN_ASSIGN_OR_RETURN(const std::vector<v1::Frame> frames,
                          FramesOfSchedules(tunable, kernel, notes, target));
    std::vector<std::string> images;
    for (const v1::Frame& frame : frames) {
      const WorkerResult result = AskWorker(ns, frame);
      KILN_RETURN_IF_ERROR(result.status);
      images.push_back(result.reply.emit_reply().object());
    }
    return images;
  };
  return job;
}

WorkerResult WorkServer::AskWorker(const std::string& ns, v1::Frame frame) {
  auto emitted = std::make_shared<std::promise<WorkerResult>>();  // shared, since std::function copies
  std::future<WorkerResult> answer = emitted->get_future();
  WorkerTask task;
  task.tenant = ns;
  task.request = [frame = std::move(frame)] { return frame; };
  task.time_limit = outside_.emit_limit;
  task.abandoned = [this] { return Closing(); };
  task.done = [emitted](WorkerResult result) { emitted->set_value(std::move(result)); };
  const uint64_t number = outside_.coordinator->Submit(CallerFor(ns), std::move(task));
  while (answer.wait_for(kWaitStep) != std::future_status::ready) {
    if (Closing()) outside_.coordinator->Withdraw(number);
  }
  return answer.get();
}

}  // namespace kiln
