// The shape of a kernel's loop nest: order, merging, vectors, and the units that threads share.
//
// Loops are put in the order of falling strides (stores and large buffers count most), neighbours whose
// indices allow it are merged, lanes run along the loop where most accesses are contiguous, and a unit is
// about 16 thousand inner iterations: a constant of the kernel, never of the number of threads.
//
// Threads: one. Errors: none.
#pragma once

#include <vector>

#include "compiler/schedule/draft.h"

namespace kiln {

// The memory accesses and other index expressions that are left of the draft, for ChooseLoops.
struct LoopFacts {
  std::vector<DraftAccess> accesses;
  std::vector<uint32_t> indexed;  // positions of all ops that have an index
};

// Rewrites the draft's loops in place and returns how to run them.
v1::KernelSchedule ChooseLoops(LoopContext& context, Draft& draft, const LoopFacts& facts);

// The points of the parallel loops: see KernelSchedule.
ExprId CountUnits(LoopContext& context, const std::vector<LoopVar>& outer,
                  const v1::KernelSchedule& schedule);

}  // namespace kiln
