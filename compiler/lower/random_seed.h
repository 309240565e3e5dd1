// The seed that a graph's random operators draw with, and the number of each, so that no two share bits.
//
// Ownership: borrows the loop graph. Threads: one. Errors: none.
#pragma once

#include <cstdint>
#include <optional>

#include "compiler/lower/loop_graph.h"

namespace kiln {

class RandomSeed {
 public:
  explicit RandomSeed(LoopGraph& out) : out_(out) {}

  // The one I64 that holds it. The first call adds the node that draws it from the host.
  BufferId Buffer();
  uint32_t NextOperator() { return operators_++; }

 private:
  LoopGraph& out_;
  std::optional<BufferId> buffer_;
  uint32_t operators_ = 0;
};

}  // namespace kiln
