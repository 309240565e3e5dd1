#include "server/flight/work_server.h"

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/cache_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "server/flight/tuning_frames.h"
#include "server/server_limits.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr absl::Duration kTellEvery = absl::Seconds(10);
constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr absl::Duration kAfterGivingBack = absl::Seconds(5);  // others look meanwhile
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
  tell_ = MonotonicNow();
  while (!Closing()) {
    if (MonotonicNow() >= tell_) {
      const absl::Status told = Tell();
      absl::MutexLock lock(&mutex_);
      message_ = std::string(told.message());
      tell_ = MonotonicAfter(kTellEvery);
    }
    if (const absl::Duration pause = ServeOne(); pause > absl::ZeroDuration()) Pause(pause);
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

absl::Duration WorkServer::ServeOne() {
  for (size_t tried = 0; tried < devices_.size(); ++tried) {
    const Device& device = devices_[next_++ % devices_.size()];
    if (Closing() || !outside_.coordinator->MayMeasureFor(device.ns)) continue;
    const absl::StatusOr<std::optional<WorkList::Claimed>> claimed =
        outside_.list->Claim(outside_.list->ListOf(device.ns, WorkList::KindOf(device.facts)));
    if (!claimed.ok() || !claimed->has_value()) continue;  // a tier that is away says so in its status
    return Serve(device, **claimed) ? absl::ZeroDuration() : kAfterGivingBack;
  }
  return kLookEvery;
}

bool WorkServer::Serve(const Device& device, const WorkList::Claimed& claimed) {
  const TierWork::List list = outside_.list->ListOf(device.ns, WorkList::KindOf(device.facts));
  Item item{device, claimed, {}, {}};
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
  } else if (const absl::Status measured = Measure(&item); measured.ok()) {
    measured_.fetch_add(1, std::memory_order_relaxed);
  } else if (absl::IsCancelled(measured)) {
    spdlog::info("{} of the work list of {} is released: {}", NameOf(claimed), device.ns,
                 measured.ToString());
    outside_.list->tier().Release(list, claimed.claim).IgnoreError();  // then it lapses
    return false;
  } else if (absl::IsUnimplemented(outside_.gpus->KnownFacts(claimed.work->target).status())) {
    spdlog::warn("{} of the work list of {} is left: {}", NameOf(claimed), device.ns, measured.ToString());
    tell_ = MonotonicNow();  // that the device has gone
    return false;
  } else {
    failed_.fetch_add(1, std::memory_order_relaxed);
    spdlog::warn("{} of the work list of {} can't be measured: {}", NameOf(claimed), device.ns,
                 measured.ToString());
  }
  // Where the tier is away it is claimed again, and then its record is here.
  const absl::StatusOr<bool> ended = outside_.list->tier().End(list, claimed.claim, tried);
  if (!ended.ok()) {
    spdlog::info("{} of the work list of {} is not ended: {}", NameOf(claimed), device.ns,
                 ended.status().ToString());
  }
  return true;
}

absl::Status WorkServer::Measure(Item* item) {
  const std::string& ns = item->device.ns;
  const std::string key = Tuner::KeyOf(ns, item->claimed.work->tunable, item->device.facts);
  outside_.records->Consult(ns, {key}).IgnoreError();  // a miss
  if (!outside_.records->Find(ns, key).ok()) {
    KILN_RETURN_IF_ERROR(Emit(item));
    KILN_RETURN_IF_ERROR(MeasureEmitted(*item));
  }
  const absl::StatusOr<bool> published = outside_.records->Publish(ns, key);
  if (published.ok() && *published) return absl::OkStatus();
  return absl::CancelledError(
      absl::StrCat("the tier does not take its record for now: ", published.status().message()));
}

