// Makes matrix products of small convolutions of one point on a CPU, where images lie by points (channels
// last): the image is the product's left matrix as it lies, and the weights need not be laid anew, which
// oneDNN does at each call. Runs after PreferChannelsLast. Errors: none.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status MultiplyPointConvolutions(Graph& graph);

}  // namespace kiln
