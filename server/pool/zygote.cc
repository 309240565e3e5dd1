#include "server/pool/zygote.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

enum MessageKind : int32_t { kSpawn = 1, kReap = 2 };
constexpr int kWorkerFrameFd = 3;
// What a worker sees of the environment: what sanitizers read, and which GPUs are to be used.
constexpr const char* kPassedOn[] = {"ASAN_OPTIONS", "CUDA_VISIBLE_DEVICES", "LSAN_OPTIONS", "TSAN_OPTIONS",
                                     "UBSAN_OPTIONS"};

absl::Status Errno(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::Status SendMessage(int fd, const void* bytes, size_t size, int pass_fd) {
  iovec part{const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (pass_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &pass_fd, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(fd, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(size) ? absl::OkStatus() : Errno("send to the zygote");
}

// False at the end of the stream. `passed` is -1 when no descriptor came.
bool ReceiveMessage(int fd, void* bytes, size_t size, int* passed) {
  iovec part{bytes, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got;
  do {
    got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  *passed = -1;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      memcpy(passed, CMSG_DATA(header), sizeof(int));
    }
  }
  return got == static_cast<ssize_t>(size);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Zygote>> Zygote::Fork(const std::string& binary,
                                                     const std::vector<std::string>& args) {
  const int opened = open(binary.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return absl::NotFoundError(absl::StrCat("worker binary ", binary, ": ", strerror(errno)));
  // Out of the way of the descriptors that a worker starts with.
  const int program = fcntl(opened, F_DUPFD_CLOEXEC, 16);
  close(opened);
  int pair[2];
  if (program < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return Errno("start the zygote");
  }
  const pid_t pid = fork();
  if (pid < 0) return Errno("fork the zygote");
  if (pid == 0) {
    // One above the program's descriptor: everything else that kilnd had open goes.
    const int link = fcntl(pair[1], F_DUPFD_CLOEXEC, program + 1);
    close_range(3, program - 1, 0);
    if (link > program + 1) close_range(program + 1, link - 1, 0);
    close_range(link + 1, ~0u, 0);
    std::vector<std::string> words = {binary.substr(binary.rfind('/') + 1),
                                      absl::StrCat("--fd=", kWorkerFrameFd)};
    words.insert(words.end(), args.begin(), args.end());
    Serve(link, program, words);
  }
  close(pair[1]);
  close(program);
  return std::unique_ptr<Zygote>(new Zygote(pair[0], pid));
}

Zygote::~Zygote() {
  close(fd_);
  int status;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

void Zygote::Serve(int fd, int binary, const std::vector<std::string>& words) {
  // A Ctrl-C or a hang-up at the terminal is kilnd's to handle: it drains, and needs its workers for that.
  setsid();
  for (int signal_number : {SIGINT, SIGTERM, SIGHUP}) signal(signal_number, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_NAME, "kilnd-zygote");
  Message message;
  int passed = -1;
  while (ReceiveMessage(fd, &message, sizeof(message), &passed)) {
    Message reply;
    reply.kind = message.kind;
    if (message.kind == kSpawn && passed >= 0) {
      reply.pid = StartWorker(binary, words, passed);
      if (reply.pid < 0) reply.status = errno;
    } else if (message.kind == kReap) {
      reply.pid = message.pid;
      kill(message.pid, SIGKILL);
      while (waitpid(message.pid, &reply.status, 0) < 0 && errno == EINTR) {
      }
    }
    if (passed >= 0) close(passed);
    if (!SendMessage(fd, &reply, sizeof(reply), -1).ok()) break;
  }
  _exit(0);
}

int Zygote::StartWorker(int binary, std::vector<std::string> words, int frames) {
  const pid_t zygote = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != zygote) _exit(125);
  for (int signal_number : {SIGINT, SIGTERM, SIGHUP}) signal(signal_number, SIG_DFL);
  if (dup2(frames, kWorkerFrameFd) < 0) _exit(125);
  fcntl(kWorkerFrameFd, F_SETFD, 0);
  close_range(kWorkerFrameFd + 1, ~0u, CLOSE_RANGE_CLOEXEC);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> environment;
  for (const char* name : kPassedOn) {
    if (const char* value = getenv(name)) environment.push_back(absl::StrCat(name, "=", value));
  }
  std::vector<char*> envp;
  for (std::string& word : environment) envp.push_back(word.data());
  envp.push_back(nullptr);
  fexecve(binary, argv.data(), envp.data());
  _exit(126);
}

absl::StatusOr<Zygote::Message> Zygote::Ask(Message request, int pass_fd) {
  absl::MutexLock lock(&mutex_);
  KILN_RETURN_IF_ERROR(SendMessage(fd_, &request, sizeof(request), pass_fd));
  Message reply;
  int passed = -1;
  if (!ReceiveMessage(fd_, &reply, sizeof(reply), &passed)) {
    return absl::UnavailableError("the process that starts workers is gone");
  }
  return reply;
}

absl::StatusOr<Zygote::Worker> Zygote::Spawn() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return Errno("socketpair");
  Message request;
  request.kind = kSpawn;
  absl::StatusOr<Message> reply = Ask(request, pair[1]);
  close(pair[1]);
  if (reply.ok() && reply->pid < 0) {
    reply = absl::UnavailableError(absl::StrCat("fork a worker: ", strerror(reply->status)));
  }
  if (!reply.ok()) {
    close(pair[0]);
    return reply.status();
  }
  return Worker{reply->pid, pair[0]};
}

absl::StatusOr<int> Zygote::Reap(pid_t pid) {
  Message request;
  request.kind = kReap;
  request.pid = pid;
  KILN_ASSIGN_OR_RETURN(Message reply, Ask(request, -1));
  return reply.status;
}

bool Zygote::Lives() const {
  pollfd end = {fd_, /*events=*/0, /*revents=*/0};
  return poll(&end, 1, /*timeout=*/0) <= 0;
}

std::string DescribeWaitStatus(int status) {
  if (WIFSIGNALED(status)) return absl::StrCat("signal ", WTERMSIG(status));
  if (WIFEXITED(status)) return absl::StrCat("exit code ", WEXITSTATUS(status));
  return absl::StrCat("wait status ", status);
}

}  // namespace kiln
