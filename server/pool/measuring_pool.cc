#include "server/pool/measuring_pool.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "compiler/support/status_macros.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr absl::Duration kStartLimit = absl::Seconds(30);  // of a process and the driver in it
constexpr absl::Duration kTurnStep = absl::Milliseconds(20);
constexpr uint32_t kFailuresAllowed = 3;

bool IsAnswer(const v1::Frame& request, const v1::Frame& reply) {
  if (reply.has_error()) return true;
  if (request.has_open_gpu()) return reply.has_gpu();
  if (request.has_list_candidates()) return reply.has_candidates();
  return request.has_measure() && reply.has_measured();
}

}  // namespace

uint32_t ArchitectureOf(const v1::Target& target) {
  for (absl::string_view feature : target.features()) {
    if (!absl::ConsumePrefix(&feature, "sm_")) continue;
    absl::ConsumeSuffix(&feature, "a");
    uint32_t number = 0;
    if (absl::SimpleAtoi(feature, &number)) return number;
  }
  return 0;
}

MeasuringPool::MeasuringPool(const Options& options, Zygote* zygote) : options_(options), zygote_(zygote) {
  for (uint32_t ordinal = 0; ordinal < options.gpus; ++ordinal) {
    gpus_.push_back(std::make_unique<Gpu>());
    gpus_.back()->ordinal = ordinal;
  }
}

MeasuringPool::~MeasuringPool() = default;

bool MeasuringPool::Serves(const Gpu& gpu, uint32_t architecture) const {
  if (!gpu.drained.empty()) return false;
  return gpu.facts.name().empty() || gpu.facts.architecture() == architecture;
}

absl::Status MeasuringPool::NoneServes(uint32_t architecture) const {
  std::string why = gpus_.empty() ? "this machine shows none" : "those there are are of other kinds";
  for (const std::unique_ptr<Gpu>& gpu : gpus_) {
    if (!gpu->drained.empty()) why = gpu->drained;
  }
  return absl::UnimplementedError(
      absl::StrCat("the daemon has no GPU of kind sm_", architecture, " to measure on: ", why));
}

absl::StatusOr<MeasuringPool::Gpu*> MeasuringPool::Take(const std::string& tenant, uint32_t architecture) {
  absl::MutexLock lock(&mutex_);
  bool any = false;
  Gpu* taken = nullptr;
  for (const std::unique_ptr<Gpu>& gpu : gpus_) {
    if (!Serves(*gpu, architecture)) continue;
    any = true;
    if (gpu->leased) continue;
    if (taken == nullptr || (taken->tenant != tenant && gpu->tenant == tenant)) taken = gpu.get();
  }
  if (!any) return NoneServes(architecture);
  if (taken == nullptr) return nullptr;
  taken->leased = true;
  ++taken->leases;
  return taken;
}

void MeasuringPool::Release(Gpu* gpu) {
  absl::MutexLock lock(&mutex_);
  gpu->leased = false;
  gpu->released = MonotonicNow();
}

absl::Status MeasuringPool::Open(Lease& lease) {
  Gpu& gpu = *lease.gpu_;
  const absl::Status opened = lease.EnsureProcess();
  absl::MutexLock lock(&mutex_);
  if (opened.ok()) {
    gpu.failures = 0;
    gpu.facts = lease.facts_;
    return opened;
  }
  if (absl::IsUnimplemented(opened) || ++gpu.failures >= kFailuresAllowed) {
    gpu.drained = std::string(opened.message());
    spdlog::warn("cuda:{} is not measured on any more: {}", gpu.ordinal, gpu.drained);
  }
  return opened;
}

absl::StatusOr<v1::GpuFacts> MeasuringPool::KnownFacts(const v1::Target& target) const {
  const uint32_t architecture = ArchitectureOf(target);
  absl::ReaderMutexLock lock(&mutex_);
  bool any = false;
  for (const std::unique_ptr<Gpu>& gpu : gpus_) {
    if (!Serves(*gpu, architecture)) continue;
    if (!gpu->facts.name().empty()) return gpu->facts;
    any = true;
  }
  if (any) return absl::UnavailableError("no GPU has been opened yet");
  return NoneServes(architecture);
}

absl::StatusOr<std::unique_ptr<MeasuringPool::Lease>> MeasuringPool::Acquire(const std::string& tenant,
                                                                             const v1::Target& target,
                                                                             const Abandoned& abandoned) {
  const uint32_t architecture = ArchitectureOf(target);
  while (true) {
    KILN_ASSIGN_OR_RETURN(Gpu * gpu, Take(tenant, architecture));
    if (gpu == nullptr) {
      if (abandoned && abandoned()) return absl::CancelledError("nobody waits for the answer");
      absl::SleepFor(kTurnStep);
      continue;
    }
    std::unique_ptr<Lease> lease(new Lease(this, gpu, tenant, abandoned));
    const absl::Status opened = Open(*lease);
    if (absl::IsCancelled(opened)) return opened;
    if (opened.ok() && lease->facts().architecture() == architecture) return lease;
  }
}

MeasuringPool::Gpu* MeasuringPool::TakeUnopened() {
  absl::MutexLock lock(&mutex_);
  for (const std::unique_ptr<Gpu>& gpu : gpus_) {
    if (gpu->leased || !gpu->drained.empty() || !gpu->facts.name().empty()) continue;
    gpu->leased = true;
    return gpu.get();
  }
  return nullptr;
}

