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

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/thread_priority.h"
#include "compiler/worker/namespaces.h"
#include "compiler/worker/sandbox.h"

namespace kiln {
namespace {

enum MessageKind : int32_t { kSpawn = 1, kReap = 2, kForget = 3 };
constexpr int kWorkerFrameFd = 3;
constexpr int kWorkerRootFd = 4;
constexpr absl::Duration kReapStepMin = absl::Milliseconds(1), kReapStepMax = absl::Milliseconds(50);
constexpr int kFirstOwnFd = 16;  // of the zygote: out of the way of those that a worker starts with
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

// In the zygote's process: what it takes to start a worker.
class Starter {
 public:
  Starter(int binary, const Zygote::Program& program)
      : zygote_(getpid()), binary_(binary), namespaces_(Namespaces::Enter(program.gpu)) {
    words_ = {program.binary.substr(program.binary.rfind('/') + 1), absl::StrCat("--fd=", kWorkerFrameFd)};
    words_.insert(words_.end(), program.args.begin(), program.args.end());
    if (geteuid() == 0) words_.push_back(absl::StrCat("--own-user=", kWorkerUid));
    for (const SandboxLayer& layer : namespaces_.layers()) {
      words_.push_back(absl::StrCat("--layer=", LayerWord(layer)));
    }
    if (namespaces_.empty_root() < 0) return;
    empty_root_ = fcntl(namespaces_.empty_root(), F_DUPFD_CLOEXEC, kFirstOwnFd);
    words_.push_back(absl::StrCat("--empty-root=", kWorkerRootFd));
  }

  bool CanStart() const { return namespaces_.Live(); }

  // The worker's pid; -1 and errno.
  pid_t Start(int frames) {
    const pid_t pid = fork();
    if (pid == 0) BecomeWorker(frames);
    return pid;
  }

 private:
  [[noreturn]] void BecomeWorker(int frames) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // From a namespace of processes of their own, workers see their parent as 0.
    if (getppid() != zygote_ && getppid() != 0) _exit(125);
    for (int signal_number : {SIGINT, SIGTERM, SIGHUP}) signal(signal_number, SIG_DFL);
    if (dup2(frames, kWorkerFrameFd) < 0) _exit(125);
    fcntl(kWorkerFrameFd, F_SETFD, 0);
    if (empty_root_ >= 0 && dup2(empty_root_, kWorkerRootFd) < 0) _exit(125);
    close_range(empty_root_ < 0 ? kWorkerFrameFd + 1 : kWorkerRootFd + 1, ~0u, CLOSE_RANGE_CLOEXEC);
    std::vector<char*> argv;
    for (std::string& word : words_) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::vector<std::string> environment;
    for (const char* name : kPassedOn) {
      if (const char* value = getenv(name)) environment.push_back(absl::StrCat(name, "=", value));
    }
    std::vector<char*> envp;
    for (std::string& word : environment) envp.push_back(word.data());
    envp.push_back(nullptr);
    fexecve(binary_, argv.data(), envp.data());
    _exit(126);
  }

  const pid_t zygote_;
  const int binary_;
  std::vector<std::string> words_;
  Namespaces namespaces_;
  int empty_root_ = -1;
};

// What is killed and has not died when nobody waits for it any more.
class Undead {
 public:
  void Add(pid_t pid) { pids_.push_back(pid); }
  void ReapSome() {
    std::erase_if(pids_, [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; });
  }

 private:
  std::vector<pid_t> pids_;
};

// Standard input reads nothing, and what is written goes there.
void UseAsOutput(int output) {
  const int nothing = open("/dev/null", O_RDWR);
  if (nothing >= 0) {
    dup2(nothing, STDIN_FILENO);
    dup2(nothing, STDOUT_FILENO);
  }
  dup2(output, STDERR_FILENO);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Zygote>> Zygote::Fork(const Program& program) {
  const int opened = open(program.binary.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0)
    return absl::NotFoundError(absl::StrCat("worker binary ", program.binary, ": ", strerror(errno)));
  const int binary = fcntl(opened, F_DUPFD_CLOEXEC, kFirstOwnFd);
  close(opened);
  int pair[2], output[2];
  // Who writes faster than kilnd reads loses words, and waits for nobody.
  if (binary < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0 ||
      pipe2(output, O_CLOEXEC | O_NONBLOCK) != 0) {
    return Errno("start the zygote");
  }
  const pid_t pid = fork();
  if (pid < 0) return Errno("fork the zygote");
  if (pid == 0) {
    UseAsOutput(output[1]);
    // One above the binary's descriptor: everything else that kilnd had open goes.
    const int link = fcntl(pair[1], F_DUPFD_CLOEXEC, binary + 1);
    close_range(3, binary - 1, 0);
    if (link > binary + 1) close_range(binary + 1, link - 1, 0);
    close_range(link + 1, ~0u, 0);
    Serve(link, binary, program);
  }
  close(pair[1]);
  close(binary);
  close(output[1]);
  return std::unique_ptr<Zygote>(new Zygote(pair[0], pid, output[0]));
}

Zygote::~Zygote() {
  close(fd_);
  int status;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

void Zygote::Serve(int fd, int binary, const Program& program) {
  // A Ctrl-C or a hang-up at the terminal is kilnd's to handle: it drains, and needs its workers for that.
  setsid();
  if (!program.gpu) LowerSessionPriority(kWorkerNiceness);
  for (int signal_number : {SIGINT, SIGTERM, SIGHUP}) signal(signal_number, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_NAME, "kilnd-zygote");
  Starter starter(binary, program);
  prctl(PR_SET_DUMPABLE, 0);
  Undead undead;
  Message message;
  int passed = -1;
  while (ReceiveMessage(fd, &message, sizeof(message), &passed)) {
    Message reply;
    reply.kind = message.kind;
    undead.ReapSome();
    if (message.kind == kSpawn && passed >= 0) {
      reply.pid = starter.Start(passed);
      if (reply.pid < 0) reply.status = errno;
      if (!starter.CanStart()) break;  // and all workers have ended
    } else if (message.kind == kReap) {
      reply.pid = message.pid;
      kill(message.pid, SIGKILL);
      reply.lives = waitpid(message.pid, &reply.status, WNOHANG) == 0;
    } else if (message.kind == kForget) {
      undead.Add(message.pid);
    }
    if (passed >= 0) close(passed);
    if (!SendMessage(fd, &reply, sizeof(reply), -1).ok()) break;
  }
  _exit(0);
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
  KILN_RETURN_IF_ERROR(output_.Start());
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
  const MonotonicTime deadline = MonotonicAfter(kReapLimit);
  for (absl::Duration step = kReapStepMin;; step = std::min(2 * step, kReapStepMax)) {
    KILN_ASSIGN_OR_RETURN(const Message reply, Ask(request, -1));
    if (!reply.lives) return reply.status;
    if (MonotonicNow() > deadline) break;
    absl::SleepFor(step);
  }
  request.kind = kForget;
  KILN_RETURN_IF_ERROR(Ask(request, -1).status());
  return absl::DeadlineExceededError(absl::StrCat(
      "process ", pid, " does not die of SIGKILL: what it waits for in the kernel does not answer"));
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
