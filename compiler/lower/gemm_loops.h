// A gemm as a loop of our own, where library/choice has it as a kernel: a sum of products at each point of d,
// which fuses with what follows at that point. What is added is so in F32, before the sum is rounded. A
// factor that is not in memory is made where it is read, if that is cheap: what many rows or columns share is
// made for each of them.
//
// Errors: the context's.
#pragma once

#include "absl/status/status.h"
#include "compiler/library/gemm.h"
#include "compiler/lower/lowering_context.h"

namespace kiln {

// Puts into memory what will not be made where it is read. Whether it lies there as it was traced, by which
// the gemm was chosen.
bool PlaceFactors(LoweringContext& context, const Gemm& gemm);
// Where it does.
absl::Status LowerGemmByLoops(LoweringContext& context, const GraphNode& node, const Gemm& gemm);

}  // namespace kiln
