// May two kernels in the making become one? What they gain is score_fusion.h's matter; whether they lose
// threads or contiguous accesses by it, the cost model says.
//
// Two drafts fuse when their loops align (align.h) and every memory location that one of them writes
// and the other touches is touched at the same outer point, at the same position of a common inner
// domain. Outer points stay independent, so the merged draft may run them in any order. A gemm fuses with
// what runs once at each of its points, and with no other loop. Cycles through other nodes are the caller's
// to exclude.
//
// Threads: one. Errors: none.
#pragma once

#include <optional>

#include "absl/functional/function_ref.h"
#include "compiler/schedule/align.h"
#include "compiler/schedule/draft.h"

namespace kiln {

struct FusionLimits {
  size_t nodes = 64;
  size_t ops = 1500;
  size_t buffers = 24;           // of a fusion that only shares reads
  size_t buffers_vertical = 64;  // of one that forwards values
};

struct FusedDraft {
  Draft draft;
  bool vertical = false;    // the second reads what the first writes
  int64_t saved_bytes = 0;  // that need not move any more
};

// `a` runs before `b` where order matters. `vanishes(buffer)`: nobody but these two touches it.
std::optional<FusedDraft> TryFuse(LoopContext& context, const Draft& a, const Draft& b,
                                  const FusionLimits& limits, absl::FunctionRef<bool(BufferId)> vanishes);

// One draft of two of a single point each, where neither touches memory that the other writes.

std::optional<FusedDraft> JoinIndependent(LoopContext& context, const Draft& a, const Draft& b,
                                          const FusionLimits& limits);

}  // namespace kiln
