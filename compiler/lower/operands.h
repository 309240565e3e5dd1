// What an operator computes with: tensors and numbers, at an index of its result and in one dtype.
//
// Functions on a LoweringContext. Errors: the recorder's, of an operand that is undefined or neither.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "compiler/lower/lowering_context.h"

namespace kiln {

// A tensor or scalar argument as an operand, cast to the compute type of `dtype`. A tensor is broadcast from
// `index` over a tensor of sizes `sizes`.
LoopOpId Operand(LoweringContext& context, LoopRecorder& ops, const Argument& argument, Index index,
                 const std::vector<ExprId>& sizes, v1::DType dtype);

// ATen's result_type over the tensor and scalar arguments; absent ones are null.
v1::DType PromotedType(const LoweringContext& context, absl::Span<const Argument* const> arguments);

}  // namespace kiln
