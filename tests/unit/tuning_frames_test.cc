// What a worker is asked for a product to be measured, and what is made of its answer.
#include "server/flight/tuning_frames.h"

#include "gtest/gtest.h"

namespace kiln {
namespace {

TEST(NativesOf, SaysEachOnesSchedule) {
  WorkerResult result;
  v1::NativeKernel* native = result.reply.mutable_emit_reply()->add_natives();
  native->mutable_schedule()->set_tiles(1);
  native->mutable_schedule()->set_warps(8);
  native->mutable_schedule()->set_blocks(2);
  native->mutable_schedule()->set_steps(3);
  result.reply.mutable_emit_reply()->add_natives()->set_name("of another worker");
  const std::vector<v1::NativeKernel> natives = NativesOf(result);
  ASSERT_EQ(natives.size(), 2u);
  EXPECT_EQ(natives[0].name(), "16 columns, 8 warps, 2 blocks, 3 steps in flight");
  EXPECT_EQ(natives[1].name(), "of another worker");
  result.status = absl::UnavailableError("gone");
  EXPECT_TRUE(NativesOf(result).empty());
}

}  // namespace
}  // namespace kiln
