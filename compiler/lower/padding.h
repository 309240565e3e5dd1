// Row padding of buffers, so that zeros can be appended to rows in place.
//
// Threads: none shared. Errors: none; malformed nodes fail when they are lowered.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/graph/graph.h"
#include "compiler/lower/value_facts.h"

namespace kiln {

// By value, of those that will be padded for a library call of a GPU: how long their rows are with their
// padding; 0 of others. Of `facts` it reads uses and pins.
std::vector<int64_t> FindRowPadding(const Graph& graph, const ValueFacts& facts);

}  // namespace kiln
