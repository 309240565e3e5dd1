// Which operators are views: each one's result is an index map of its argument. Internal to compiler/lower.
#pragma once

#include "compiler/graph/graph.h"

namespace kiln {

bool IsViewOp(const OperatorName& target);

}  // namespace kiln
