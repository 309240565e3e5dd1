// What a worker may do. Called once, before the first frame is read, while the process has one thread.
//
// Afterwards: lower priority than kilnd's, which answers hits while they compile (not for `gpu`, whose owner
// measures time); no new privileges; no core files; address space, file size and descriptors bounded; every
// descriptor but stdio and the frame socket closed; and a seccomp deny-list, whose calls fail with EPERM:
// starting programs or processes, sockets of its own, ptrace and other processes' memory, signals to
// others, opening for write, changing the file tree, mounts, namespaces, bpf, io_uring, keys, modules.
// Reading files stays allowed (LLVM reads /proc/cpuinfo); there is nothing to send them to.
//
// A worker that needs more memory than it may have ends by kExitOutOfMemory: `new` never fails in it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace kiln {

inline constexpr int kExitOutOfMemory = 78;
inline constexpr int kWorkerNiceness = 5;

// A sanitizer maps terabytes of shadow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kBoundAddressSpace = false;
#else
inline constexpr bool kBoundAddressSpace = true;
#endif

struct SandboxOptions {
  int frame_fd = -1;
  uint64_t memory_bytes = 0;  // RLIMIT_AS; 0 = unbounded
  // A user of NVIDIA's driver: opening for write and unlink (its devices, and a file that it makes), sockets
  // that connect nowhere, more descriptors, and files of /proc about itself are allowed too.
  bool gpu = false;
};

absl::Status EnterSandbox(const SandboxOptions& options);

}  // namespace kiln
