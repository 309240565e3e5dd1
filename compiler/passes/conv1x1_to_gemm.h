// Makes gemms of 1×1 convolutions on a CPU, where images are channels-last:
// the image is the gemm's left matrix as it is stored, and the weights need not be reordered, which oneDNN
// does at each call of a convolution. Gemms of ATen's own (MKL's) are made of small ones only; of oneDNN's
// (cost::PaysOnednn, and pass gemm_to_onednn makes them) of all but large images with few weights, at which a
// convolution is as fast. Runs after PreferChannelsLast. Errors: none.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"
#include "compiler/target/machine.h"

namespace kiln {

absl::Status Conv1x1ToGemm(Graph& graph, const Machine& machine);

}  // namespace kiln
