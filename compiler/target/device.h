// What kind of device a tensor is on, and code is made for. Pure functions.
#pragma once

#include "absl/strings/match.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

inline bool IsGpu(v1::DeviceType device) { return device == v1::CUDA; }
inline bool IsGpu(const v1::Target& target) { return absl::StartsWith(target.triple(), "nvptx64-"); }

}  // namespace kiln
