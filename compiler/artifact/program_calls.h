// A program's library calls as nodes of a graph again, gemms and attention as those of compiler/library,
// which describes them.
//
// Threads: pure functions. Errors: none.
#pragma once

#include "compiler/graph/graph.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

// Its values are the program's buffers, by number, its nodes the calls in their order. What is not fixed at
// compile time is a symbol. Arguments of kinds that no description reads are left out.
Graph CallsOf(const v1::Program& program);

}  // namespace kiln
