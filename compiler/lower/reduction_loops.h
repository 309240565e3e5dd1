// Reductions as loops. A reduction to few elements over a large domain runs in fixed chunks and a second
// pass: it is parallel, and its bits do not depend on the number of threads.
//
// Functions on a LoweringContext, which keeps their errors.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "compiler/lower/lowering_context.h"

namespace kiln {

using ValueFn = absl::FunctionRef<LoopOpId(LoopRecorder&, LoopOpId)>;

struct Reduction {
  v1::ReduceKind kind = v1::REDUCE_SUM;
  v1::DType compute = v1::F32;
  std::vector<ExprId> inner_sizes;
  bool may_split = true;  // not for ARGMAX, ARGMIN
  bool gemm = false;      // LoopNode::gemm
};

// A reduction into a buffer of `type`, whose dimensions are those that are not reduced (a dimension of size 1
// that `keepdim` left costs nothing). `value` gives the element in `compute`; `finish` turns the reduced
// value into the result.
LoweredTensor Reduce(LoweringContext& context, const TensorType& type, const Reduction& reduction,
                     InnerFn value, ValueFn finish);

}  // namespace kiln
