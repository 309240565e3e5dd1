// The convolutions of images that the runtime gives to cuDNN as they stand, of a program's library call
// (program_calls.h): one, or a gradient or two of it.
//
// They count if every size and stride is fixed, and are described by what the runtime will see of them
// (client/runtime/tuned_convolutions.h). What the runtime makes a gemm of is none. Precision is as
// torch has it unless told otherwise; one that the runtime sees otherwise runs by cuDNN's first plan.
// Threads: pure function.
#pragma once

#include <vector>

#include "compiler/graph/graph.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

std::vector<v1::Convolution> ConvolutionsOf(const Graph& calls, const GraphNode& call,
                                            const v1::Numerics& numerics);

}  // namespace kiln
