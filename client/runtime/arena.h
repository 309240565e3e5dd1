// Places of a call's temporaries in one block of memory.
//
// Blocks of their own, allocated and freed one by one, leave holes between what outlives the call (results,
// saved tensors) that the allocator cannot fill: aligned requests do not fit where one of the same size was
// freed. Deterministic. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace kiln::runtime {

inline constexpr int64_t kArenaAlignment = 64;  // torch's of tensors, and what its libraries like

// A temporary is there from its `first` step to its `last`, both included.
struct Lifetime {
  size_t first = 0;
  size_t last = 0;
  int64_t bytes = 0;
};

struct Arena {
  std::vector<int64_t> offsets;  // by temporary, multiples of kArenaAlignment
  int64_t bytes = 0;
};

// No two temporaries that are there at one step overlap. Large ones are placed first, each as low as it can
// lie.
Arena PlaceInArena(absl::Span<const Lifetime> temporaries);

}  // namespace kiln::runtime
