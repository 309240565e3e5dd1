// What the x86 back-end knows about a target, from its feature list alone: never from a CPU name. Beside
// LLVM's features the list may hold "page-prefetch" and "rows-ahead-l2".
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

struct VectorTarget {
  std::string triple;
  std::string features;         // LLVM's form, "+avx2,+fma": sorted, so that equal targets give equal bytes
  bool avx512 = false;          // f, bw, dq and vl
  unsigned lanes = 16;          // of a vector loop, for every dtype
  unsigned register_lanes = 8;  // F32 numbers that a register holds
  // The processor itself fetches ahead of a loop from one page to the next, so that a loop need not ask. Rows
  // side by side ask all the same, for one use, and long ones alternate in shorter pieces.
  bool page_prefetch = false;
  // Rows are asked for into the second-level cache, farther ahead than into the first-level one.
  bool rows_ahead_l2 = false;

  // UNIMPLEMENTED unless the features hold at least avx2, fma and f16c.
  static absl::StatusOr<VectorTarget> FromProto(const v1::Target& target);
};

}  // namespace kiln
