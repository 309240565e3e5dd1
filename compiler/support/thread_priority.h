// The priority of threads whose work nobody waits for.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace kiln {

// Lowers the calling thread's (nice(2)). Advice: an error is of no matter. It cannot be taken back without a
// privilege, so the thread is never a caller's.
inline void LowerThreadPriority(int niceness) {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), niceness);
}

}  // namespace kiln
