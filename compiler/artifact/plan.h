// The worker's `plan`: a canonical graph to a program and its kernels.
//
// import → passes/pipeline → lower → schedule → plan_memory → PlanReply. Deterministic: the same
// request (sections, graph, buckets of hints) gives the same bytes in any process.
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
