// What is known of a CPU that code is made for: the machine, by name, and its vectors by triple and feature
// list alone.
//
// An instruction set is a row of a closed table (vector_target.cc). What code looks like on it is
// codegen/target_operations.h's matter. Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/target/machine.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

enum class InstructionSet {
  kThreads,  // a GPU's: lanes are threads
  kAvx2,     // with FMA and F16C
  kAvx512,   // F, BW, DQ and VL
  kNeon,
};

struct VectorTarget {
  InstructionSet instructions = InstructionSet::kThreads;
  std::string triple;           // LLVM's
  std::string features;         // LLVM's form, "+avx2,+fma": sorted, so that equal targets give equal bytes
  unsigned lanes = 16;          // of a vector loop, for every dtype
  unsigned register_lanes = 8;  // F32 numbers that a register holds
  unsigned accumulators = 8;    // vectors of a loop's sums that registers hold beside its other values
  Machine machine;

  // The first row of the triple's architecture whose features the target has. UNIMPLEMENTED where there is
  // none, with the feature that the last row lacks.
  static absl::StatusOr<VectorTarget> FromProto(const v1::Target& target);
};

// Target.triple of every CPU that code is made for.
std::vector<absl::string_view> CpuTriples();

}  // namespace kiln
