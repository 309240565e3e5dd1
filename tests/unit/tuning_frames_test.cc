// What a worker is asked for a product to be measured, and what is made of its answers.
#include "server/flight/tuning_frames.h"

#include "compiler/support/limits.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

// A record of kernels of our own holds for the compiler that made them, one of libraries alone for all.
TEST(PlanOf, NamesTheCompilerWhoseCodeIsMeasured) {
  WorkerResult result;
  v1::PlanReply* plan = result.reply.mutable_plan_reply();
  plan->mutable_program()->set_format_version(kProgramFormatVersion);
  plan->add_tunables()->mutable_product()->set_batch(1);
  plan->add_tunables()->mutable_kernel()->set_units(1);
  plan->add_tunables()->mutable_convolution()->set_dtype(v1::F32);
  const absl::StatusOr<v1::PlanReply> named = PlanOf(result, "one");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->tunables(0).compiler(), "one");
  EXPECT_EQ(named->tunables(1).compiler(), "one");
  EXPECT_EQ(named->tunables(2).compiler(), "");
  plan->mutable_program()->set_format_version(kProgramFormatVersion + 1);
  EXPECT_FALSE(PlanOf(result, "one").ok());
  result.status = absl::UnavailableError("gone");
  EXPECT_TRUE(absl::IsUnavailable(PlanOf(result, "one").status()));
}

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
