#include "tests/conformance/emulated_cpu.h"

#include <elf.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/image/flat_image.h"
#include "compiler/support/status_macros.h"

extern char** environ;

namespace kiln::testing {
namespace {

template <typename T>
absl::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<EmulatedCpu>> EmulatedCpu::Start() {
#ifdef KILN_AARCH64_RUNNER
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    return absl::InternalError("emulator: no pair of sockets");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO}) {
    posix_spawn_file_actions_adddup2(&actions, sockets[1], standard);
  }
  char* const arguments[] = {const_cast<char*>(KILN_AARCH64_QEMU), const_cast<char*>(KILN_AARCH64_RUNNER),
                             nullptr};
  pid_t process = 0;
  const int error = posix_spawn(&process, arguments[0], &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(sockets[1]);
  if (error == 0) return std::unique_ptr<EmulatedCpu>(new EmulatedCpu(process, sockets[0]));
  close(sockets[0]);
  return absl::InternalError(absl::StrCat("emulator: ", strerror(error)));
#else
  return absl::UnavailableError("built without qemu-user-static and g++-aarch64-linux-gnu");
#endif
}

EmulatedCpu::~EmulatedCpu() {
  close(socket_);  // the end of its input
  if (process_ != 0) waitpid(process_, nullptr, 0);
}

absl::Status EmulatedCpu::Ended() {
  int how = 0;
  if (process_ == 0 || waitpid(process_, &how, 0) != process_) return absl::InternalError("emulator: gone");
  process_ = 0;
  return absl::InternalError(WIFSIGNALED(how) ? absl::StrCat("emulator: ended by ", strsignal(WTERMSIG(how)))
                                              : absl::StrCat("emulator: ended with ", WEXITSTATUS(how)));
}

absl::Status EmulatedCpu::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return Ended();
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status EmulatedCpu::Receive(void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t count = recv(socket_, at, bytes, 0);
    if (count <= 0) return Ended();
    at += count;
    bytes -= static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

absl::Status EmulatedCpu::Load(absl::string_view image, uint64_t place) {
  KILN_RETURN_IF_ERROR(CheckFlatImage(image));
  FlatImageHeader header;
  std::memcpy(&header, image.data(), sizeof(header));
  if (header.machine != EM_AARCH64) {
    return absl::FailedPreconditionError("emulator: an image for another machine");
  }
  image_ = std::string(image);
  place_ = place;
  entry_ = header.entry_offset;
  return absl::OkStatus();
}

absl::StatusOr<EmulatedReply> EmulatedCpu::Run(const std::vector<Buffer>& buffers,
                                               const std::vector<int64_t>& symbols,
                                               const std::vector<EmulatedPiece>& pieces) {
  const EmulatedRequest request = {image_.size(),
                                   place_,
                                   entry_,
                                   static_cast<uint32_t>(buffers.size()),
                                   static_cast<uint32_t>(symbols.size()),
                                   pieces.size()};
  std::string message(BytesOf(request));
  for (const int64_t symbol : symbols) absl::StrAppend(&message, BytesOf(symbol));
  for (const EmulatedPiece& piece : pieces) absl::StrAppend(&message, BytesOf(piece));
  for (const Buffer& buffer : buffers) {
    absl::StrAppend(&message, BytesOf(EmulatedBuffer{buffer.bytes->size(), buffer.place}));
  }
  message.append(std::exchange(image_, ""));
  for (const Buffer& buffer : buffers) message.append(*buffer.bytes);
  KILN_RETURN_IF_ERROR(Send(message));
  EmulatedReply reply;
  KILN_RETURN_IF_ERROR(Receive(&reply, sizeof(reply)));
  for (const Buffer& buffer : buffers) {
    KILN_RETURN_IF_ERROR(Receive(buffer.bytes->data(), buffer.bytes->size()));
  }
  return reply;
}

}  // namespace kiln::testing
