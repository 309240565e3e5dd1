#include "compiler/support/message_channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kReadStep = 1u << 20;
constexpr absl::Duration kPollStep = absl::Milliseconds(20);

}  // namespace

MessageChannel::~MessageChannel() {
  if (fd_ >= 0) close(fd_);
}

absl::Status MessageChannel::Ready(short events, const MessageWait& wait) {
  while (true) {
    if (wait.abandoned && wait.abandoned()) return absl::CancelledError("nobody waits for the answer");
    const MonotonicTime now = MonotonicNow();
    if (now >= wait.deadline) return absl::DeadlineExceededError("no answer before the deadline");
    int timeout = -1;
    if (wait.abandoned || wait.deadline != MonotonicTime::max()) {
      const absl::Duration step = wait.abandoned ? kPollStep : absl::Seconds(1);
      const absl::Duration left = std::min(absl::FromChrono(wait.deadline - now), step);
      timeout = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    }
    pollfd entry{fd_, events, 0};
    const int ready = poll(&entry, 1, timeout);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::UnavailableError(absl::StrCat("poll: ", strerror(errno)));
  }
}

absl::Status MessageChannel::ReadExactly(size_t bytes, std::string* to, const MessageWait& wait) {
  to->clear();
  while (to->size() < bytes) {
    const size_t begin = to->size();
    to->resize(begin + std::min(kReadStep, bytes - begin));
    const ssize_t got = recv(fd_, to->data() + begin, to->size() - begin, MSG_DONTWAIT);
    to->resize(begin + std::max<ssize_t>(got, 0));
    if (got == 0) return absl::UnavailableError("the peer closed the stream");
    if (got > 0) continue;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return absl::UnavailableError(absl::StrCat("read: ", strerror(errno)));
    KILN_RETURN_IF_ERROR(Ready(POLLIN, wait));
  }
  return absl::OkStatus();
}

absl::Status MessageChannel::Read(google::protobuf::MessageLite* message, const MessageWait& wait) {
  std::string bytes;
  KILN_RETURN_IF_ERROR(ReadExactly(kLengthBytes, &bytes, wait));
  uint32_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  if (length > bytes_max_)
    return absl::DataLossError(absl::StrCat("frame of ", length, " bytes, limit ", bytes_max_));
  KILN_RETURN_IF_ERROR(ReadExactly(length, &bytes, wait));
  if (!message->ParseFromString(bytes)) return absl::DataLossError("bytes that are no frame");
  return absl::OkStatus();
}

absl::Status MessageChannel::Write(const google::protobuf::MessageLite& message, const MessageWait& wait) {
  const size_t length = message.ByteSizeLong();
  if (length > bytes_max_)
    return absl::ResourceExhaustedError(absl::StrCat("frame of ", length, " bytes, limit ", bytes_max_));
  std::string bytes(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) bytes[i] = static_cast<char>((length >> (8 * i)) & 0xff);
  if (!message.AppendToString(&bytes)) return absl::InternalError("frame does not serialize");
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t put = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put > 0) {
      sent += put;
      continue;
    }
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno != EAGAIN) return absl::UnavailableError(absl::StrCat("write: ", strerror(errno)));
    KILN_RETURN_IF_ERROR(Ready(POLLOUT, wait));
  }
  return absl::OkStatus();
}

}  // namespace kiln
