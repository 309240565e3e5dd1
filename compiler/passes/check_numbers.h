// Pass: refuses Python numbers that eager refuses to convert, and those outside of what an operator is
// defined for, INVALID_ARGUMENT by the operator's name and the number. The client then runs the graph by
// PyTorch, whose operator raises its own error. That an extreme is of some elements, where only a call knows
// how many there are, becomes a condition.
//
// Operators that are not in the table compute with a number as it is (comparisons, sums, products wrap), or
// are library calls, which look for themselves. To add one: a row, and a case in
// tests/integration/test_integers_and_numbers.py.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status CheckNumbers(Graph& graph);

}  // namespace kiln
