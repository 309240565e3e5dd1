#include "compiler/graph/channels_last.h"

namespace kiln {

std::vector<ExprId> ChannelsLastStrides(ExprPool& pool, const std::vector<ExprId>& sizes) {
  const ExprId channels = sizes[1], row = pool.Mul(sizes[3], channels);
  return {pool.Mul(sizes[2], row), pool.Const(1), row, channels};
}

bool IsChannelsLast(ExprPool& pool, const TensorType& type) {
  if (type.rank() != 4 || type.strides.size() != 4) return false;
  const ExprId one = pool.Const(1);
  if (type.sizes[1] == one || (type.sizes[2] == one && type.sizes[3] == one)) return false;
  const std::vector<ExprId> wanted = ChannelsLastStrides(pool, type.sizes);
  for (size_t dim = 0; dim < 4; ++dim) {
    if (type.sizes[dim] != one && type.strides[dim] != wanted[dim]) return false;
  }
  return true;
}

}  // namespace kiln
