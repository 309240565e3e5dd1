// Frames between kilnd and a kiln-worker: v1::Frame of at most kFrameBytesMax over a stream socketpair
// (compiler/support/message_channel.h, whose errors these are). Used by both sides; neither believes the
// other.
//
// A FrameChannel owns its descriptor. Threads: one at a time.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/support/message_channel.h"
#include "kiln/v1/worker.pb.h"

namespace kiln {

using FrameWait = MessageWait;

class FrameChannel {
 public:
  explicit FrameChannel(int fd);

  absl::Status Write(const v1::Frame& frame, const FrameWait& wait);
  absl::StatusOr<v1::Frame> Read(const FrameWait& wait);
  int fd() const { return channel_.fd(); }

 private:
  MessageChannel channel_;
};

// The served side: says `hello`, then gives each request its answer, a failed one's as an error frame, until
// the peer closes the stream (OK) or the channel fails (its error).
absl::Status ServeFrames(FrameChannel& channel, const v1::Frame& hello,
                         absl::FunctionRef<absl::StatusOr<v1::Frame>(const v1::Frame& request)> answer);

}  // namespace kiln
