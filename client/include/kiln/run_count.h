// How many calls of compiled programs this process made and told no service of yet: one number for the
// process, whoever reports it. A child that is forked starts from zero.
//
// Threads: any. A call costs an atomic addition.
#pragma once

#include <cstdint>

namespace kiln {

void CountRun(uint64_t count = 1);
// Returns the number and resets it.
uint64_t TakeRuns();

}  // namespace kiln
