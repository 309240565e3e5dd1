// The channels-last memory format: NCHW sizes, a pixel's channels contiguous.
//
// Pure functions. Only what is provable counts: with symbolic sizes an answer may be false where it could be
// true.
#pragma once

#include <vector>

#include "compiler/graph/graph.h"

namespace kiln {

// Of images × channels × rows × columns.
std::vector<ExprId> ChannelsLastStrides(ExprPool& pool, const std::vector<ExprId>& sizes);

// True for images that are channels-last and, having several channels and pixels, not row-major too.
bool IsChannelsLast(ExprPool& pool, const TensorType& type);

}  // namespace kiln
