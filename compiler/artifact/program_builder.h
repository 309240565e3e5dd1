// A schedule and its memory plan to the Program that the client's runtime executes.
//
// Program symbols are the graph's. Loop buffers become INPUT, OWNED and SEEDS buffers; windows that
// library calls and outputs see become VIEW buffers, made right before their first use and released
// after their last. Kernels of equal bytes are listed once.
//
// Deterministic. Threads: one. Errors: INTERNAL.
#pragma once

#include "absl/status/status.h"
#include "compiler/lower/loop_graph.h"
#include "compiler/schedule/plan_memory.h"
#include "compiler/schedule/schedule.h"
#include "kiln/v1/worker.pb.h"

namespace kiln {

// Fills program, guards, kernels and the counts of statistics.
absl::Status BuildProgram(LoopGraph& graph, const Schedule& schedule, const MemoryPlan& memory,
                          v1::PlanReply* reply);

}  // namespace kiln
