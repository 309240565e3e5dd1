#include "tests/fault/sandbox_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

namespace kiln {

std::vector<std::string> OpenDoors(bool gpu) {
  std::vector<std::string> open_doors;
  const auto denied = [&](const char* name, long result, int error = EPERM) {
    if (result != -1 || errno != error) open_doors.push_back(name);
  };
  char* const arguments[] = {const_cast<char*>("true"), nullptr};
  if (gpu) {
    const int device = open("/dev/null", O_RDWR);
    if (device < 0) open_doors.push_back("opening for write is denied");
    close(device);
    const int unconnected = socket(AF_UNIX, SOCK_STREAM, 0);
    if (unconnected < 0) open_doors.push_back("a socket is denied");
    const sockaddr_un address = {AF_UNIX, "/tmp/kiln-sandbox-probe"};
    denied("connect", connect(unconnected, reinterpret_cast<const sockaddr*>(&address), sizeof address));
    close(unconnected);
  } else {
    denied("open for write", open("/dev/null", O_WRONLY));
    denied("create", open("/tmp/kiln-sandbox-probe", O_RDONLY | O_CREAT, 0600));
    denied("unlink", unlink("/tmp/kiln-sandbox-probe"));
    denied("socket", socket(AF_INET, SOCK_STREAM, 0));
    denied("unix socket", socket(AF_UNIX, SOCK_STREAM, 0));
  }
  denied("creat", syscall(SYS_creat, "/tmp/kiln-sandbox-probe", 0600));
  denied("openat2", syscall(SYS_openat2, AT_FDCWD, "/dev/null", nullptr, 0));
  denied("rename", rename("/tmp/kiln-sandbox-probe", "/tmp/kiln-sandbox-probe2"));
  denied("mkdir", mkdir("/tmp/kiln-sandbox-probe", 0700));
  denied("symlink", symlink("/dev/null", "/tmp/kiln-sandbox-probe"));
  denied("chmod", chmod("/dev/null", 0666));
  denied("truncate", truncate("/tmp/kiln-sandbox-probe", 0));
  denied("execve", execv("/bin/true", arguments));
  denied("execveat", syscall(SYS_execveat, AT_FDCWD, "/bin/true", arguments, nullptr, 0));
  denied("fork", syscall(SYS_fork));
  denied("vfork by clone", syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  denied("clone3", syscall(SYS_clone3, nullptr, 0), ENOSYS);
  denied("ptrace", ptrace(PTRACE_TRACEME, 0, nullptr, nullptr));
  denied("kill", kill(getppid(), 0));
  denied("tgkill another", syscall(SYS_tgkill, getppid(), getppid(), 0));
  denied("process_vm_readv", syscall(SYS_process_vm_readv, getppid(), nullptr, 0, nullptr, 0, 0));
  denied("mount", syscall(SYS_mount, "none", "/tmp", "tmpfs", 0, nullptr));
  denied("unshare", syscall(SYS_unshare, 0));
  denied("bpf", syscall(SYS_bpf, 0, nullptr, 0));
  denied("io_uring_setup", syscall(SYS_io_uring_setup, 1, nullptr));
  denied("userfaultfd", syscall(SYS_userfaultfd, 0));
  denied("perf_event_open", syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0));
  denied("setuid", setuid(getuid()));
  if (open("/proc/self/status", O_RDONLY) < 0) open_doors.push_back("reading is denied");
  return open_doors;
}

}  // namespace kiln
