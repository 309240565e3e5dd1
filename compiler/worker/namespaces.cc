#include "compiler/worker/namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

absl::Status Errno(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return Errno(path);
  const ssize_t put = write(file, text.data(), text.size());
  const absl::Status status = put == static_cast<ssize_t>(text.size()) ? absl::OkStatus() : Errno(path);
  close(file);
  return status;
}

// Root's children keep their user until they take the workers'; so both are known inside. Only a process
// outside may say so.
absl::Status MapRoot(pid_t process, const std::string& users) {
  KILN_RETURN_IF_ERROR(WriteFile(absl::StrCat("/proc/", process, "/uid_map"), users));
  return WriteFile(absl::StrCat("/proc/", process, "/gid_map"), users);
}

absl::Status MapSelf(uid_t user, gid_t group) {
  KILN_RETURN_IF_ERROR(WriteFile("/proc/self/setgroups", "deny"));
  KILN_RETURN_IF_ERROR(WriteFile("/proc/self/uid_map", absl::StrCat("0 ", user, " 1\n")));
  return WriteFile("/proc/self/gid_map", absl::StrCat("0 ", group, " 1\n"));
}

// Of root: a child that stays outside says who is who, and its exit code is how that went.
absl::Status NewUsersOfRoot() {
  int go[2];
  if (pipe2(go, O_CLOEXEC) != 0) return Errno("pipe");
  const pid_t self = getpid();
  const pid_t outside = fork();
  if (outside < 0) return Errno("fork");
  if (outside == 0) {
    close(go[1]);
    char byte;
    if (read(go[0], &byte, 1) != 1) _exit(0);
    const std::string root = "0 0 1\n";
    // The second is there unless this is a container of fewer ids.
    absl::Status mapped = MapRoot(self, absl::StrCat(root, kWorkerUid, " ", kWorkerUid, " 1\n"));
    if (!mapped.ok()) mapped = MapRoot(self, root);
    _exit(mapped.ok() ? 0 : errno);
  }
  close(go[0]);
  const int error = unshare(CLONE_NEWUSER) == 0 ? 0 : errno;
  if (error == 0 && write(go[1], "", 1) != 1) kill(outside, SIGKILL);
  close(go[1]);
  int status = 0;
  while (waitpid(outside, &status, 0) < 0 && errno == EINTR) {
  }
  if (error != 0) return absl::UnavailableError(absl::StrCat("unshare: ", strerror(error)));
  if (status == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("uid_map: ", strerror(WEXITSTATUS(status))));
}

absl::Status NewUsers() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  // Else its files in /proc are root's.
  if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0) return Errno("dumpable");
  if (user == 0) return NewUsersOfRoot();
  if (unshare(CLONE_NEWUSER) != 0) return Errno("unshare");
  return MapSelf(user, group);
}

// The host's /proc knows it by another number, and the driver does not start where its thread's file is
// missing.
absl::Status WithoutProcesses() {
  return absl::UnavailableError("the driver opens files of /proc by its threads' numbers");
}

absl::Status Unshare(int flag) { return unshare(flag) == 0 ? absl::OkStatus() : Errno("unshare"); }

absl::Status NewMounts(int* empty_root) {
  KILN_RETURN_IF_ERROR(Unshare(CLONE_NEWNS));
  const int context = static_cast<int>(syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC));
  if (context < 0) return Errno("fsopen");
  int root = -1;
  if (syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0) {
    root = static_cast<int>(
        syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC,
                MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  }
  const absl::Status status = root >= 0 ? absl::OkStatus() : Errno("mount");
  close(context);
  *empty_root = root;
  return status;
}

}  // namespace

Namespaces Namespaces::Enter(bool gpu, const std::optional<std::set<std::string>>& only) {
  Namespaces made;
  const auto wanted = [&](const char* name) { return !only.has_value() || only->contains(name); };
  const auto note = [&](const char* name, const absl::Status& status) {
    made.layers_.push_back(LayerOf(name, status));
  };
  if (wanted("user")) note("user", NewUsers());
  if (wanted("mount")) note("mount", NewMounts(&made.empty_root_));
  if (wanted("net")) note("net", Unshare(CLONE_NEWNET));
  if (wanted("ipc")) note("ipc", Unshare(CLONE_NEWIPC));
  if (wanted("pid")) note("pid", gpu ? WithoutProcesses() : made.NewProcesses());
  return made;
}

absl::Status Namespaces::NewProcesses() {
  KILN_RETURN_IF_ERROR(Unshare(CLONE_NEWPID));
  return StartFirstProcess() ? absl::OkStatus() : Errno("fork");
}

// It reads from a socket whose other end only its parent has, and so ends with it.
bool Namespaces::StartFirstProcess() {
  int life[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, life) != 0) return false;
  const pid_t first = fork();
  if (first == 0) {
    prctl(PR_SET_NAME, kFirstProcess);
    dup2(life[0], 0);
    close_range(1, ~0u, 0);
    char byte;
    while (read(0, &byte, 1) < 0 && errno == EINTR) {
    }
    _exit(0);
  }
  close(life[0]);
  if (first < 0) {
    close(life[1]);
    return false;
  }
  life_ = life[1];
  return true;
}

// Its end of the socket is closed before the namespace is.
bool Namespaces::Live() const {
  char byte;
  return life_ < 0 || recv(life_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

}  // namespace kiln
