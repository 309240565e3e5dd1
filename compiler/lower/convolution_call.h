// Convolutions: a library call, and on a GPU what belongs around it.
//
// On a GPU the bias is added by a loop of ours, which fuses with what follows (ATen launches a kernel for
// it), images whose result is declared channels-last go to the library channels-last with their
// weights. What library/choice has as a kernel (a window a channel) is a loop of its own; what it has on
// patches becomes a 1×1 convolution over them, which the runtime does as a gemm. On the CPU a convolution is
// a plain library call, of an image in the result's layout. Errors: those of the context.
#pragma once

#include "absl/status/status.h"
#include "compiler/lower/lowering_context.h"

namespace kiln {

absl::Status LowerConvolution(LoweringContext& context, const GraphNode& node);
// Images and weights go to the library channels-last where a gradient is declared so.
absl::Status LowerConvolutionBackward(LoweringContext& context, const GraphNode& node);

}  // namespace kiln
