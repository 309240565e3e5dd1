#include "compiler/worker/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <new>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "compiler/support/limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr rlim_t kOpenFilesMax = kDaemonOpenFilesMin;
constexpr rlim_t kGpuOpenFilesMax = 4096;

// Missing in this kernel's or libseccomp's table: nothing to deny, and the add is skipped.
constexpr const char* kDenied[] = {
    // keep-sorted
    "accept",
    "accept4",
    "add_key",
    "adjtimex",
    "bind",
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
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "kill",
    "lchown",
    "link",
    "linkat",
    "listen",
    "listxattr",
    "lsetxattr",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "mount",
    "mount_setattr",
    "move_mount",
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
    "setdomainname",
    "setfsgid",
    "setfsuid",
    "setgid",
    "setgroups",
    "sethostname",
    "setns",
    "setregid",
    "setresgid",
    "setresuid",
    "setreuid",
    "setsid",
    "settimeofday",
    "setuid",
    "setxattr",
    "socket",
    "socketpair",
    "swapoff",
    "swapon",
    "symlink",
    "symlinkat",
    "syslog",
    "tkill",
    "truncate",
    "umount",
    "umount2",
    "unlink",
    "unlinkat",
    "unshare",
    "userfaultfd",
    "utime",
    "utimensat",
    "utimes",
    "vfork",
};

// Of these, what NVIDIA's driver does when it starts.
constexpr absl::string_view kAllowedWithGpu[] = {"accept", "accept4",    "bind",  "listen",
                                                 "socket", "socketpair", "unlink"};

absl::Status Errno(const char* what, int error) {
  return absl::InternalError(absl::StrCat("sandbox: ", what, ": ", strerror(error)));
}

absl::Status Limit(int resource, rlim_t value, const char* what) {
  const rlimit limit{value, value};
  return setrlimit(resource, &limit) == 0 ? absl::OkStatus() : Errno(what, errno);
}

struct ReleaseFilter {
  void operator()(void* filter) const { seccomp_release(filter); }
};

absl::Status DenyWriting(void* filter) {
  const uint32_t deny = SCMP_ACT_ERRNO(EPERM);
  for (unsigned long flag : {O_WRONLY, O_RDWR, O_CREAT, O_TRUNC}) {
    const int open_rule =
        seccomp_rule_add(filter, deny, SCMP_SYS(open), 1, SCMP_A1(SCMP_CMP_MASKED_EQ, flag, flag));
    const int openat_rule =
        seccomp_rule_add(filter, deny, SCMP_SYS(openat), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, flag, flag));
    if (open_rule != 0 || openat_rule != 0) return Errno("open rules", -std::min(open_rule, openat_rule));
  }
  return absl::OkStatus();
}

absl::Status DenyCalls(bool gpu) {
  std::unique_ptr<void, ReleaseFilter> filter(seccomp_init(SCMP_ACT_ALLOW));
  if (filter == nullptr) return Errno("seccomp_init", ENOMEM);
  const uint32_t deny = SCMP_ACT_ERRNO(EPERM);
  for (const char* name : kDenied) {
    if (gpu && absl::c_linear_search(kAllowedWithGpu, name)) continue;
    const int call = seccomp_syscall_resolve_name(name);
    if (call == __NR_SCMP_ERROR) continue;
    if (const int error = seccomp_rule_add(filter.get(), deny, call, 0); error != 0)
      return Errno(name, -error);
  }
  if (!gpu) KILN_RETURN_IF_ERROR(DenyWriting(filter.get()));
  // Threads, yes; processes, no. glibc falls back from clone3, whose flags a filter cannot see, to clone.
  if (int error = seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0); error != 0) {
    return Errno("clone3", -error);
  }
  if (int error = seccomp_rule_add(filter.get(), deny, SCMP_SYS(clone), 1,
                                   SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
      error != 0) {
    return Errno("clone", -error);
  }
  // abort() signals its own thread.
  if (int error = seccomp_rule_add(filter.get(), deny, SCMP_SYS(tgkill), 1,
                                   SCMP_A0(SCMP_CMP_NE, static_cast<scmp_datum_t>(getpid())));
      error != 0) {
    return Errno("tgkill", -error);
  }
  if (const int error = seccomp_load(filter.get()); error != 0) return Errno("seccomp_load", -error);
  return absl::OkStatus();
}

}  // namespace

absl::Status EnterSandbox(const SandboxOptions& options) {
  if (!options.gpu) (void)nice(kWorkerNiceness);  // advice
  // Nothing is left to unwind with, and what LLVM holds would be in no known state.
  std::set_new_handler([] { _exit(kExitOutOfMemory); });
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Errno("no_new_privs", errno);
  // What is not dumpable can't read its own files of /proc, which the driver does.
  if (!options.gpu && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return Errno("dumpable", errno);
  if (options.frame_fd > 3) close_range(3, options.frame_fd - 1, 0);
  close_range(options.frame_fd + 1, ~0u, 0);
  KILN_RETURN_IF_ERROR(Limit(RLIMIT_CORE, 0, "RLIMIT_CORE"));
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return Errno("RLIMIT_NOFILE", errno);
  const rlim_t files_max = std::min(files.rlim_max, options.gpu ? kGpuOpenFilesMax : kOpenFilesMax);
  KILN_RETURN_IF_ERROR(Limit(RLIMIT_NOFILE, files_max, "RLIMIT_NOFILE"));
  if (kBoundAddressSpace && options.memory_bytes > 0) {
    KILN_RETURN_IF_ERROR(Limit(RLIMIT_AS, options.memory_bytes, "RLIMIT_AS"));
  }
  return DenyCalls(options.gpu);
}

}  // namespace kiln
