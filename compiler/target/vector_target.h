// What a back-end knows about its target: the machine, by name, and vectors by the feature list alone.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "compiler/target/machine.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

struct VectorTarget {
  std::string triple;
  std::string features;         // LLVM's form, "+avx2,+fma": sorted, so that equal targets give equal bytes
  bool avx512 = false;          // f, bw, dq and vl
  unsigned lanes = 16;          // of a vector loop, for every dtype
  unsigned register_lanes = 8;  // F32 numbers that a register holds
  Machine machine;

  // UNIMPLEMENTED unless the features hold at least avx2, fma and f16c.
  static absl::StatusOr<VectorTarget> FromProto(const v1::Target& target);
};

}  // namespace kiln
