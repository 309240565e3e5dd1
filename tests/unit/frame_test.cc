// Frames between kilnd and its workers.
#include "compiler/worker/frame.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "compiler/support/compiler_limits.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

class Frames : public testing::Test {
 protected:
  Frames() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    ours_ = std::make_unique<FrameChannel>(pair[0]);
    theirs_ = pair[1];
  }
  ~Frames() override { Hangup(); }
  void Hangup() {
    if (theirs_ >= 0) close(theirs_);
    theirs_ = -1;
  }
  void Raw(const std::string& bytes) { ASSERT_EQ(write(theirs_, bytes.data(), bytes.size()), bytes.size()); }
  static FrameWait Soon() { return {MonotonicAfter(absl::Milliseconds(200)), nullptr}; }

  std::unique_ptr<FrameChannel> ours_;
  int theirs_ = -1;
};

TEST_F(Frames, TravelWhole) {
  FrameChannel peer(theirs_);
  theirs_ = -1;
  v1::Frame frame;
  frame.set_id(7);
  frame.mutable_plan()->set_graph(std::string(5 << 20, 'g'));  // more than the socket's buffer
  std::thread writer([&] { EXPECT_TRUE(peer.Write(frame, {}).ok()); });
  const auto got = ours_->Read({MonotonicAfter(absl::Seconds(10)), nullptr});
  writer.join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->SerializeAsString(), frame.SerializeAsString());
}

TEST_F(Frames, ALengthBeyondTheLimitIsRefusedAtOnce) {
  const uint32_t length = kFrameBytesMax + 1;
  Raw(std::string(reinterpret_cast<const char*>(&length), 4));
  EXPECT_EQ(ours_->Read(Soon()).status().code(), absl::StatusCode::kDataLoss);
}

// Of a smaller limit, as one message of the frames' takes much memory.
TEST_F(Frames, AMessageBeyondTheLimitIsNotWritten) {
  v1::Frame frame;
  frame.mutable_plan()->set_graph("graph");
  const size_t bytes = frame.ByteSizeLong();
  for (const bool fits : {true, false}) {
    MessageChannel channel(dup(theirs_), fits ? bytes : bytes - 1);
    EXPECT_EQ(channel.Write(frame, Soon()).code(),
              fits ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
  }
}

TEST_F(Frames, AClaimedLengthCostsNothingUntilBytesCome) {
  const uint32_t length = kFrameBytesMax;
  Raw(std::string(reinterpret_cast<const char*>(&length), 4) + "few");
  EXPECT_EQ(ours_->Read(Soon()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(Frames, NonsenseIsDataLossAndAnEndIsUnavailable) {
  Raw(std::string("\x03\0\0\0\xff\xff\xff", 7));
  EXPECT_EQ(ours_->Read(Soon()).status().code(), absl::StatusCode::kDataLoss);
  Raw(std::string("\x09\0\0\0half", 8));
  Hangup();
  EXPECT_EQ(ours_->Read(Soon()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(Frames, AnAbandonedReadEndsSoon) {
  const absl::Time start = absl::Now();
  const auto got =
      ours_->Read({MonotonicTime::max(), [&] { return absl::Now() - start > absl::Milliseconds(50); }});
  EXPECT_EQ(got.status().code(), absl::StatusCode::kCancelled);
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

TEST_F(Frames, AWriteNobodyReadsEndsAtItsDeadline) {
  v1::Frame frame;
  frame.mutable_plan()->set_graph(std::string(8 << 20, 'g'));
  EXPECT_EQ(ours_->Write(frame, Soon()).code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace kiln
