// The worker's `plan`: a canonical graph to a program and its kernels.
//
// import → passes/pipeline → lower → schedule → plan_memory → PlanReply. Deterministic: the same
// sections and graph give the same bytes in any process, whoever asks: no hint is read, and the caller's
// notes are for the debug files alone.
// Errors: INVALID_ARGUMENT and UNIMPLEMENTED ("unsupported: …") name the node; INTERNAL is our bug.
// Threads: call from one thread; no state is kept between calls.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/codegen/codegen_backend.h"
#include "kiln/v1/worker.pb.h"

namespace kiln {

// `backend`: the target's, for the schedules that max-autotune measures; nullptr: it measures none.
absl::StatusOr<v1::PlanReply> PlanGraph(const v1::PlanRequest& request,
                                        const CodegenBackend* backend = nullptr);

}  // namespace kiln
