#include "server/daemonize.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

constexpr rlim_t kOpenFilesWanted = 4096;  // the store's, and one a connection

// A caller that forgot to close a descriptor passed it on; ours are all close-on-exec.
void CloseInherited() {
  std::vector<int> inherited;
  if (DIR* directory = opendir("/proc/self/fd")) {
    while (const dirent* entry = readdir(directory)) {
      int fd = -1;
      if (absl::SimpleAtoi(entry->d_name, &fd) && fd > STDERR_FILENO && fd != dirfd(directory) &&
          (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0) {
        inherited.push_back(fd);
      }
    }
    closedir(directory);
  }
  for (int fd : inherited) close(fd);
}

}  // namespace

absl::Status GoToBackground() {
  const pid_t pid = fork();
  if (pid < 0) return absl::UnavailableError(absl::StrCat("fork: ", strerror(errno)));
  if (pid > 0) _exit(0);
  setsid();
  if (chdir("/") != 0) return absl::UnavailableError(absl::StrCat("chdir: ", strerror(errno)));
  CloseInherited();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGHUP, SIG_IGN);
  return absl::OkStatus();
}

absl::Status AllowOpenFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return absl::UnavailableError(absl::StrCat("RLIMIT_NOFILE: ", strerror(errno)));
  if (limit.rlim_max < kDaemonOpenFilesMin) {
    return absl::FailedPreconditionError(
        absl::StrCat("at most ", limit.rlim_max, " files may be open here (RLIMIT_NOFILE), and kilnd needs ",
                     kDaemonOpenFilesMin, ": raise the hard limit (ulimit -Hn)"));
  }
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kOpenFilesWanted));
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
    return absl::UnavailableError(absl::StrCat("RLIMIT_NOFILE: ", strerror(errno)));
  return absl::OkStatus();
}

void UseAllCores() {
  cpu_set_t all;
  memset(&all, 0xff, sizeof(all));
  sched_setaffinity(0, sizeof(all), &all);  // the kernel cuts it to what is allowed; worse is only slower
}

absl::Status RedirectOutput(const std::string& path) {
  struct stat facts;
  if (stat(path.c_str(), &facts) == 0 && facts.st_size > kDaemonLogBytesMax) {
    rename(path.c_str(), absl::StrCat(path, ".old").c_str());
  }
  const int log = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0)
    return absl::PermissionDeniedError(absl::StrCat("open log file ", path, ": ", strerror(errno)));
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  close(log);
  if (null >= 0) close(null);
  return absl::OkStatus();
}

std::string FolderOfSelf() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) return "";
  const std::string self(path, length);
  return self.substr(0, self.rfind('/') + 1);
}

}  // namespace kiln
