// The shared tier's work list in the tuner's words: tunables for devices that are not here, by kind of device
// (tier_work.h has the list itself). A tunable's TuningKey takes a device's facts, which who lacks the device
// can't know; so a daemon that has one tells them, and whoever asks forms its keys by these.
//
// An item comes from another daemon, by a server that may lie. It is data: its signature, its size, its
// digests and that it is what its name says are checked here, and then it is measured as what a worker of
// this daemon has planned, in the same sandboxes.
//
// Threads: thread-safe; its functions wait for the tier, within tier_work's limits.
#pragma once

#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "cache/shared/tier_work.h"
#include "compiler/support/monotonic_time.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/record.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

class WorkList {
 public:
  // `work` outlives the list. `compiler`, the workers' fingerprint, and `policy`, how measurements are made,
  // are in the name of each list: daemons of another build have their own.
  WorkList(const TierWork* work, std::string compiler, std::string policy)
      : work_(work), compiler_(std::move(compiler)), policy_(std::move(policy)) {}

  // "sm_90"; empty where nobody else can measure for it: a CPU.
  static std::string KindOf(const v1::Target& target);
  static std::string KindOf(const v1::GpuFacts& facts);
  TierWork::List ListOf(const std::string& ns, absl::string_view kind) const;
  // What an item is about, whatever device of the kind will be found: the tunable's key by the kind alone.
  std::string SubjectOf(const std::string& ns, const v1::Tunable& tunable, const v1::Target& target) const;

  // ---- Who asks ----
  // Of the device that measures for the target's kind, as it was told lately; remembered for some seconds.
  // NOT_FOUND: nobody has told of one.
  absl::StatusOr<v1::GpuFacts> Facts(const std::string& ns, const v1::Target& target)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, as it is told now.
  absl::StatusOr<v1::GpuFacts> FactsNow(const std::string& ns, const v1::Target& target)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // INVALID_ARGUMENT for what nobody would measure: it is too large, or of no known kind.
  absl::StatusOr<TierWork::Asked> Ask(const std::string& ns, const v1::TuningItem& item) const;

  // ---- Who has the device ----
  // OK where it is this one by which the cluster's keys are formed, FAILED_PRECONDITION where it is another.
  absl::Status Tell(const std::string& ns, const v1::GpuFacts& facts) const;
  // What is to be measured.
  struct Work {
    v1::Tunable tunable;
    v1::Target target;
    std::string kernel;  // of a kernel: serialized v1.Kernel
  };
  struct Claimed {
    TierWork::Claimed claim;
    absl::StatusOr<Work> work = absl::UnknownError("none");  // or why nobody measures it
  };
  absl::StatusOr<std::optional<Claimed>> Claim(const TierWork::List& list) const;

  const TierWork& tier() const { return *work_; }

 private:
  absl::StatusOr<Work> Checked(const TierWork::List& list, const TierWork::Claimed& claim) const;
  absl::StatusOr<std::string> KernelOf(const v1::TuningItem& item) const;

  const TierWork* const work_;
  const std::string compiler_;
  const std::string policy_;

  struct Known {
    absl::StatusOr<v1::GpuFacts> facts = absl::UnknownError("not asked");
    MonotonicTime until;
  };
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Known> known_ ABSL_GUARDED_BY(mutex_);  // by namespace and kind
};

}  // namespace kiln
