// How much two groups gain by becoming one kernel, before it is known whether they may. Scores order
// the attempts of fuse.h; equal scores keep program order. From where on a gain pays, the cost model says.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/schedule/draft.h"

namespace kiln {

struct FusionScore {
  int category = 0;       // 1: one reads what the other writes; 0: they read the same
  int64_t bytes = 0;      // of buffers that both touch
  int64_t proximity = 0;  // 0 is next to each other, more is negative

  friend bool operator<(const FusionScore& a, const FusionScore& b) {
    if (a.category != b.category) return a.category < b.category;
    if (a.bytes != b.bytes) return a.bytes < b.bytes;
    return a.proximity < b.proximity;
  }
};

// What a group touches, each buffer once, ascending.
struct GroupFootprint {
  std::vector<BufferId> reads;
  std::vector<BufferId> writes;
  uint32_t first = 0;  // positions in program order
  uint32_t last = 0;
};

GroupFootprint FootprintOf(const Draft& draft);
FusionScore ScoreFusion(LoopContext& context, const GroupFootprint& a, const GroupFootprint& b);

}  // namespace kiln
