// Pass: gemms and attention become nodes of one kind each (library/gemm.h, library/attention.h), whichever of
// ATen's operators they were written as. Every pass behind it, decompositions too, makes and sees those nodes
// alone; lowering makes calls of them again.
//
// A convolution is one operator of ATen's, and its gradients another: these are their nodes as they stand.
// Errors: none.
#pragma once

#include "compiler/graph/graph.h"

namespace kiln {

// What has no description stays the call that it is.
void MakeLibraryNodes(Graph& graph);

}  // namespace kiln
