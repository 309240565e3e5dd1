// Reshapes: which dimensions of one shape correspond to which of the other, and whether the result is a view.
//
// Pure functions of an ExprPool, which gains expressions. Threads: none shared. Errors: none.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "compiler/graph/expr.h"
#include "compiler/lower/loop_graph.h"

namespace kiln {

// Dimensions of one shape that hold the same elements as those of another, in row-major order.
struct ReshapeGroup {
  std::vector<size_t> from;
  std::vector<size_t> to;
};

// Cuts both shapes wherever their prefix products agree; dimensions of size 1 are in no group. False when
// their element counts are known to differ.
bool GroupDims(ExprPool& exprs, const std::vector<ExprId>& from_sizes, const std::vector<ExprId>& to_sizes,
               std::vector<ReshapeGroup>* groups);

// The window with these sizes, if each group of merged dimensions is contiguous in itself.
std::optional<BufferView> ReshapedWindow(ExprPool& exprs, const BufferView& base,
                                         const std::vector<ExprId>& sizes);

}  // namespace kiln
