// A convolution of images, or one of its gradients, as a tunable, with cuDNN's plans for candidates.
//
// The default agrees with sums in double on the CPU at sampled elements; a candidate's result agrees with the
// default's wherever Operand::Read reads it. The rest as Bench.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/runtime/cudnn_convolutions.h"
#include "client/tuner/bench.h"
#include "client/tuner/gpu.h"
#include "client/tuner/operand.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::tuner {

class ConvolutionBench : public Bench {
 public:
  // Fills the operands. `gpu` and `convolutions` outlive it.
  static absl::StatusOr<std::unique_ptr<Bench>> Create(const v1::Convolution& convolution, Gpu& gpu,
                                                       runtime::Convolutions& convolutions);

  absl::StatusOr<v1::Candidates> List() override;

 protected:
  absl::Status Choose(const v1::Candidate& candidate) override;
  absl::Status Run(bool candidate) override;
  absl::StatusOr<std::string> Difference() override;
  absl::Status CheckIntact() const override;

 private:
  using Dims = std::array<int64_t, 4>;
  struct Images {
    Dims sizes, strides;
    std::optional<Operand> operand;
  };

  ConvolutionBench(Gpu& gpu, runtime::Convolutions& convolutions) : Bench(gpu), convolutions_(convolutions) {}
  absl::Status Describe(const v1::Convolution& description);
  absl::Status Fill(Images& images, uint64_t seed, runtime::TensorMemory* memory);
  Images& result();
  // After it was written over other bytes.
  absl::StatusOr<std::string> ResultOf(bool candidate);
  absl::Status CheckDefault();
  // The result's element at `at`, and how large sums of its length are by chance.
  double Sum(const Dims& at, double* magnitude) const;
  double Tolerance(double magnitude) const;
  int64_t Depth() const;

  runtime::Convolutions& convolutions_;
  runtime::Convolution convolution_;
  runtime::CallContext call_;
  Images input_, weight_, output_;
  std::optional<GpuBuffer> workspace_;
  std::vector<runtime::Convolutions::Offer> offers_;  // the default first
  size_t chosen_ = 0;
  std::string reference_;  // the default's result
};

}  // namespace kiln::tuner
