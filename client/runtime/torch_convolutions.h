// torch's convolutions of images and their gradients, by cuDNN.
//
// What ATen would not hand to cuDNN as it stands (another dtype, layouts that differ, a bias, transposed
// convolutions, a window for each channel in row-major order, benchmarking) is not done, and left to ATen.
// Threads: any number at once. The host and the convolutions outlive it.
#pragma once

#include <memory>

#include "client/runtime/cudnn_convolutions.h"
#include "client/runtime/host.h"
#include "client/runtime/torch_precision.h"

namespace kiln::runtime {

class TorchConvolutions {
 public:
  TorchConvolutions(Host& host, const TorchPrecision& precision, Convolutions& convolutions)
      : host_(host), precision_(precision), convolutions_(convolutions) {}

  // As Host::NewMemoryCall; it outlives the calls.
  std::unique_ptr<MemoryCall> NewCall(const OperatorName& target);

 private:
  class Call;

  bool Forward(const CallArguments& a, const MemoryResults& results, CallContext& context);
  bool Backward(const CallArguments& a, const MemoryResults& results, CallContext& context);
  bool Settle(const CallArguments& a, Convolution& convolution, CallContext& context) const;
  bool Run(const Convolution& convolution, CallContext& context);
  bool Make(Convolution& convolution, TensorMemory& result, Tensor* made, CallContext& context);

  Host& host_;
  const TorchPrecision precision_;
  Convolutions& convolutions_;
};

}  // namespace kiln::runtime
