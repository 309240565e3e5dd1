// Views as maps from the index of a view's element to the index of the viewed tensor's: strided windows where
// the tensor is in memory and the map is affine, else virtual values.
//
// Functions on a LoweringContext, which keeps their errors: of a view that does not fit they give the base.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "compiler/lower/lowering_context.h"

namespace kiln {

// From the index of a view's element to that of the viewed tensor's.
using IndexMap = absl::FunctionRef<std::vector<ExprId>(Index)>;

// The elements of `base` at mapped indices, not in memory.
LoweredTensor MapIndex(LoweringContext& context, const LoweredTensor& base, const TensorType& type,
                       IndexMap map);

// Every base index is `start` plus a multiple of some result indices: stays strided if it is.
struct AffineMap {
  struct From {
    size_t dim;  // of the base
    ExprId step;
  };
  std::vector<ExprId> start;                       // by base dimension
  std::vector<absl::InlinedVector<From, 2>> dims;  // by result dimension; empty: not used
};
LoweredTensor Affine(LoweringContext& context, const LoweredTensor& base, const TensorType& type,
                     const AffineMap& map);

// The value's elements in row-major order, in another shape. Where that would leave a division in an index, a
// base that is not in memory gets a buffer, and others are copied.
LoweredTensor Reshape(LoweringContext& context, ValueId id, const TensorType& type);

}  // namespace kiln
