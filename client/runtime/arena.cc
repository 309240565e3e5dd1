#include "client/runtime/arena.h"

#include <algorithm>
#include <numeric>

namespace kiln::runtime {

Arena PlaceInArena(absl::Span<const Lifetime> temporaries, int64_t alignment) {
  Arena arena;
  arena.offsets.assign(temporaries.size(), 0);
  std::vector<size_t> order(temporaries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return temporaries[a].bytes > temporaries[b].bytes; });
  std::vector<size_t> placed;  // by offset
  for (size_t t : order) {
    const Lifetime& life = temporaries[t];
    int64_t offset = 0;
    for (size_t p : placed) {
      const Lifetime& other = temporaries[p];
      if (other.first > life.last || other.last < life.first) continue;
      if (arena.offsets[p] >= offset + life.bytes) break;  // fits below it and all that follow
      const int64_t end = arena.offsets[p] + other.bytes;
      offset = std::max(offset, (end + alignment - 1) / alignment * alignment);
    }
    arena.offsets[t] = offset;
    arena.bytes = std::max(arena.bytes, offset + life.bytes);
    auto above = std::upper_bound(placed.begin(), placed.end(), offset,
                                  [&](int64_t value, size_t p) { return value < arena.offsets[p]; });
    placed.insert(above, t);
  }
  return arena;
}

}  // namespace kiln::runtime
