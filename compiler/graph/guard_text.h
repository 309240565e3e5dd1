// Guards of a variant as text, over s0, s1, …, and which of them one call breaks. For people.
// Threads: pure functions. What is malformed is "?".
#pragma once

#include <string>
#include <vector>

#include "kiln/v1/graph.pb.h"

namespace kiln {

// A line for each condition; "(the graph's own)" follows those that the caller's guards ensure already.
std::vector<std::string> GuardTexts(const v1::Guards& guards);

// "s0 in [2, inf]".
std::string RangeText(const v1::Guards& guards, int symbol);

// Ranges and conditions that do not hold (guards.h).
std::vector<std::string> BrokenGuardTexts(const v1::Guards& guards, const v1::Hints& hints);

}  // namespace kiln
