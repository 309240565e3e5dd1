// Guards of a variant against the sizes of one call.
// Threads: pure functions. Limits: linear in the number of expressions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

// True when every condition, given ones too, holds and every integer symbol is in its range. A
// condition whose evaluation overflows, divides by zero or needs a symbol that has no hint is false;
// so is one of a malformed message.
bool GuardsHold(const v1::Guards& guards, const v1::Hints& hints);

// What does not hold of them; nothing of a malformed message.
struct BrokenGuards {
  std::vector<int> symbols;          // out of their ranges
  std::vector<uint32_t> conditions;  // expressions
};
BrokenGuards BrokenBy(const v1::Guards& guards, const v1::Hints& hints);

// INVALID_ARGUMENT when positions, arities or symbols are wrong.
absl::Status CheckGuards(const v1::Guards& guards);

}  // namespace kiln
