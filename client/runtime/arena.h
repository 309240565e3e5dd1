// Offsets of a call's temporaries in one arena.
//
// Temporaries that are allocated one by one fragment the heap between results and saved tensors, which
// outlive the call: an aligned request does not fit where one of its size was freed. On a GPU an allocation
// costs the CPU more than the launch it is for. Deterministic. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace kiln::runtime {

// torch's of tensors, and what its libraries like: on the CPU, and what torch's allocator gives on a GPU.
inline constexpr int64_t kArenaAlignment = 64, kGpuArenaAlignment = 512;

// A temporary is there from its `first` step to its `last`, both included.
struct Lifetime {
  size_t first = 0;
  size_t last = 0;
  int64_t bytes = 0;
};

struct Arena {
  static constexpr int64_t kApart = -1;
  std::vector<int64_t> offsets;  // by temporary, multiples of the alignment; kApart: in a block of its own
  int64_t bytes = 0;
};

// Temporaries that are live at the same step don't overlap. Greedy by size: the largest first, each at its
// lowest free offset.
Arena PlaceInArena(absl::Span<const Lifetime> temporaries, int64_t alignment = kArenaAlignment);

// The same without those temporaries that malloc maps one by one and that cost the arena half of their own
// size or more: they live for a few steps, where the arena lives for the whole call, and leave no holes when
// they are freed.
Arena PlaceInSmallArena(absl::Span<const Lifetime> temporaries, int64_t alignment = kArenaAlignment);

// What a program allocates: a temporary, or what outlives the call from `life.first` on.
struct Held {
  Lifetime life;
  bool temporary = true;
};

// An arena lives for the whole call, so in training it adds to the saved tensors. Returns the largest
// temporaries for which it raises the peak by at most an eighth, within the bounds below: no more than
// `bytes_max`, 0 for no arena.
inline constexpr int64_t kArenaExtraBytesMin = int64_t{64} << 10;  // of a program that holds little
inline constexpr int64_t kArenaExtraBytes = int64_t{1} << 20;
int64_t LargestInArena(absl::Span<const Held> buffers, int64_t bytes_max, int64_t alignment);

}  // namespace kiln::runtime
