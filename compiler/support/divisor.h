// The largest divisor up to a limit, for tiling loops without a remainder.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kiln {

// Of `size` ≥ 1, at most `most` ≥ 1. Takes time in `most`.
inline int64_t DivisorUpTo(int64_t size, int64_t most) {
  int64_t divisor = std::min(size, most);
  while (size % divisor != 0) --divisor;
  return divisor;
}

}  // namespace kiln
