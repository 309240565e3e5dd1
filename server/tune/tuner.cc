#include "server/tune/tuner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "compiler/graph/key.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "server/server_limits.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

// Changes whenever a measurement would be made or judged otherwise.
constexpr absl::string_view kPolicy =
    "paired rounds after a flush of L2, 3, 15 and 41, ratio 0.97; products of few rows by our own kernel; a "
    "default without rivals too; machine code";
constexpr uint32_t kRounds = 15;
constexpr uint32_t kConfirmingRounds = 41;
constexpr int kTunablesAhead = 4;  // the one that is measured among them

// What a candidate does to itself, and not to the measurement.
bool IsLoss(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

// The candidates for one tunable on a lease, whatever becomes of its process.
struct Tuner::Trial {
  MeasuringPool::Lease& lease;
  const v1::Tunable& tunable;
  std::vector<v1::NativeKernel> natives;  // candidates besides those that the process lists
  std::vector<std::string> images;        // of a kernel
  v1::Candidates candidates;
  uint64_t process = 0;  // that has the list; 0: none

  int size() const { return candidates.candidates_size(); }

  absl::Status List() {
    v1::Frame request;
    *request.mutable_list_candidates()->mutable_tunable() = tunable;
    for (const std::string& image : images) request.mutable_list_candidates()->add_images(image);
    KILN_ASSIGN_OR_RETURN(v1::Frame reply, lease.Call(std::move(request)));
    process = lease.process();
    if (size() > 0) return absl::OkStatus();
    if (tunable.has_kernel()) {  // which schedules it has the compiler knows, not the process
      for (const v1::KernelSchedule& schedule : tunable.kernel().schedules())
        *candidates.add_candidates()->mutable_schedule() = schedule;
    } else {
      candidates = std::move(*reply.mutable_candidates());
    }
    if (size() == 0) return absl::UnavailableError("a list without the default");
    for (v1::NativeKernel& native : natives) {
      *candidates.add_candidates()->mutable_native() = std::move(native);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<v1::Measured> Measure(int candidate, uint32_t rounds) {
    if (process != lease.process()) KILN_RETURN_IF_ERROR(List());
    v1::Frame request;
    *request.mutable_measure()->mutable_candidate() = candidates.candidates(candidate);
    request.mutable_measure()->set_rounds(rounds);
    absl::StatusOr<v1::Frame> reply = lease.Call(std::move(request));
    if (IsLoss(reply.status())) process = 0;  // the next one knows nothing of the list
    KILN_RETURN_IF_ERROR(reply.status());
    return std::move(*reply->mutable_measured());
  }
};

std::vector<std::string> Tuner::KeysOf(const std::string& ns, const v1::Tuning& tuning) {
  std::vector<std::string> keys;
  for (const v1::Measurement& measured : tuning.measurements())
    keys.push_back(KeyOf(ns, measured.tunable(), tuning.gpu()));
  return keys;
}

std::string Tuner::KeyOf(const std::string& ns, const v1::Tunable& tunable, const v1::GpuFacts& gpu) {
  return TuningKey(ns, tunable, gpu, kPolicy);
}

absl::string_view Tuner::Policy() { return kPolicy; }

absl::StatusOr<v1::Measurement> Tuner::MeasureTunable(MeasuringPool::Lease& lease, const v1::Tunable& tunable,
                                                      std::vector<v1::NativeKernel> natives, const Job& job) {
  Trial trial{lease, tunable, std::move(natives), {}, {}, 0};
  if (tunable.has_kernel()) {
    KILN_ASSIGN_OR_RETURN(trial.images, job.images(tunable.kernel()));
  }
  KILN_RETURN_IF_ERROR(trial.List());
  v1::Measurement record;
  *record.mutable_tunable() = tunable;
  uint32_t ended = 0;
  int best = 0;
  double best_ratio = kWorthwhile;
  const auto measure = [&](int candidate, uint32_t rounds) -> absl::StatusOr<v1::Measured> {
    absl::StatusOr<v1::Measured> measured = trial.Measure(candidate, rounds);
    if (measured.ok() && measured->wrong().empty()) return measured;
    const std::string why = measured.ok() ? measured->wrong() : std::string(measured.status().message());
    if (!measured.ok()) {
      if (!IsLoss(measured.status())) return measured;
      if (++ended > kProcessesLostMax) {
        return absl::AbortedError(absl::StrCat("its candidates ended ", ended, " processes"));
      }
    }
    spdlog::info("a candidate loses: {}", why);
    record.set_lost(record.lost() + 1);
    stats_->tuning.candidates_lost++;
    v1::Measured lost;
    lost.set_wrong(why);
    return lost;
  };
  for (int candidate = 1; candidate < trial.size(); ++candidate) {
    KILN_ASSIGN_OR_RETURN(const v1::Measured measured, measure(candidate, kRounds));
    record.set_candidates(record.candidates() + 1);
    if (!measured.wrong().empty()) continue;
    record.set_default_microseconds(measured.default_microseconds());
    if (measured.ratio() >= best_ratio) continue;
    best = candidate;
    best_ratio = measured.ratio();
  }
  if (record.default_microseconds() == 0) {  // beside no rival: its time is known all the same
    KILN_ASSIGN_OR_RETURN(const v1::Measured alone, measure(0, kRounds));
    record.set_default_microseconds(alone.default_microseconds());
  }
  record.set_microseconds(record.default_microseconds());
  if (best == 0) return record;
  // The smallest of many ratios is small by luck too.
  KILN_ASSIGN_OR_RETURN(const v1::Measured measured, measure(best, kConfirmingRounds));
  if (!measured.wrong().empty() || measured.ratio() >= kWorthwhile) return record;
  *record.mutable_winner() = trial.candidates.candidates(best);
  record.set_default_microseconds(measured.default_microseconds());
  record.set_microseconds(measured.microseconds());
  return record;
}

void Tuner::Session::Begin(bool may_measure) {
  may_measure_ = may_measure;
  lacks_gpu_ = false;
  consulted_.clear();
  over_ = absl::OkStatus();
  done_ = total_ = 0;
  elsewhere_ = false;
  missing_.clear();
  facts_ = tuner_.pool_ == nullptr ? absl::UnimplementedError(tuner_.without_)
                                   : tuner_.pool_->KnownFacts(job_.target);
  if (absl::IsUnimplemented(facts_.status()) && tuner_.elsewhere_ != nullptr) LookElsewhere();
  if (!absl::IsUnavailable(facts_.status())) return;
  // Which kind of GPU it is shows when it is opened.
  lacks_gpu_ = !may_measure;
  if (!may_measure) return;
  const absl::Status leased = Lease();
  facts_ = leased.ok() ? absl::StatusOr<v1::GpuFacts>(lease_->facts()) : leased;
}

void Tuner::Session::LookElsewhere() {
  const std::string kind = WorkList::KindOf(job_.target);
  if (kind.empty()) return;
  elsewhere_ = true;
  const absl::StatusOr<v1::GpuFacts> told = tuner_.elsewhere_->Facts(job_.ns, job_.target);
  // Whatever is the matter with the tier: it is not for want of a turn on a GPU.
  facts_ =
      told.ok()
          ? told
          : absl::UnimplementedError(absl::StrCat("waits for a device of kind ", kind, ": ",
                                                  facts_.status().message(), "; ", told.status().message()));
}

void Tuner::Session::Miss(const v1::Tunable& tunable) {
  missing_[tuner_.elsewhere_->SubjectOf(job_.ns, tunable, job_.target)] = tunable;
}

std::vector<v1::Tunable> Tuner::Session::missing() const {
  std::vector<v1::Tunable> missing;
  for (const auto& [subject, tunable] : missing_) missing.push_back(tunable);
  return missing;
}

absl::Status Tuner::Session::Lease() {
  KILN_ASSIGN_OR_RETURN(lease_, tuner_.pool_->Acquire(job_.ns, job_.target, job_.abandoned));
  return absl::OkStatus();
}

void Tuner::Session::End() {
  for (auto& [key, natives] : ahead_) natives.wait();
  ahead_.clear();
  lease_ = nullptr;
}

std::string Tuner::Session::KeyOf(const v1::Tunable& tunable) const {
  return Tuner::KeyOf(job_.ns, tunable, *facts_);
}

void Tuner::Session::Consult(const Tunables& tunables) {
  std::vector<std::string> keys;
  for (const v1::Tunable& tunable : tunables) {
    std::string key = KeyOf(tunable);
    if (!known_.contains(key) && consulted_.insert(key).second) keys.push_back(std::move(key));
  }
  tuner_.records_->Consult(job_.ns, keys).IgnoreError();  // a miss
}

void Tuner::Session::EmitAhead(const v1::Tunable& tunable) {
  if (!tunable.has_gemm()) return;
  const std::string key = KeyOf(tunable);
  if (ahead_.contains(key) || known_.contains(key) || tuner_.records_->Find(job_.ns, key).ok()) return;
  ahead_[key] = job_.natives(tunable.gemm());
}

Tuner::Session::Natives Tuner::Session::NativesFor(const std::string& key, const v1::Tunable& tunable) {
  if (!tunable.has_gemm()) return {};
  const auto found = ahead_.find(key);
  if (found == ahead_.end()) return job_.natives(tunable.gemm()).get();
  Natives natives = found->second.get();
  ahead_.erase(found);
  return natives;
}

absl::StatusOr<v1::Measurement> Tuner::Session::Obtain(const std::string& key, const v1::Tunable& tunable) {
  if (consulted_.insert(key).second) tuner_.records_->Consult(job_.ns, {key}).IgnoreError();
  absl::StatusOr<v1::Measurement> stored = tuner_.records_->Find(job_.ns, key);
  if (!stored.ok() && elsewhere_) {
    Miss(tunable);
    return absl::UnimplementedError(absl::StrCat("waits for a device of kind ", WorkList::KindOf(job_.target),
                                                 ", which another daemon of the shared tier has"));
  }
  if (!stored.ok() && !may_measure_) {
    lacks_gpu_ = true;
    return absl::UnavailableError("waits for a GPU");
  }
  if (!stored.ok() && !over_.ok()) return over_;
  if (!stored.ok()) {
    if (lease_ == nullptr) KILN_RETURN_IF_ERROR(Lease());
    // Of whoever had the lease before, or of another daemon since.
    tuner_.records_->Consult(job_.ns, {key}).IgnoreError();
    stored = tuner_.records_->Find(job_.ns, key);
  }
  if (stored.ok()) {
    tuner_.stats_->tuning.reused++;
    return stored;
  }
  KILN_ASSIGN_OR_RETURN(v1::Measurement record,
                        tuner_.MeasureTunable(*lease_, tunable, NativesFor(key, tunable), job_));
  tuner_.stats_->tuning.measured++;
  return tuner_.records_->Keep(job_.ns, key, std::move(record));
}

absl::StatusOr<v1::Measurement> Tuner::Session::Measure(const v1::Tunable& tunable) {
  if (!facts_.ok() && elsewhere_) Miss(tunable);
  KILN_RETURN_IF_ERROR(facts_.status());
  const std::string key = KeyOf(tunable);
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  absl::StatusOr<v1::Measurement> record = Obtain(key, tunable);
  if (record.ok()) {
    known_[key] = *record;
  } else if (!lacks_gpu_ && !elsewhere_) {
    spdlog::info("a tunable is not measured: {}", record.status().ToString());
    if (lease_ != nullptr && lease_->over()) over_ = record.status();
  }
  return record;
}

void Tuner::Session::Tune(const Tunables& tunables, v1::Tuning* tuning) {
  if (lacks_gpu_) return;
  if (!facts_.ok()) {
    if (elsewhere_) {
      for (const v1::Tunable& tunable : tunables) Miss(tunable);
    }
    tuning->set_without(std::string(facts_.status().message()));
    return;
  }
  *tuning->mutable_gpu() = *facts_;
  Consult(tunables);
  const MonotonicTime start = MonotonicNow();
  int measured = 0;
  total_ += static_cast<uint32_t>(tunables.size());
  int next = 0;  // whose kernels were not asked for yet
  for (int k = 0; k < tunables.size(); ++k) {
    for (; may_measure_ && over_.ok() && next < std::min(tunables.size(), k + kTunablesAhead); ++next)
      EmitAhead(tunables[next]);
    absl::StatusOr<v1::Measurement> record = Measure(tunables[k]);
    if (lacks_gpu_) return;
    if (record.ok()) {
      *tuning->add_measurements() = *std::move(record);
      ++measured;
    } else {
      tuning->set_without(std::string(record.status().message()));
      if (absl::IsCancelled(record.status())) break;
    }
    job_.progress(++done_, total_);
  }
  spdlog::info("{} of {} tunables measured or known after {}", measured, tunables.size(),
               absl::FormatDuration(absl::FromChrono(MonotonicNow() - start)));
}

}  // namespace kiln
