// The system calls of a sandboxed process, by seccomp, for good: others fail with EPERM, clone3 with ENOSYS,
// at which glibc takes clone. Needs no_new_privs. INTERNAL where the kernel has no seccomp.
#pragma once

#include "absl/status/status.h"

namespace kiln {

// What a compiler needs that talks over one socket: memory that holds no code, time, its own signals and end,
// the socket, and words on standard error. `frame_fd` is the socket. (A sanitizer's own needs come on top.)
absl::Status AllowCompilersCalls(int frame_fd);

// NVIDIA's driver says nowhere what it calls, so this denies: programs and processes, other processes, the
// file tree but opening and unlink, the network but unconnected sockets of this machine, signals to order,
// the kernel's keys, modules and other doors.
absl::Status DenyStrangersCalls();

}  // namespace kiln
