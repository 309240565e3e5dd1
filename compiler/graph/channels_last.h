// The layout of images channels-last: a point's channels beside each other ("channels last").
//
// Pure functions. Only what is provable counts: with symbolic sizes an answer may be false where it could be
// true.
#pragma once

#include <vector>

#include "compiler/graph/graph.h"

namespace kiln {

// Of images × channels × rows × columns.
std::vector<ExprId> ChannelsLastStrides(ExprPool& pool, const std::vector<ExprId>& sizes);

// True for images of several channels and points that are channels-last, which row-major ones do not.
bool IsChannelsLast(ExprPool& pool, const TensorType& type);

}  // namespace kiln
