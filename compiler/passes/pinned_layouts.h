// Alias analysis: which value owns the storage of each, and which values must keep their traced layout.
//
// A view shares the memory of what it views, its owner's, up to a value that an operator has made or an
// input. Operators that read memory by strides and storage offset (as_strided and its kin, views of another
// dtype, operators that are not torch's) mean the traced layout: what they read and what that is a view of
// keeps its strides. Every pass that chooses layouts asks here, and lowering gives such values memory as
// declared.
//
// Of two results of a graph, or a result and an input, either both have one owner in the graph as it was
// traced, and share memory, or each has its own. RelateOutputs notes that before the first pass.
//
// Threads: none shared. Errors: none.
#pragma once

#include <vector>

#include "compiler/graph/graph.h"

namespace kiln {

// By value: the one whose memory it is; itself for inputs and for what is no view.
std::vector<ValueId> MemoryOwners(const Graph& graph);

// By value: its strides are those that were traced, and have to stay.
std::vector<bool> PinnedLayouts(const Graph& graph);

// By value: several results of the graph that the caller sees share its memory.
std::vector<bool> SharedByOutputs(const Graph& graph);

// Sets `memory` and `traced` of each output.
void RelateOutputs(Graph& graph);

}  // namespace kiln
