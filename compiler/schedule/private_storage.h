// Where a kernel keeps what it writes for itself alone and reads again.
//
// The exponentials of a softmax are wanted twice, and nobody else sees them. Where the kernel later writes a
// result at the same places, they lie in that result's memory until then, and move no bytes of their own.
//
// Threads: one. Errors: none.
#pragma once

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "compiler/schedule/stage_plan.h"

namespace kiln {

// By scratch buffer: the result whose memory it takes. Each result is one scratch buffer's. The CPU only: on
// a GPU the threads of a point may write a result in another order than they read. `escapes(buffer)`:
// somebody outside of the draft sees the buffer.
absl::flat_hash_map<BufferId, BufferId> ScratchInResults(LoopContext& context, const Draft& draft,
                                                         const StagePlan& plan,
                                                         absl::FunctionRef<bool(BufferId)> escapes);

}  // namespace kiln
