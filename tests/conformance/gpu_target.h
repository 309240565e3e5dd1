// The target of an NVIDIA GPU of one architecture ("sm_90").
#pragma once

#include <string>

#include "kiln/v1/artifact.pb.h"

namespace kiln {

inline v1::Target GpuTarget(const std::string& architecture) {
  v1::Target target;
  target.set_triple("nvptx64-nvidia-cuda");
  target.add_features(architecture);
  return target;
}

}  // namespace kiln
