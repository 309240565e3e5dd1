// Places of a call's temporaries in one block of memory.
//
// Blocks of their own, allocated and freed one by one, leave holes between what outlives the call (results,
// saved tensors) that the allocator cannot fill: aligned requests do not fit where one of the same size was
// freed. On a GPU each allocation costs the CPU more than the launch it is for has to itself. Deterministic.
// Threads: any.
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

// No two temporaries that are there at one step overlap. Large ones are placed first, each as low as it can
// lie.
Arena PlaceInArena(absl::Span<const Lifetime> temporaries, int64_t alignment = kArenaAlignment);

// The same, but for those without which the arena would be smaller by half of their own size or more, if they
// are so large that malloc maps them by themselves: these are there for a few steps of a call, all of which
// an arena that holds them outlives, and leave no holes when they are freed.
Arena PlaceInSmallArena(absl::Span<const Lifetime> temporaries, int64_t alignment = kArenaAlignment);

// What a program allocates: a temporary, or what outlives the call from `life.first` on.
struct Held {
  Lifetime life;
  bool temporary = true;
};

// An arena is there from a call's first step to its last, so in training it lies beside all that is saved.
// Returns the largest size of temporaries for which an arena raises what is held at most by no more than an
// eighth, and that within the bounds below; none above `bytes_max`, 0 for no arena.
inline constexpr int64_t kArenaExtraBytesMin = int64_t{64} << 10;  // of a program that holds little
inline constexpr int64_t kArenaExtraBytes = int64_t{1} << 20;
int64_t LargestInArena(absl::Span<const Held> buffers, int64_t bytes_max, int64_t alignment);

}  // namespace kiln::runtime
