// What kind of device a tensor is on. Pure functions.
#pragma once

#include "kiln/v1/graph.pb.h"

namespace kiln {

inline bool IsGpu(v1::DeviceType device) { return device == v1::CUDA; }

}  // namespace kiln
