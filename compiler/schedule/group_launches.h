// One kernel for several sets of operands. An optimizer's step is the same few operators for hundreds of
// tensors: as launches of their own they cost more than their work. Kernels become the members of one
// launch where they are equal but for extents and offsets, which become symbols, where none waits for
// another, and where no library call lies between them. That the members run together keeps their buffers
// alive at once, so what they hold of the program's own memory is bounded.
//
// Deterministic. The result is a valid order of execution. Threads: one. Errors: none.
#pragma once

#include <vector>

#include "compiler/schedule/loop_context.h"
#include "compiler/schedule/schedule.h"

namespace kiln {

void GroupLaunches(LoopContext& context, std::vector<ScheduledStep>* steps);

}  // namespace kiln
