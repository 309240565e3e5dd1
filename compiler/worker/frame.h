// Frames between kilnd and a kiln-worker: a little-endian uint32 length, then a serialized v1::Frame,
// over a stream socketpair. Used by both sides; neither believes the other.
//
// A FrameChannel owns its descriptor. Threads: one at a time. Errors leave the stream at an unknown
// place, so the channel is useless afterwards:
//   UNAVAILABLE        the peer closed the stream
//   DEADLINE_EXCEEDED  the deadline passed
//   CANCELLED          `abandoned` returned true (asked about every 20 ms)
//   DATA_LOSS          a length beyond kFrameBytesMax, or bytes that are no Frame
// Memory grows with the bytes that arrived, never with the length that was claimed.
#pragma once

#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/support/monotonic_time.h"
#include "kiln/v1/worker.pb.h"

namespace kiln {

struct FrameWait {
  MonotonicTime deadline = MonotonicTime::max();
  std::function<bool()> abandoned;  // empty: never
};

class FrameChannel {
 public:
  explicit FrameChannel(int fd) : fd_(fd) {}
  ~FrameChannel();
  FrameChannel(const FrameChannel&) = delete;
  FrameChannel& operator=(const FrameChannel&) = delete;

  absl::Status Write(const v1::Frame& frame, const FrameWait& wait);
  absl::StatusOr<v1::Frame> Read(const FrameWait& wait);
  int fd() const { return fd_; }

 private:
  absl::Status Ready(short events, const FrameWait& wait);
  absl::Status ReadExactly(size_t bytes, std::string* to, const FrameWait& wait);

  const int fd_;
};

// The served side: says `hello`, then gives each request its answer, a failed one's as an error frame, until
// the peer closes the stream (OK) or the channel fails (its error).
absl::Status ServeFrames(FrameChannel& channel, const v1::Frame& hello,
                         absl::FunctionRef<absl::StatusOr<v1::Frame>(const v1::Frame& request)> answer);

}  // namespace kiln