// Without kernels of our own a gemm is measured all the same, as what a program has.
absl::Status WorkServer::Emit(Item* item) {
  const WorkList::Work& work = *item->claimed.work;
  std::vector<v1::Frame> frames;
  if (work.tunable.has_gemm()) frames.push_back(FrameOfGemm(work.tunable.gemm(), work.target));
  if (work.tunable.has_kernel()) {
    v1::KernelNotes notes;
    notes.set_name(kKernelName);
    KILN_ASSIGN_OR_RETURN(frames, FramesOfSchedules(work.tunable.kernel(), work.kernel, notes, work.target));
  }
  for (const WorkerResult& result : AskWorkers(*item, std::move(frames))) {
    if (absl::IsCancelled(result.status)) return result.status;
    if (work.tunable.has_gemm()) {
      item->natives = NativesOf(result);
      continue;
    }
    KILN_RETURN_IF_ERROR(result.status);
    item->images.push_back(result.reply.emit_reply().object());
  }
  return absl::OkStatus();
}

std::vector<WorkerResult> WorkServer::AskWorkers(const Item& item, std::vector<v1::Frame> frames) {
  std::vector<uint64_t> numbers;
  std::vector<std::future<WorkerResult>> answers;
  for (v1::Frame& frame : frames) {
    auto emitted = std::make_shared<std::promise<WorkerResult>>();  // shared, since std::function copies
    answers.push_back(emitted->get_future());
    WorkerTask task;
    task.tenant = item.device.ns;
    task.request = [frame = std::move(frame)] { return frame; };
    task.time_limit = outside_.emit_limit;
    task.abandoned = [this] { return Closing(); };
    task.done = [emitted](WorkerResult result) { emitted->set_value(std::move(result)); };
    numbers.push_back(outside_.coordinator->Submit(CallerFor(item.device.ns), std::move(task)));
  }
  std::vector<WorkerResult> results;
  // In the order of their turns: as long as they get on, those behind wait.
  for (std::future<WorkerResult>& answer : answers)
    results.push_back(
        Await(item, std::move(answer), numbers, MonotonicAfter(absl::Seconds(kWorkTurnSecondsMax))));
  return results;
}

absl::Status WorkServer::MeasureEmitted(const Item& item) {
  // Shared with a task that may come to its turn when nobody waits any more.
  auto measured = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> answer = measured->get_future();
  // On a thread of the GPU's, while this one waits.
  const uint64_t number =
      outside_.coordinator->SubmitMeasuring(CallerFor(item.device.ns), [this, measured, &item](bool runs) {
        if (!runs) {
          measured->set_value(absl::CancelledError("it did not get its turn"));
          return;
        }
        Tuner::Session session(*outside_.tuner, JobFor(item));
        session.Begin(/*may_measure=*/true);
        absl::Status status = session.Measure(item.claimed.work->tunable).status();
        session.End();
        measured->set_value(std::move(status));
      });
  return Await(item, std::move(answer), {number}, MonotonicAfter(absl::Seconds(kWorkTurnSecondsMax)));
}

template <typename T>
T WorkServer::Await(const Item& item, std::future<T> answer, const std::vector<uint64_t>& numbers,
                    MonotonicTime until) {
  const TierWork::List list = outside_.list->ListOf(item.device.ns, WorkList::KindOf(item.device.facts));
  MonotonicTime renew = MonotonicAfter(kRenewEvery);
  while (answer.wait_for(kWaitStep) != std::future_status::ready) {
    if (Closing() || MonotonicNow() >= until) {
      for (const uint64_t number : numbers) outside_.coordinator->Withdraw(number);
      until = MonotonicTime::max();
    }
    if (MonotonicNow() < renew) continue;
    outside_.list->tier().Renew(list, item.claimed.claim).IgnoreError();  // measured twice, at worst
    renew = MonotonicAfter(kRenewEvery);
  }
  return answer.get();
}

Tuner::Job WorkServer::JobFor(const Item& item) {
  Tuner::Job job;
  job.ns = item.device.ns;
  job.target = item.claimed.work->target;
  job.abandoned = [this] { return Closing(); };
  job.progress = [](uint32_t, uint32_t) {};
  job.natives = [&item](const v1::Gemm&) {
    std::promise<std::vector<v1::NativeKernel>> natives;
    natives.set_value(item.natives);
    return natives.get_future();
  };
  job.images = [&item](const v1::KernelTunable&) -> absl::StatusOr<std::vector<std::string>> {
    return item.images;
  };
  return job;
}

}  // namespace kiln