std::vector<v1::GpuFacts> MeasuringPool::Kinds(const Abandoned& abandoned) {
  while (Gpu* const gpu = TakeUnopened()) {
    std::unique_ptr<Lease> lease(new Lease(this, gpu, std::nullopt, abandoned));
    if (!Open(*lease).ok()) break;  // it is tried again, until it is drained
  }
  std::vector<v1::GpuFacts> kinds;
  absl::flat_hash_set<uint32_t> seen;
  absl::ReaderMutexLock lock(&mutex_);
  for (const std::unique_ptr<Gpu>& gpu : gpus_) {
    if (gpu->facts.name().empty() || !gpu->drained.empty()) continue;
    if (seen.insert(gpu->facts.architecture()).second) kinds.push_back(gpu->facts);
  }
  return kinds;
}

void MeasuringPool::EndIdle() {
  std::vector<std::unique_ptr<WorkerProcess>> ended;
  absl::MutexLock lock(&mutex_);
  for (const std::unique_ptr<Gpu>& gpu : gpus_) {
    if (gpu->leased || gpu->process == nullptr) continue;
    if (absl::FromChrono(MonotonicNow() - gpu->released) > options_.idle_limit)
      ended.push_back(std::move(gpu->process));
  }
}

std::vector<v1::MeasuringGpu> MeasuringPool::gpus() const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<v1::MeasuringGpu> infos;
  for (const std::unique_ptr<Gpu>& gpu : gpus_) {
    v1::MeasuringGpu& info = infos.emplace_back();
    info.set_ordinal(gpu->ordinal);
    info.set_name(gpu->facts.name());
    info.set_leased(gpu->leased);
    info.set_leases(gpu->leases);
    info.set_drained(gpu->drained);
  }
  return infos;
}

// ---- a lease

MeasuringPool::Lease::Lease(MeasuringPool* pool, Gpu* gpu, std::optional<std::string> tenant,
                            Abandoned abandoned)
    : pool_(pool),
      gpu_(gpu),
      tenant_(std::move(tenant)),
      abandoned_(std::move(abandoned)),
      deadline_(MonotonicAfter(pool->options_.lease_limit)) {}

MeasuringPool::Lease::~Lease() { pool_->Release(gpu_); }

uint64_t MeasuringPool::Lease::process() const { return gpu_->processes; }

bool MeasuringPool::Lease::MayTakeProcess() const {
  return !tenant_.has_value() || !gpu_->tenant.has_value() || gpu_->tenant == tenant_;
}

absl::Status MeasuringPool::Lease::EnsureProcess() {
  if (gpu_->process != nullptr && gpu_->process->Alive() && !facts_.name().empty()) return absl::OkStatus();
  const bool warm = gpu_->process != nullptr && gpu_->process->Alive();
  if (warm && MayTakeProcess()) {
    absl::ReaderMutexLock lock(&pool_->mutex_);
    facts_ = gpu_->facts;
    if (tenant_.has_value()) gpu_->tenant = tenant_;
    if (!facts_.name().empty()) return absl::OkStatus();
  }
  gpu_->process = nullptr;  // before another opens the GPU
  gpu_->tenant = tenant_;
  ++gpu_->processes;
  KILN_ASSIGN_OR_RETURN(gpu_->process, WorkerProcess::Spawn(pool_->zygote_, MonotonicAfter(kStartLimit)));
  v1::Frame request;
  request.mutable_open_gpu()->set_ordinal(gpu_->ordinal);
  KILN_ASSIGN_OR_RETURN(v1::Frame reply, Exchange(std::move(request)));
  facts_ = std::move(*reply.mutable_gpu());
  return absl::OkStatus();
}

absl::StatusOr<v1::Frame> MeasuringPool::Lease::Exchange(v1::Frame request) {
  const absl::Duration limit = request.has_open_gpu() ? kStartLimit : pool_->options_.call_limit;
  FrameWait wait;
  wait.deadline = MonotonicAfter(limit);
  wait.abandoned = abandoned_;
  const v1::Frame asked = request;
  absl::StatusOr<v1::Frame> reply = gpu_->process->Call(std::move(request), wait);
  if (reply.ok() && !IsAnswer(asked, *reply)) reply = absl::DataLossError("an answer of the wrong kind");
  if (reply.ok() && !reply->has_error()) return reply;
  absl::Status status = reply.ok() ? StatusOf(reply->error()) : reply.status();
  // After an error of the driver's nothing that the process says of the GPU counts.
  if (reply.ok() && !absl::IsInternal(status)) return status;
  const std::string end = gpu_->process->Stop().text;
  gpu_->process = nullptr;
  if (reply.ok()) return absl::UnavailableError(status.message());
  if (absl::IsCancelled(status)) return status;
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat("it took longer than ", absl::FormatDuration(limit), " and was ended"));
  }
  return absl::UnavailableError(absl::StrCat("the measuring process ended by ", end));
}

absl::StatusOr<v1::Frame> MeasuringPool::Lease::Call(v1::Frame request) {
  if (over()) {
    return absl::ResourceExhaustedError(absl::StrCat("the time of one program on a GPU, ",
                                                     absl::FormatDuration(pool_->options_.lease_limit),
                                                     ", was over"));
  }
  KILN_RETURN_IF_ERROR(EnsureProcess());
  return Exchange(std::move(request));
}

}  // namespace kiln
