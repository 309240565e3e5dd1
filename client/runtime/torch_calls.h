// Library calls by typed functions of the shim: gemms, convolutions, attention, what finds and takes
// places.
//
// What is not done (this torch has no such function, arguments of another kind, an error of torch's) has made
// no result: Python's call does it, or finds the error. Threads: any number at once. The host and the shim
// outlive it.
#pragma once

#include "absl/types/span.h"
#include "client/runtime/host.h"
#include "client/runtime/torch_shim.h"

namespace kiln::runtime {

class TorchCalls {
 public:
  TorchCalls(Host& host, const TorchShim& shim) : host_(host), shim_(shim) {}

  static bool Knows(const OperatorName& target);
  // Whether it is done; arguments and results as in Host::Call.
  bool Call(const OperatorName& target, const CallArguments& arguments, absl::Span<Tensor> results,
            bool into);

 private:
  class Typed;

  Host& host_;
  const TorchShim& shim_;
};

}  // namespace kiln::runtime
