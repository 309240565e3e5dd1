// A convolution of images, or one of its gradients, as a tunable, with cuDNN's plans for candidates.
// The rest as LibraryBench.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/runtime/cudnn_convolutions.h"
#include "client/tuner/bench.h"
#include "client/tuner/gpu.h"
#include "client/tuner/library_bench.h"
#include "client/tuner/operand.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::tuner {

class ConvolutionBench : public LibraryBench {
 public:
  // Fills the operands. `gpu` and `convolutions` outlive it.
  static absl::StatusOr<std::unique_ptr<Bench>> Create(const v1::Convolution& convolution, Gpu& gpu,
                                                       runtime::Convolutions& convolutions);

 private:
  struct Images {
    Dims sizes, strides;
    Operand* operand = nullptr;
  };

  ConvolutionBench(Gpu& gpu, runtime::Convolutions& convolutions)
      : LibraryBench(gpu, "cuDNN"), convolutions_(convolutions) {}
  absl::Status Describe(const v1::Convolution& description);
  absl::Status Fill(Images& images, runtime::TensorMemory* memory);
  const Images& Written() const;
  int64_t Depth() const;
  absl::StatusOr<v1::Candidates> Find() override;
  absl::Status Choose(const v1::Candidate& candidate) override;
  absl::Status Run(bool candidate) override;
  double Sum(const Dims& at, double* magnitude) const override;

  runtime::Convolutions& convolutions_;
  runtime::Convolution convolution_;
  Images input_, weight_, output_;
  std::vector<runtime::Convolutions::Offer> offers_;  // the default first
  size_t chosen_ = 0;
};

}  // namespace kiln::tuner
