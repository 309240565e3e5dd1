// Python's rules for slice and select positions, on symbolic sizes. Internal to compiler/lower.
#pragma once

#include "compiler/graph/expr.h"

namespace kiln {

// A slice bound: wrapped once if negative, then clamped to [0, size].
ExprId ClampedIndex(ExprPool& exprs, ExprId index, ExprId size);

// A select index: wrapped once if negative. A symbolic index of unknown sign chooses when it runs.
ExprId WrappedIndex(ExprPool& exprs, ExprId index, ExprId size);

}  // namespace kiln
