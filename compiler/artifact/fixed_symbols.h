// Symbols that the graph's own guards fix: `64*s1 == 64*s1 + 64*s2` makes s2 the constant 0, and
// `s3 == s1` makes s3 another name of s1. Sizes are rewritten with it, so that views can be resolved and
// loops merged; the guards stay, so nothing is assumed that is not checked.
//
// Threads: one. Errors: none.
#pragma once

#include "compiler/graph/graph.h"

namespace kiln {

// How many symbols were replaced.
int SubstituteFixedSymbols(Graph& graph);

}  // namespace kiln
