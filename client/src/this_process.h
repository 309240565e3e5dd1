// Tells a process from those that it was forked from, also where a pid comes again: in another namespace, or
// after its process has ended. Threads: any.
#pragma once

#include <cstdint>

namespace kiln {

// Never 0. How often this memory was forked on its way here, and the pid, for forks that no C library saw.
uint64_t ThisProcess();

}  // namespace kiln
