// Large sums down the columns of a matrix: a first pass over blocks of rows and a second over the
// blocks. One pass would walk every column from top to bottom, a page a row; with blocks, neighbouring
// columns find their rows' pages (and sums stay short, so that F32 is precise enough).
//
// On a GPU, where another node reduces the same rows (a layer norm's backward): rows in strips, one for each
// block of threads, that grow their sums in memory of their own as the rows go by, and a second pass over the
// strips. The first then fuses with the other node, which reads the same tensors.
//
// Blocks are divisors of the row count, so the first pass fuses with pointwise producers. Of a row count that
// changes (on a CPU) they are whole blocks, and what is left is summed by itself: no producer walks columns
// with it. Runs before fusion. Deterministic. Threads: one. Errors: none.
#pragma once

#include "compiler/lower/loop_graph.h"
#include "compiler/target/machine.h"

namespace kiln {

// How many nodes were split.
int SplitColumnSums(LoopGraph& graph, const Machine& machine);

}  // namespace kiln
