// Groups of reductions. Threads: pure functions.
#pragma once

#include "kiln/v1/kernel.pb.h"

namespace kiln {

// Gives the position of an element, not its value.
inline bool IsArgReduce(v1::ReduceKind kind) {
  return kind == v1::REDUCE_ARGMAX || kind == v1::REDUCE_ARGMIN;
}

}  // namespace kiln
