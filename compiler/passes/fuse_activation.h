// Pass: a gemm (with or without a bias) and the ReLU or the GELU by tanh of it, with or without a view
// between them, as one _addmm_activation, where the library does it in the gemm's own kernel
// (library/choice).
//
// GELU is recognised as what decomposition leaves of it and as models write it out (transformers' gelu_new
// and gelu_fast), up to the order of factors and terms; the one by erf is no function of cuBLASLt's. Nothing
// else reads the gemm, and the activated values are needed in memory: what only kernels of our own read is
// computed there for nothing. The gemm is not rounded before the activation. Errors: none.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"
#include "compiler/target/machine.h"

namespace kiln {

absl::Status FuseActivation(Graph& graph, const Machine& machine);

}  // namespace kiln
