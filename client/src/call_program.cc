#include "client/src/call_program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "client/src/call_messages.h"
#include "client/src/daemon.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"
#include "kiln/run_count.h"

extern char** environ;

namespace kiln {
namespace {

constexpr int kProgramFd = 3;
// Beyond what a call may take, for the program's start and the way back.
constexpr absl::Duration kMargin = absl::Seconds(10);

absl::Status CheckBinary(const std::string& binary) {
  if (!binary.empty() && access(binary.c_str(), X_OK) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "a process that was forked from one that has compiled has its graphs compiled by kiln-call, and ",
      binary.empty() ? "none was found beside kilnd" : absl::StrCat(binary, ": ", strerror(errno)),
      ": install kiln whole, or start such processes by \"spawn\" or \"forkserver\""));
}

// By way of a shell that leaves at once, so that the program is init's child: nobody who waits for children
// of its own meets it here. Where process 1 reaps nothing, as in a container without an init, it stays a
// zombie.
absl::Status Spawn(const std::string& binary, int theirs) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs, kProgramFd);  // first: `theirs` may be 0 or 1
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  const bool has_error = fcntl(2, F_GETFD) >= 0 && theirs != 2;
  if (!has_error) posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions, kProgramFd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const char* const words[] = {"/bin/sh", "-c", "\"$1\" <&3 3<&- &", "sh", binary.c_str(), nullptr};
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, words[0], &actions, &attributes, const_cast<char* const*>(words), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return absl::UnavailableError(absl::StrCat("cannot start ", binary, ": ", strerror(error)));
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

}  // namespace

CallProgram::CallProgram(int fd, const ClientOptions& options)
    : channel_(fd, kFrameBytesMax), call_limit_(absl::Seconds(options.compile_seconds) + kMargin) {}

CallProgram::~CallProgram() {
  // Of both ends and all copies: a child of this process may have one.
  shutdown(channel_.fd(), SHUT_RDWR);
}

absl::StatusOr<std::unique_ptr<CallProgram>> CallProgram::Start(const ClientOptions& options) {
  KILN_RETURN_IF_ERROR(CheckBinary(options.call_binary));
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(absl::StrCat("socketpair: ", strerror(errno)));
  }
  auto program = absl::WrapUnique(new CallProgram(ends[0], options));
  const absl::Status started = Spawn(options.call_binary, ends[1]);
  close(ends[1]);
  KILN_RETURN_IF_ERROR(started);
  v1::CallRequest request;
  *request.mutable_options() = ToMessage(options);
  if (options.address.empty() && options.cuda_libraries.IsEmpty()) {
    const CudaLibraries loaded = LoadedCudaLibraries();
    request.mutable_options()->set_cublas_lt(loaded.cublas_lt);
    request.mutable_options()->set_cudnn(loaded.cudnn);
    request.mutable_options()->set_cuda_driver(loaded.driver);
  }
  // Into the socket's buffer: the program need not run yet.
  KILN_RETURN_IF_ERROR(program->channel_.Write(request, {MonotonicAfter(kMargin), nullptr}));
  return program;
}

absl::StatusOr<CompiledArtifact> CallProgram::Get(const CompileRequestInput& input, bool compile,
                                                  uint64_t runs, Cancellation& cancellation) {
  v1::CallRequest request;
  request.set_runs(runs);
  *request.mutable_get() = ToMessage(input, compile);
  CompiledArtifact artifact;
  cancellation.OnCancel([this] { shutdown(channel_.fd(), SHUT_RDWR); });
  const absl::Status status = Ask(request, MonotonicAfter(call_limit_), &artifact);
  cancellation.OnCancel(nullptr);
  if (gone_ && cancellation.cancelled()) return absl::CancelledError("told to end");
  if (!status.ok()) return status;
  return artifact;
}

void CallProgram::ReportUse(uint64_t runs, absl::Duration limit) {
  v1::CallRequest request;
  request.set_runs(runs);
  request.mutable_report()->set_limit_seconds(absl::ToDoubleSeconds(limit));
  Ask(request, MonotonicAfter(limit), nullptr).IgnoreError();
}

absl::Status CallProgram::Ask(const v1::CallRequest& request, MonotonicTime deadline,
                              CompiledArtifact* artifact) {
  const MessageWait wait = {deadline, nullptr};
  const absl::Status written = channel_.Write(request, wait);
  // Nothing of one that is too long was written.
  asked_ = written.ok();
  gone_ = !written.ok() && !absl::IsResourceExhausted(written);
  if (!written.ok()) return StatusWrap(written, "kiln-call");
  v1::CallReply reply;
  for (gone_ = true;; reply.Clear()) {
    const absl::Status read = channel_.Read(&reply, wait);
    if (absl::IsUnavailable(read)) {
      return absl::UnavailableError("kiln-call, which makes the calls of a process that was forked, ended");
    }
    if (!read.ok()) return StatusWrap(read, "kiln-call");
    if (reply.has_object() && artifact != nullptr) {
      artifact->objects[reply.object().digest()] =
          std::make_shared<const std::string>(std::move(*reply.mutable_object()->mutable_contents()));
    } else if (reply.has_debug_file() && artifact != nullptr) {
      artifact->debug_files.push_back(std::move(*reply.mutable_debug_file()));
    } else if (reply.has_end()) {
      break;
    } else {
      return absl::DataLossError("kiln-call: an answer to another question");
    }
  }
  gone_ = false;
  CountRun(reply.end().runs());
  if (artifact != nullptr) FromMessage(std::move(*reply.mutable_end()->mutable_artifact()), artifact);
  return FromMessage(reply.end());
}

}  // namespace kiln
