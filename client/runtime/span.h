// The reach of a strided layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace kiln::runtime {

// Elements from the first to the last, both counted; 0 when a size is 0.
inline int64_t SpanElements(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides) {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return last + 1;
}

}  // namespace kiln::runtime
