// The gemm that the runtime gives to cuBLASLt as it stands, of a program's library call
// (program_calls.h).
//
// It counts if every size and stride of it is fixed, and is described by what the runtime will see of it
// (client/runtime/tuned_gemms.h); 1×1 convolutions are such gemms. Precision of gemms is as
// at compile time, the rest as torch has it unless told otherwise. One that the runtime sees otherwise runs
// by cuBLASLt's own choice. Threads: pure function.
#pragma once

#include <optional>

#include "compiler/graph/graph.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

std::optional<v1::Gemm> GemmTunableOf(const Graph& calls, const GraphNode& call,
                                      const v1::Numerics& numerics);

}  // namespace kiln
