// What /proc says of processes, for tests of what stays behind. Threads: pure functions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kiln {

struct ProcessFacts {
  pid_t pid = -1;
  pid_t parent = -1;
  char state = '?';  // 'Z': nobody has reaped it
  int niceness = 0;
};

// Children of the process' first thread.
std::vector<pid_t> ChildrenOf(pid_t pid);

// All processes of a session but its leader, zombies too, and kFirstProcess of workers' namespace. A kilnd's
// zygote leads one, and no worker leaves it.
std::vector<ProcessFacts> MembersOf(pid_t session);

uint64_t ResidentBytes(pid_t pid);
uint64_t PeakResidentBytes(pid_t pid);

// Open descriptors but files below `except`: a database's tables come and go.
size_t OpenDescriptors(pid_t pid, const std::string& except);

// `few` in the default run, `all` with tests/run.sh --full.
int Count(int few, int all);

}  // namespace kiln
