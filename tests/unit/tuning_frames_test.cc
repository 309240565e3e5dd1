// What a worker is asked for what is measured, and what is made of its answers.
#include "server/flight/tuning_frames.h"

#include "compiler/support/compiler_limits.h"
#include "compiler/support/proto_util.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

// A record of kernels of our own holds for the compiler that made them, one of libraries alone for all.
TEST(PlanOf, NamesTheCompilerWhoseCodeIsMeasured) {
  WorkerResult result;
  v1::PlanReply* plan = result.reply.mutable_plan_reply();
  plan->mutable_program()->set_format_version(kProgramFormatVersion);
  plan->add_tunables()->mutable_gemm()->set_batch(1);
  plan->add_tunables()->mutable_kernel()->set_units(1);
  plan->add_tunables()->mutable_convolution()->set_dtype(v1::F32);
  for (int i : {0, 2}) *plan->mutable_images()->add_measured()->mutable_tunable() = plan->tunables(i);
  const absl::StatusOr<v1::PlanReply> named = PlanOf(result, "one");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->tunables(0).compiler(), "one");
  EXPECT_EQ(named->tunables(1).compiler(), "one");
  EXPECT_EQ(named->tunables(2).compiler(), "");
  // What layouts are weighed by has the same keys.
  for (int i : {0, 1}) {
    EXPECT_EQ(named->images().measured(i).tunable().SerializeAsString(),
              named->tunables(2 * i).SerializeAsString());
  }
  plan->mutable_program()->set_format_version(kProgramFormatVersion + 1);
  EXPECT_FALSE(PlanOf(result, "one").ok());
  result.status = absl::UnavailableError("gone");
  EXPECT_TRUE(absl::IsUnavailable(PlanOf(result, "one").status()));
}

v1::Target TargetOf(const char* feature) {
  v1::Target target;
  target.add_features(feature);
  return target;
}

v1::Kernel Planned() {
  v1::Kernel kernel;
  kernel.set_symbol_count(2);
  kernel.mutable_schedule()->set_parallel_dims(1);
  kernel.mutable_schedule()->set_chunk(4);
  kernel.mutable_schedule()->set_vector_dim(v1::VECTOR_INNER_LAST);
  kernel.mutable_schedule()->set_members(3);
  return kernel;
}

v1::KernelSchedule OfThreads(uint32_t threads) {
  v1::KernelSchedule schedule = Planned().schedule();
  schedule.mutable_threads()->set_threads(threads);
  return schedule;
}

v1::KernelSchedule OfVectors(uint32_t lanes) {
  v1::KernelSchedule schedule = Planned().schedule();
  schedule.mutable_vectors()->set_lanes(lanes);
  return schedule;
}

TEST(FramesOfSchedules, EmitTheKernelByEach) {
  const auto emits = [](const v1::Target& target, const v1::KernelSchedule& own,
                        const v1::KernelSchedule& other) {
    v1::Kernel kernel = Planned();
    *kernel.mutable_schedule() = own;
    const std::string planned = SerializeDeterministic(kernel);
    v1::KernelTunable tunable;
    *tunable.add_schedules() = own;
    *tunable.add_schedules() = other;
    v1::KernelNotes notes;
    notes.set_name("measured");
    const auto frames = FramesOfSchedules(tunable, planned, notes, target);
    ASSERT_TRUE(frames.ok()) << frames.status();
    ASSERT_EQ(frames->size(), 2u);
    EXPECT_EQ((*frames)[0].emit().kernel(), planned);
    *kernel.mutable_schedule() = other;
    EXPECT_EQ((*frames)[1].emit().kernel(), SerializeDeterministic(kernel));
    EXPECT_EQ((*frames)[1].emit().notes().name(), "measured");
    EXPECT_EQ((*frames)[1].emit().target().features(0), target.features(0));
  };
  emits(TargetOf("sm_90a"), OfThreads(256), OfThreads(128));
  emits(TargetOf("avx2"), OfVectors(8), OfVectors(1));
}

TEST(WithSchedule, WhatIsForAnotherDeviceOrOtherLoopsIsRefused) {
  const std::string kernel = SerializeDeterministic(Planned());
  const auto refused = [&](const char* feature, const v1::KernelSchedule& schedule, const char* why) {
    const v1::Target target = TargetOf(feature);
    const absl::Status status = WithSchedule(kernel, schedule, target).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find(why), std::string::npos) << status;
    v1::KernelTunable tunable;  // the default's, too
    *tunable.add_schedules() = schedule;
    EXPECT_EQ(FramesOfSchedules(tunable, kernel, {}, target).status(), status);
  };
  refused("sm_90", OfVectors(8), "not of a GPU's threads");
  refused("avx2", OfThreads(256), "not of a CPU's vectors");
  for (const char* feature : {"sm_90", "avx2"}) refused(feature, Planned().schedule(), "not of");
  v1::KernelSchedule other = OfThreads(256);
  other.set_chunk(8);
  refused("sm_90", other, "other loops");
  other = OfThreads(256);
  other.set_members(0);
  refused("sm_90", other, "other loops");
  other = OfVectors(8);
  other.set_vector_dim(v1::VECTOR_NONE);
  refused("avx2", other, "other loops");
  EXPECT_TRUE(absl::IsInvalidArgument(WithSchedule("no kernel", OfVectors(8), TargetOf("avx2")).status()));
  EXPECT_TRUE(WithSchedule(kernel, OfVectors(8), TargetOf("avx2")).ok());
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
