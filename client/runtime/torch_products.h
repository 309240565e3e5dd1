// torch's operators that are matrix products as they stand (mm, addmm, bmm, baddbmm, 1×1 convolutions), by
// cuBLASLt.
//
// A call that is no such product (another dtype, a layout without a unit stride, a broadcast that is no bias,
// precision settings it can't follow) is not done, and left to ATen. Threads: any number at once. The host
// and the products outlive it.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "client/runtime/host.h"
#include "client/runtime/matrix_products.h"
#include "client/runtime/torch_precision.h"

namespace kiln::runtime {

class TorchProducts {
 public:
  TorchProducts(Host& host, const TorchPrecision& precision, MatrixProducts& products)
      : host_(host), precision_(precision), products_(products) {}

  // Whether the call is done. Arguments and results as in Host::Call.
  bool Call(const std::string& target, const CallArguments& arguments, absl::Span<Tensor> results, bool into);

 private:
  using Method = bool (TorchProducts::*)(const CallArguments&, absl::Span<Tensor>, bool);

  bool Mm(const CallArguments& a, absl::Span<Tensor> r, bool into);
  bool Addmm(const CallArguments& a, absl::Span<Tensor> r, bool into);
  bool Baddbmm(const CallArguments& a, absl::Span<Tensor> r, bool into);
  bool Convolution(const CallArguments& a, absl::Span<Tensor> r, bool into);

  bool Multiply(Tensor a, Tensor b, Tensor c, double alpha, double beta, Tensor d);
  bool Run(Product& product, bool convolution);
  bool MatrixOf(Tensor tensor, int64_t batch, Matrix* matrix) const;

  Host& host_;
  const TorchPrecision precision_;
  MatrixProducts& products_;
};

}  // namespace kiln::runtime
