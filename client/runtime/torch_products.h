// torch's operators that are matrix products as they stand (those gemms of compiler/library's table that fill
// memory they are given, and 1×1 convolutions), by cuBLASLt.
//
// A call that is no such product (another dtype, a layout without a unit stride, a broadcast that is no bias,
// precision settings it can't follow) is not done, and left to ATen. Threads: any number at once. The host
// and the products outlive it.
#pragma once

#include <memory>
#include <string>

#include "client/runtime/cublas_lt_gemms.h"
#include "client/runtime/host.h"
#include "client/runtime/torch_precision.h"

namespace kiln::runtime {

class TorchProducts {
 public:
  TorchProducts(Host& host, const TorchPrecision& precision, MatrixProducts& products)
      : host_(host), precision_(precision), products_(products) {}

  // As Host::NewMemoryCall; it outlives the calls.
  std::unique_ptr<MemoryCall> NewCall(const std::string& target, bool fixed);

 private:
  class Call;

  Host& host_;
  const TorchPrecision precision_;
  MatrixProducts& products_;
};

}  // namespace kiln::runtime
