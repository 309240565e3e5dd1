// The cuBLASLt gemm of a program's library call (program_calls.h).
//
// Only one with fixed sizes and strides, described exactly as the runtime describes it
// (client/runtime/tuned_gemms.h); 1×1 convolutions are such gemms. Precision of gemms is that of compile
// time, the rest torch's default: where a process sets another, the gemm runs by cuBLASLt's own choice.
// Threads: pure function.
#pragma once

#include <optional>

#include "compiler/graph/graph.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

std::optional<v1::Gemm> GemmTunableOf(const Graph& calls, const GraphNode& call,
                                      const v1::Numerics& numerics);

}  // namespace kiln
