// A tensor of a random graph together with its elements, which are computed as the graph is made.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kiln/v1/graph.pb.h"

namespace kiln::testing {

// A size: its value now, and its expression when it is not fixed.
struct Dim {
  int64_t value = 1;
  int expr = -1;
};

struct Value {  // row-major in `data`, whatever the strides are
  uint32_t id = 0;
  v1::DType dtype = v1::F32;
  std::vector<Dim> sizes;
  std::vector<Dim> strides;
  std::vector<double> data;
  bool dense = true;  // row-major
};

using Index = std::vector<int64_t>;

inline int64_t Numel(const std::vector<Dim>& sizes) {
  int64_t n = 1;
  for (const Dim& d : sizes) n *= d.value;
  return n;
}

// Calls `fn` with each index of `sizes`, row-major.
inline void ForEach(const std::vector<Dim>& sizes, const std::function<void(const Index&)>& fn) {
  Index index(sizes.size(), 0);
  int64_t n = Numel(sizes);
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i;
    for (size_t d = sizes.size(); d-- > 0;) {
      index[d] = rest % sizes[d].value;
      rest /= sizes[d].value;
    }
    fn(index);
  }
}

inline int64_t Flat(const std::vector<Dim>& sizes, const Index& index) {
  int64_t flat = 0;
  for (size_t d = 0; d < sizes.size(); ++d) flat = flat * sizes[d].value + index[d];
  return flat;
}

}  // namespace kiln::testing
