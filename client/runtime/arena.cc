#include "client/runtime/arena.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include "compiler/support/glibc.h"

namespace kiln::runtime {
namespace {

constexpr int64_t kLargestMin = int64_t{16} << 10;  // temporaries that gain something together

// Bytes at the step that holds most; each buffer takes a multiple of the alignment.
int64_t HeldAtMost(absl::Span<const Held> buffers, int64_t alignment) {
  std::map<size_t, int64_t> change;  // by step
  for (const auto& [life, temporary] : buffers) {
    const int64_t bytes = (life.bytes + alignment - 1) / alignment * alignment;
    change[life.first] += bytes;
    if (temporary && life.last != SIZE_MAX) change[life.last + 1] -= bytes;
  }
  int64_t held = 0, most = 0;
  for (const auto& [step, bytes] : change) most = std::max(most, held += bytes);
  return most;
}

}  // namespace

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

Arena PlaceInSmallArena(absl::Span<const Lifetime> temporaries, int64_t alignment) {
  std::vector<size_t> inside(temporaries.size());
  std::iota(inside.begin(), inside.end(), size_t{0});
  std::stable_sort(inside.begin(), inside.end(),
                   [&](size_t a, size_t b) { return temporaries[a].bytes > temporaries[b].bytes; });
  const auto place = [&](absl::Span<const size_t> chosen) {
    std::vector<Lifetime> lives;
    for (size_t t : chosen) lives.push_back(temporaries[t]);
    return PlaceInArena(lives, alignment);
  };
  absl::Span<const size_t> left = inside;
  Arena placed = place(left);
  while (!left.empty() && temporaries[left[0]].bytes > kMappedBytesMin) {
    Arena smaller = place(left.subspan(1));
    if (placed.bytes - smaller.bytes < temporaries[left[0]].bytes / 2) break;
    placed = std::move(smaller);
    left.remove_prefix(1);
  }
  Arena arena;
  arena.bytes = placed.bytes;
  arena.offsets.assign(temporaries.size(), Arena::kApart);
  for (size_t k = 0; k < left.size(); ++k) arena.offsets[left[k]] = placed.offsets[k];
  return arena;
}

int64_t LargestInArena(absl::Span<const Held> buffers, int64_t bytes_max, int64_t alignment) {
  const int64_t alone = HeldAtMost(buffers, alignment);
  const int64_t allowed = alone + std::clamp(alone / 8, kArenaExtraBytesMin, kArenaExtraBytes);
  for (int64_t largest = bytes_max; largest >= kLargestMin; largest /= 4) {
    std::vector<Lifetime> inside;
    std::vector<Held> outside;
    for (const Held& held : buffers) {
      if (held.temporary && held.life.bytes <= largest) {
        inside.push_back(held.life);
      } else {
        outside.push_back(held);
      }
    }
    if (PlaceInArena(inside, alignment).bytes + HeldAtMost(outside, alignment) <= allowed) return largest;
  }
  return 0;
}

}  // namespace kiln::runtime
