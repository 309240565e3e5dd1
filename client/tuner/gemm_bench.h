// A gemm as a tunable, with cuBLASLt's algorithms for candidates, and kernels of our own that the
// request brings. A candidate must not write to the gaps between rows. The rest as LibraryBench.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/runtime/cublas_lt_gemms.h"
#include "client/runtime/tuned_gemms.h"
#include "client/tuner/bench.h"
#include "client/tuner/gpu.h"
#include "client/tuner/library_bench.h"
#include "client/tuner/operand.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::tuner {

class GemmBench : public LibraryBench {
 public:
  // Fills the operands. `gpu` and `gemms` outlive it.
  static absl::StatusOr<std::unique_ptr<Bench>> Create(const v1::Gemm& gemm, Gpu& gpu, runtime::Gemms& gemms);

 private:
  GemmBench(Gpu& gpu, runtime::Gemms& gemms) : LibraryBench(gpu, "cuBLASLt"), gemms_(gemms) {}
  absl::Status Allocate(const v1::Gemm& description);
  absl::StatusOr<v1::Candidates> Find() override;
  absl::Status Choose(const v1::Candidate& candidate) override;
  absl::Status Run(bool candidate) override;
  double Sum(const Dims& at, double* magnitude) const override;
  double Activated(double sum) const;

  runtime::Gemms& gemms_;
  runtime::Gemm gemm_;
  Operand *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *bias_ = nullptr;
  using Way = runtime::TunedGemms::Choice;
  v1::Gemm description_;
  Way default_, chosen_;
};

}  // namespace kiln::tuner
