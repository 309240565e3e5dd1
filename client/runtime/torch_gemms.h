// torch's operators that are gemms as they stand (those gemms of compiler/library's table that fill
// memory they are given, and 1×1 convolutions), by cuBLASLt.
//
// A call that is no such gemm (another dtype, a layout without a unit stride, a broadcast that is no bias,
// precision settings it can't follow) is not done, and left to ATen. Threads: any number at once. The host
// and the gemms outlive it.
#pragma once

#include <memory>

#include "client/runtime/cublas_lt_gemms.h"
#include "client/runtime/host.h"
#include "client/runtime/torch_precision.h"

namespace kiln::runtime {

class TorchGemms {
 public:
  TorchGemms(Host& host, const TorchPrecision& precision, Gemms& gemms)
      : host_(host), precision_(precision), gemms_(gemms) {}

  // As Host::NewMemoryCall; it outlives the calls.
  std::unique_ptr<MemoryCall> NewCall(const OperatorName& target, bool fixed);

 private:
  class Call;

  Host& host_;
  const TorchPrecision precision_;
  Gemms& gemms_;
};

}  // namespace kiln::runtime
