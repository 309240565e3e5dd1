// torch's operators that are matrix products as they stand (mm, addmm, bmm, baddbmm, 1×1 convolutions), by
// cuBLASLt.
//
// A call that is no such product (another dtype, a layout without a unit stride, a broadcast that is no bias,
// precision settings it can't follow) is not done, and left to ATen. Threads: any number at once. The host
// and the products outlive it.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "client/runtime/host.h"
#include "client/runtime/matrix_products.h"
#include "client/runtime/torch_precision.h"

namespace kiln::runtime {

class TorchProducts {
 public:
  TorchProducts(Host& host, const TorchPrecision& precision, MatrixProducts& products)
      : host_(host), precision_(precision), products_(products) {}

  static bool Knows(const std::string& target);
  // As Host::CallInMemory.
  bool Call(const std::string& target, const CallArguments& arguments, const MemoryResults& results,
            CallContext& context);

 private:
  struct Results {
    const TensorMemory* into;  // nullptr: made
    Tensor* made;
    CallContext& context;
  };
  using Method = bool (TorchProducts::*)(const CallArguments&, const Results&);
  static const absl::flat_hash_map<std::string, Method>& Methods();

  bool Mm(const CallArguments& a, const Results& r);
  bool Addmm(const CallArguments& a, const Results& r);
  bool AddmmActivation(const CallArguments& a, const Results& r);
  bool Baddbmm(const CallArguments& a, const Results& r);
  bool Convolution(const CallArguments& a, const Results& r);

  bool Add(const CallArguments& a, absl::string_view first, absl::string_view second,
           v1::Activation activation, const Results& r);
  bool Multiply(const TensorMemory* a, const TensorMemory* b, const TensorMemory* c, Product& product,
                const Results& r);
  bool Run(Product& product, bool convolution, CallContext& context);

  Host& host_;
  const TorchPrecision precision_;
  MatrixProducts& products_;
};

}  // namespace kiln::runtime
