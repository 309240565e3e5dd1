// Pass: a gemm and a bias along its columns, with or without a view between them, as one addmm.
//
// torch writes a linear layer on an input that is not contiguous as mm, view and add, where the sum reads and
// writes the gemm once more. Operands, bias and sum have one float dtype, nothing else reads the gemm,
// and the bias is there before it. A bias that is computed channels-last stays in the sum's kernel, for it
// would need one of its own. The addmm rounds once what gemm and sum rounded each. Errors: none.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status FuseBias(Graph& graph);

}  // namespace kiln
