// Mode max-autotune on a GPU: kernels of a program whose schedules are worth measuring.
//
// Those that move many bytes, heaviest first and a bounded number of them, whose sizes are all fixed, and
// that can be run on any data: no index comes from memory and nothing divides integers. Deterministic.
// Threads: pure function.
#pragma once

#include <vector>

#include "compiler/codegen/codegen_backend.h"
#include "compiler/target/machine.h"
#include "kiln/v1/tuning.pb.h"
#include "kiln/v1/worker.pb.h"

namespace kiln {

std::vector<v1::Tunable> TunableKernelsOf(const v1::PlanReply& plan, const CodegenBackend& backend,
                                          const Machine& machine);

}  // namespace kiln
