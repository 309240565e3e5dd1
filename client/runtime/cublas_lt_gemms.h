// Gemms by cuBLASLt, each kind planned once.
//
// A plan (descriptors and the algorithm: the one that was measured to be best, or that cuBLASLt's heuristic
// names; or a kernel of our own that was measured to be better) is kept by what decides it: device, dtype,
// sizes, strides, alignment, epilogue, precision. A call with a known plan sets the bias' address and
// launches; a step of a program keeps its own plan (Memo), without a look at sizes where those are fixed.
// `activation(alpha * a b + beta * c + bias)` on the
// caller's stream; works while a CUDA graph is captured.
//
// Ownership: operands and workspace are borrowed for the call; work on the stream may still use them after it
// returns. Threads: any number at once, each with the call's context current (CallContext). Errors: none of
// its own; what cuBLASLt or this class can't do is not done.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "client/runtime/cublas_lt.h"
#include "client/runtime/host.h"
#include "kiln/v1/graph.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::runtime {

// Element (i, j) of matrix b of a batch is at data + b * batch_stride + i * row_stride + j * column_stride.
struct Matrix {
  void* data = nullptr;
  int64_t rows = 0, columns = 0;
  int64_t row_stride = 0, column_stride = 0;
  int64_t batch_stride = 0;
};

struct Gemm {
  v1::DType dtype = v1::F32;  // of every operand
  int64_t batch = 1;
  Matrix a, b, d;
  Matrix c;              // no data: none
  void* bias = nullptr;  // one element a column of d, beside each other
  double alpha = 1, beta = 0;
  v1::Activation activation = v1::ACTIVATION_NONE;
  bool tf32 = false;                  // F32 may be rounded to TF32 before it is multiplied
  bool reduced_sums = true;           // partial sums of F16 and BF16 may be added in that type
  bool one_launch = false;            // rather than sums in pieces, where the library can
  const TunedGemms* tuned = nullptr;  // borrowed for the call
};

class Gemms {
 public:
  // `bytes` of the device's memory that later work on the call's stream may overwrite, nullptr when there is
  // none.
  using Workspace = absl::FunctionRef<void*(size_t bytes)>;

  explicit Gemms(const CublasLt& library) : library_(library) {}
  ~Gemms();

  // What a step of a program keeps of its gemm from run to run; one thread's at a time. `fixed`: gemms
  // of this memo differ in what a SettingOf holds, in addresses and in factors alone.
  class Memo;

  // Whether the gemm is on its way; false leaves `d` untouched.
  bool Run(const Gemm& gemm, const CallContext& call, Workspace workspace, Memo* memo = nullptr);

  // What the library offers for the gemm, at most `wanted` and the one that Run takes first; empty where
  // it can't be done. RunAs is Run by one of them.
  std::vector<CublasLt::Heuristic> Algorithms(const Gemm& gemm, const CallContext& call, int wanted);
  bool RunAs(const Gemm& gemm, const CublasLt::Heuristic& algorithm, const CallContext& call,
             Workspace workspace);

  uint64_t version() const { return library_.version(); }
  size_t plan_count() const;
  // Plans of this process that follow a measurement.
  static uint64_t TunedPlans();

 private:
  struct Plan;
  struct Problem;
  struct Preference;
  using Key = std::array<int64_t, 6 + 4 * 3>;

  // What may change from run to run of a step whose sizes are fixed, and decides a plan: device, precision,
  // alignments.
  static int64_t SettingOf(const Gemm& gemm, int32_t device);
  static bool Pose(const Gemm& gemm, int32_t device, Problem* problem);
  std::shared_ptr<Plan> PlanOf(const Problem& problem, const Gemm& gemm, int32_t device);
  bool Renew(Memo& memo, int64_t setting, const Gemm& gemm, int32_t device);
  std::shared_ptr<Plan> Prepare(const Problem& problem, const Gemm& gemm, CublasLt::Handle handle) const;
  bool Choose(Plan& plan, const Problem& problem, const Gemm& gemm) const;
  bool Ask(const Plan& plan, const Problem& problem, const Gemm& gemm, const Preference& preference,
           std::vector<CublasLt::Heuristic>* found) const;
  bool SetEpilogue(const Plan& plan, const Gemm& gemm) const;
  int32_t SplitsOf(const CublasLt::Heuristic& algorithm) const;
  // The algorithm with the workspace that it takes, if it does this gemm.
  bool Check(const Plan& plan, CublasLt::Heuristic* algorithm) const;
  void ChooseTuned(Plan& plan, const Problem& problem, const Gemm& gemm) const;
  bool Launch(Plan& plan, const Gemm& gemm, const CublasLt::Heuristic& algorithm, const CallContext& call,
              Workspace workspace) const;
  CublasLt::Handle HandleOf(int32_t device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CublasLt library_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<Key, std::shared_ptr<Plan>> plans_ ABSL_GUARDED_BY(mutex_);  // nullptr: can't be done
  absl::flat_hash_map<int32_t, CublasLt::Handle> handles_ ABSL_GUARDED_BY(mutex_);
};

class Gemms::Memo {
 public:
  explicit Memo(bool fixed) : fixed_(fixed) {}

 private:
  friend class Gemms;

  const bool fixed_;
  int64_t setting_ = 0;
  std::shared_ptr<Plan> plan_;  // shared with plans_, which may forget it; nullptr: none yet
  Key key_;                     // of the plan, when there is one
};

}  // namespace kiln::runtime
