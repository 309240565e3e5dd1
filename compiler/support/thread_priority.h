// The priority of threads and sessions whose work nobody waits for.
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

namespace kiln {

// Lowers the calling thread's (nice(2)). Advice: an error is of no matter. It cannot be taken back without a
// privilege, so the thread is never a caller's.
inline void LowerThreadPriority(int niceness) {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), niceness);
}

// Lowers the calling process's session beside others: where the kernel groups processes by session (sched(7),
// "The autogroup feature"), it shares processors between sessions before threads, and no thread's niceness
// counts outside its own. Advice, too.
inline void LowerSessionPriority(int niceness) {
  const int autogroup = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
  if (autogroup < 0) return;
  dprintf(autogroup, "%d", niceness);
  close(autogroup);
}

}  // namespace kiln
