// Pass: on a GPU, a matrix product (with or without a bias) and the ReLU or the GELU by tanh of it, with or
// without a view between them, as one _addmm_activation, which cuBLASLt does in the product's own kernel.
//
// GELU is recognised as what decomposition leaves of it and as models write it out (transformers' gelu_new
// and gelu_fast), up to the order of factors and terms; the one by erf is no function of cuBLASLt's. Nothing
// else reads the product, and the activated values are needed in memory: what only kernels of our own read is
// computed there for nothing. The product is not rounded before the activation. Types: F32, F16, BF16; GELU
// in F32 only where `tf32` allows rounding factors, for cuBLASLt's is four times as far from the exact value
// as eager's (6e-6 at values of 4). Errors: none.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status FuseActivation(Graph& graph, bool tf32);

}  // namespace kiln
