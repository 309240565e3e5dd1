// An id that tells a process from its ancestors, also where a pid is reused: in another namespace, or after
// its process has ended. A process that is forked locks absl's mutexes without their search for deadlocks.
// Threads: any.
#pragma once

#include <cstdint>

namespace kiln {

// Never 0. Made of the number of forks since the first process, and of the pid, for forks by a bare system
// call.
uint64_t ThisProcess();

}  // namespace kiln
