// The cuDNN convolutions of a library call (program_calls.h): the convolution itself, or one or two of its
// gradients.
//
// Only those with fixed sizes and strides, described exactly as the runtime describes them
// (client/runtime/tuned_convolutions.h); what the runtime runs as a gemm is left out. Precision is torch's
// default: where a process sets another, the convolution runs by cuDNN's first plan. Threads: pure function.
#pragma once

#include <vector>

#include "compiler/graph/graph.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

std::vector<v1::Convolution> ConvolutionsOf(const Graph& calls, const GraphNode& call,
                                            const v1::Numerics& numerics);

}  // namespace kiln
