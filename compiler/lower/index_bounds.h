// The bounds of an index. Threads: none shared. Errors: none.
#pragma once

#include <optional>

#include "compiler/graph/expr.h"

namespace kiln {

// Its least and greatest value over its loops: exact, since it is linear in every variable.
struct IndexBounds {
  ExprId least, most;
};

// nullopt where the index is not linear, or a coefficient may have either sign. Meaningless when one of
// the loops runs over nothing.
std::optional<IndexBounds> BoundsOf(ExprPool& exprs, ExprId index);

// 0 <= index < size over all loops of `index`, or one of its loops runs over nothing; nullopt as above.
std::optional<ExprId> IsInBounds(ExprPool& exprs, ExprId index, ExprId size);

}  // namespace kiln
