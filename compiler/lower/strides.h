// Layout predicates on symbolic sizes and strides: true where it can be proved. A dimension of size 1 may
// have any stride.
//
// Of a type before it is lowered, passes/types.h asks the same, but takes a dimension that may be empty for
// one of size 1, as torch's strides do.
//
// Pure functions of an ExprPool, which gains expressions. Threads: none shared. Errors: none.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "compiler/graph/expr.h"
#include "compiler/graph/graph.h"
#include "compiler/lower/loop_graph.h"

namespace kiln {

// A dimension is known to have no element.
bool IsEmpty(ExprPool& exprs, const std::vector<ExprId>& sizes);

// The dimensions other than size 1 from innermost outwards, when the strides are those of a dense
// tensor in some order of its dimensions.
std::optional<std::vector<size_t>> DenseOrder(ExprPool& exprs, const std::vector<ExprId>& sizes,
                                              const std::vector<ExprId>& strides);

// Without a gap in some order of the dimensions, or without an element.
bool IsDense(ExprPool& exprs, const std::vector<ExprId>& sizes, const std::vector<ExprId>& strides);

// The same strides but along dimensions of size 1, where they do not matter.
bool SameLayout(ExprPool& exprs, const std::vector<ExprId>& sizes, const std::vector<ExprId>& a,
                const std::vector<ExprId>& b);

// Two elements are known to share a place: steps along two dimensions meet. Zero strides do not count.
bool OverlapsItself(ExprPool& exprs, const std::vector<ExprId>& sizes, const std::vector<ExprId>& strides);

// The strides of a buffer of the tensor's own: as declared where that is dense, else row-major.
std::vector<ExprId> PreferredStrides(ExprPool& exprs, const TensorType& type);

// Elements from the first to behind the last; none where a dimension has none.
ExprId SpanOfElements(ExprPool& exprs, const std::vector<ExprId>& sizes, const std::vector<ExprId>& strides);

// The offset in its buffer of the window's element at `index`.
ExprId FlatIndex(ExprPool& exprs, const BufferView& view, absl::Span<const ExprId> index);

}  // namespace kiln
