// A draft to the kernel that it is: stages, loops, common subexpressions, canonical numbering.
//
// Canonical: ops, expressions, buffers and symbols are numbered by first use, so drafts that compute
// the same way give the same bytes. Threads: one. Errors: INTERNAL.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "compiler/schedule/draft.h"
#include "compiler/schedule/schedule.h"

namespace kiln {

// `escapes(buffer)`: somebody outside of the draft sees the buffer. `serial` numbers the kernel's name.
absl::StatusOr<ScheduledKernel> BuildKernel(LoopContext& context, Draft draft, uint32_t serial,
                                            absl::FunctionRef<bool(BufferId)> escapes);

}  // namespace kiln
