// Pass: pads the matrices of gemms that want it (library/choice: large ones of F16 and BF16 on a GPU) to rows
// of whole 16 bytes, and cuts the result: the libraries' fast kernels read and write nothing narrower (a
// vocabulary of 50,257 makes a gemm six times as slow). Zeros in the summed dimension add nothing. Runs after
// FuseBias. Errors: none.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"
#include "compiler/target/machine.h"

namespace kiln {

absl::Status PadGemmRows(Graph& graph, const Machine& machine);

}  // namespace kiln
