#include "compiler/worker/frame.h"

#include <string>

#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {

FrameChannel::FrameChannel(int fd) : channel_(fd, kFrameBytesMax) {}

absl::Status FrameChannel::Write(const v1::Frame& frame, const FrameWait& wait) {
  return channel_.Write(frame, wait);
}

absl::StatusOr<v1::Frame> FrameChannel::Read(const FrameWait& wait) {
  v1::Frame frame;
  KILN_RETURN_IF_ERROR(channel_.Read(&frame, wait));
  return frame;
}

absl::Status ServeFrames(FrameChannel& channel, const v1::Frame& hello,
                         absl::FunctionRef<absl::StatusOr<v1::Frame>(const v1::Frame& request)> answer) {
  KILN_RETURN_IF_ERROR(channel.Write(hello, {}));
  while (true) {
    absl::StatusOr<v1::Frame> request = channel.Read({});
    if (absl::IsUnavailable(request.status())) return absl::OkStatus();
    KILN_RETURN_IF_ERROR(request.status());
    absl::StatusOr<v1::Frame> answered = answer(*request);
    v1::Frame reply;
    if (answered.ok()) {
      reply = *std::move(answered);
    } else {
      reply.mutable_error()->set_code(static_cast<int>(answered.status().code()));
      reply.mutable_error()->set_message(std::string(answered.status().message()));
    }
    reply.set_id(request->id());
    KILN_RETURN_IF_ERROR(channel.Write(reply, {}));
  }
}

}  // namespace kiln
