// Messages over a stream socketpair: a little-endian uint32 length, then a serialized protobuf message. Used
// by both sides; neither believes the other.
//
// Owns its descriptor. Threads: one at a time. A write to a peer that has gone raises no SIGPIPE. Errors
// leave the stream at an unknown place, so the channel is useless afterwards:
//   UNAVAILABLE         the peer closed the stream
//   DEADLINE_EXCEEDED   the deadline passed
//   CANCELLED           `abandoned` returned true (asked about every 20 ms)
//   DATA_LOSS           a length beyond `bytes_max`, or bytes that are no such message
// RESOURCE_EXHAUSTED: the message is longer than `bytes_max`; nothing was written.
// Memory grows with the bytes that arrived, never with the length that was claimed.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "compiler/support/monotonic_time.h"
#include "google/protobuf/message_lite.h"

namespace kiln {

struct MessageWait {
  MonotonicTime deadline = MonotonicTime::max();
  std::function<bool()> abandoned;  // empty: never
};

class MessageChannel {
 public:
  MessageChannel(int fd, size_t bytes_max) : fd_(fd), bytes_max_(bytes_max) {}
  ~MessageChannel();
  MessageChannel(const MessageChannel&) = delete;
  MessageChannel& operator=(const MessageChannel&) = delete;

  absl::Status Write(const google::protobuf::MessageLite& message, const MessageWait& wait);
  absl::Status Read(google::protobuf::MessageLite* message, const MessageWait& wait);
  int fd() const { return fd_; }

 private:
  absl::Status Ready(short events, const MessageWait& wait);
  absl::Status ReadExactly(size_t bytes, std::string* to, const MessageWait& wait);

  const int fd_;
  const size_t bytes_max_;
};

}  // namespace kiln
