// For the process of a death test: from here on it has no thread more, whoever runs the test.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace kiln {

inline bool ForbidThreads() {
  const rlimit none = {0, 0};
  // The limit is not for root.
  return setrlimit(RLIMIT_NPROC, &none) == 0 && (geteuid() != 0 || setresuid(65534, 65534, 65534) == 0);
}

}  // namespace kiln
