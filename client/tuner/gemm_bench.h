// A gemm as a tunable, with cuBLASLt's algorithms for candidates, and kernels of our own that the
// request brings.
//
// The default agrees with sums in double on the CPU at sampled elements; a candidate's result agrees with the
// default's at every element that Operand::Read reads and leaves what lies between the rows alone. The rest
// as Bench.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/runtime/cublas_lt_gemms.h"
#include "client/runtime/tuned_gemms.h"
#include "client/tuner/bench.h"
#include "client/tuner/gpu.h"
#include "client/tuner/operand.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::tuner {

class GemmBench : public Bench {
 public:
  // Fills the operands. `gpu` and `gemms` outlive it.
  static absl::StatusOr<std::unique_ptr<Bench>> Create(const v1::Gemm& gemm, Gpu& gpu, runtime::Gemms& gemms);

  absl::StatusOr<v1::Candidates> List() override;

 protected:
  absl::Status Choose(const v1::Candidate& candidate) override;
  absl::Status Run(bool candidate) override;
  absl::StatusOr<std::string> Difference() override;
  absl::Status CheckIntact() const override;

 private:
  GemmBench(Gpu& gpu, runtime::Gemms& gemms) : Bench(gpu), gemms_(gemms) {}
  absl::Status Allocate(const v1::Gemm& description);
  // After it was written over other bytes.
  absl::StatusOr<std::string> ResultOf(bool candidate);
  absl::Status CheckDefault() const;
  double Activated(double sum) const;
  double Tolerance(double magnitude) const;

  runtime::Gemms& gemms_;
  runtime::Gemm gemm_;
  runtime::CallContext call_;
  std::optional<Operand> a_, b_, c_, d_, bias_;
  std::optional<GpuBuffer> workspace_;
  using Way = runtime::TunedGemms::Choice;
  v1::Gemm description_;
  Way default_, chosen_;
  std::string reference_;  // the default's result
};

}  // namespace kiln::tuner
