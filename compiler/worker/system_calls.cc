#include "compiler/worker/system_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <initializer_list>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// Whatever their arguments.
constexpr const char* kAllowed[] = {
    // keep-sorted
    "brk",
    "clock_gettime",
    "clock_nanosleep",
    "exit",
    "exit_group",
    "futex",
    "getpid",
    "getrandom",
    "gettid",
    "gettimeofday",
    "madvise",
    "mremap",
    "munmap",
    "nanosleep",
    "poll",
    "restart_syscall",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_yield",
    "sigaltstack",
    "sysinfo",
};

// Missing in this kernel's or libseccomp's table: nothing to deny, and the add is skipped.
constexpr const char* kDenied[] = {
    // keep-sorted
    "add_key",
    "adjtimex",
    "bpf",
    "chdir",
    "chmod",
    "chown",
    "chroot",
    "clock_adjtime",
    "clock_settime",
    "connect",
    "creat",
    "delete_module",
    "execve",
    "execveat",
    "fallocate",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "finit_module",
    "fork",
    "fsetxattr",
    "fsmount",
    "fsopen",
    "ftruncate",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioprio_set",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "kill",
    "lchown",
    "link",
    "linkat",
    "listxattr",
    "lsetxattr",
    "migrate_pages",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "msgget",
    "name_to_handle_at",
    "open_by_handle_at",
    "open_tree",
    "openat2",
    "perf_event_open",
    "pidfd_getfd",
    "pidfd_open",
    "pidfd_send_signal",
    "pivot_root",
    "process_madvise",
    "process_mrelease",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "quotactl",
    "reboot",
    "removexattr",
    "rename",
    "renameat",
    "renameat2",
    "request_key",
    "rmdir",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "sched_setattr",
    "sched_setparam",
    "sched_setscheduler",
    "semget",
    "sendmmsg",
    "setdomainname",
    "setfsgid",
    "setfsuid",
    "setgid",
    "setgroups",
    "sethostname",
    "setns",
    "setpriority",
    "setregid",
    "setresgid",
    "setresuid",
    "setreuid",
    "setsid",
    "settimeofday",
    "setuid",
    "setxattr",
    "shmget",
    "swapoff",
    "swapon",
    "symlink",
    "symlinkat",
    "syslog",
    "tkill",
    "truncate",
    "umount",
    "umount2",
    "unlinkat",
    "unshare",
    "userfaultfd",
    "utime",
    "utimensat",
    "utimes",
    "vfork",
};

// `listen` on what is left reaches nobody: the process has a network of its own, where the host allows it.
constexpr int kDeniedFamilies[] = {AF_INET, AF_INET6, AF_PACKET, AF_VSOCK, AF_ALG, AF_BLUETOOTH, AF_XDP};

// Who is told by a signal that a descriptor is ready may be anybody.
constexpr int kDeniedFcntl[] = {F_SETOWN, F_SETSIG, F_SETOWN_EX};
constexpr unsigned kSetOwner[] = {0x8901, 0x8902};  // ioctl's FIOSETOWN, SIOCSPGRP

class Filter {
 public:
  explicit Filter(uint32_t otherwise) : context_(seccomp_init(otherwise)) {
    // The calls of other architectures are a second door.
    if (context_ == nullptr || seccomp_attr_set(context_.get(), SCMP_FLTATR_ACT_BADARCH, kDeny) != 0) {
      Fail("seccomp_init", ENOMEM);
    }
  }
  void Add(uint32_t action, const char* name, std::initializer_list<scmp_arg_cmp> when = {}) {
    const int call = seccomp_syscall_resolve_name(name);
    if (call == __NR_SCMP_ERROR || !status_.ok()) return;
    const int error = seccomp_rule_add_array(context_.get(), action, call, static_cast<unsigned>(when.size()),
                                             when.begin());
    if (error != 0) Fail(name, -error);
  }
  absl::Status Load() {
    if (!status_.ok()) return status_;
    if (const int error = seccomp_load(context_.get()); error != 0) Fail("seccomp_load", -error);
    return status_;
  }
  static constexpr uint32_t kDeny = SCMP_ACT_ERRNO(EPERM);

 private:
  struct Release {
    void operator()(void* context) const { seccomp_release(context); }
  };
  void Fail(absl::string_view what, int error) {
    status_ = absl::InternalError(absl::StrCat("seccomp: ", what, ": ", strerror(error)));
  }

  std::unique_ptr<void, Release> context_;
  absl::Status status_;
};

scmp_datum_t Datum(long value) { return static_cast<scmp_datum_t>(value); }

}  // namespace

absl::Status AllowCompilersCalls(int frame_fd) {
  Filter filter(Filter::kDeny);
  for (const char* name : kAllowed) filter.Add(SCMP_ACT_ALLOW, name);
  // The socket has an address at its other end, and needs no other.
  const scmp_arg_cmp to_daemon = SCMP_A0(SCMP_CMP_EQ, Datum(frame_fd));
  filter.Add(SCMP_ACT_ALLOW, "recvfrom", {to_daemon});
  filter.Add(SCMP_ACT_ALLOW, "sendto", {to_daemon, SCMP_A4(SCMP_CMP_EQ, 0)});
  filter.Add(SCMP_ACT_ALLOW, "write", {to_daemon});
  for (const char* name : {"write", "writev"}) {
    filter.Add(SCMP_ACT_ALLOW, name, {SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO)});
  }
  for (const char* name : {"mmap", "mprotect"}) {
    filter.Add(SCMP_ACT_ALLOW, name, {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)});
  }
  // abort() signals its own thread.
  filter.Add(SCMP_ACT_ALLOW, "tgkill", {SCMP_A0(SCMP_CMP_EQ, Datum(getpid()))});
  filter.Add(SCMP_ACT_ERRNO(ENOSYS), "clone3");
  return filter.Load();
}

absl::Status DenyStrangersCalls() {
  Filter filter(SCMP_ACT_ALLOW);
  const uint32_t deny = Filter::kDeny;
  for (const char* name : kDenied) filter.Add(deny, name);
  for (const int family : kDeniedFamilies) filter.Add(deny, "socket", {SCMP_A0(SCMP_CMP_EQ, Datum(family))});
  filter.Add(deny, "sendto", {SCMP_A4(SCMP_CMP_NE, 0)});
  for (const int command : kDeniedFcntl) filter.Add(deny, "fcntl", {SCMP_A1(SCMP_CMP_EQ, Datum(command))});
  for (const unsigned request : kSetOwner) filter.Add(deny, "ioctl", {SCMP_A1(SCMP_CMP_EQ, request)});
  filter.Add(deny, "prlimit64", {SCMP_A0(SCMP_CMP_NE, 0)});
  // Threads, yes; processes, no. glibc falls back from clone3, whose flags a filter cannot see, to clone.
  filter.Add(SCMP_ACT_ERRNO(ENOSYS), "clone3");
  filter.Add(deny, "clone", {SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0)});
  filter.Add(deny, "tgkill", {SCMP_A0(SCMP_CMP_NE, Datum(getpid()))});
  return filter.Load();
}

}  // namespace kiln
