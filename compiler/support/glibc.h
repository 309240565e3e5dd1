// Facts of glibc's malloc that both the compiler and the runtime rely on.
#pragma once

#include <cstdint>

namespace kiln {

// Its largest M_MMAP_THRESHOLD (DEFAULT_MMAP_THRESHOLD_MAX): from this size on it maps a block by itself and
// unmaps it when it is freed, whatever came before.
inline constexpr int64_t kMappedBytesMin = int64_t{32} << 20;

}  // namespace kiln
