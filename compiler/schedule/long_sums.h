// Which sums of floats are kept in F64, and when partial sums move there. That is numerics: it follows from a
// kernel and from how its schedule walks it, and is nobody's to choose. Rules ask it and emitters do.
//
// A CPU adds F32 numbers in F32 and moves what it has to an F64 total now and then; a sum of F64 is kept with
// what its additions lose. A GPU's thread adds in F64 right away, and F64 as it is. A gemm's sums are F32's
// pieces, each short enough (gemm_threads.h).
//
// Threads: pure functions. Errors: none; a schedule is taken to have passed the checks of the rules that it
// is asked about. Limits: as KernelFacts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compiler/schedule/kernel_facts.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// Iterations of one loop before its F32 accumulators are added to a long sum: rare, and few enough for equal
// numbers, whose errors all point one way. Blocks of a pipeline's groups end where an iteration does that is
// due.
inline constexpr int64_t kIterationsToTotal = 16;

// Additions in a row into one number of a GPU's thread before a sum is kept in F64.
inline constexpr int64_t kThreadAdditionsMax = 512;

// Is the op one, by the schedule that its kernel has? `unroll`: a CPU's vectors side by side.
bool IsLongSum(const KernelFacts& facts, uint32_t op, uint32_t unroll);

// Of a GPU's stage: do its sums of less than F64 have more terms than an accumulator may take?
bool HasLongSums(const KernelFacts& facts, const v1::ThreadSchedule& schedule, size_t stage);

// Of a CPU's stage with loops around its innermost one: runs of that before what it has left behind is added
// to a long sum; 0: its iterations are many, and added as they come.
int64_t RunsToTotal(const KernelFacts& facts, const StageFacts& stage, uint32_t unroll);

}  // namespace kiln
