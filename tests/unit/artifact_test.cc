// A worker's plan and kernels: checked, and made a manifest and its entries.
#include "server/build/artifact.h"

#include <functional>
#include <iterator>
#include <string>

#include "compiler/support/compiler_limits.h"
#include "gtest/gtest.h"
#include "tests/unit/test_signatures.h"

namespace kiln {
namespace {

v1::PlanReply GoodPlan() {
  v1::PlanReply plan;
  plan.mutable_program()->set_format_version(kProgramFormatVersion);
  plan.mutable_program()->add_buffers();
  plan.add_kernels()->set_kernel("k");
  plan.mutable_program()->add_steps()->mutable_launch()->add_buffers(0);
  return plan;
}

TEST(CheckPlan, RefusesWhatDoesNotFitTogether) {
  ASSERT_TRUE(CheckPlan(GoodPlan()).ok()) << CheckPlan(GoodPlan());
  const std::function<void(v1::PlanReply*)> spoils[] = {
      [](v1::PlanReply* p) { p->mutable_program()->set_format_version(kProgramFormatVersion + 1); },
      [](v1::PlanReply* p) { p->mutable_kernels(0)->clear_kernel(); },
      [](v1::PlanReply* p) { p->mutable_program()->mutable_steps(0)->mutable_launch()->set_kernel(1); },
      [](v1::PlanReply* p) { p->mutable_program()->mutable_steps(0)->mutable_launch()->set_buffers(0, 1); },
      [](v1::PlanReply* p) { p->mutable_program()->add_steps()->mutable_free()->set_buffer(1); },
      [](v1::PlanReply* p) { p->mutable_program()->add_steps()->mutable_alloc()->set_reuse(1); },
      [](v1::PlanReply* p) { p->mutable_program()->add_steps()->mutable_call(); },
      [](v1::PlanReply* p) { p->mutable_program()->add_steps(); },
      [](v1::PlanReply* p) { p->mutable_program()->add_outputs()->set_buffer(1); },
      [](v1::PlanReply* p) { p->mutable_guards()->add_conditions(0); },
      [](v1::PlanReply* p) { p->mutable_kernels(0)->mutable_notes()->add_sources("model.py:3 in forward"); },
  };
  for (size_t i = 0; i < std::size(spoils); ++i) {
    v1::PlanReply plan = GoodPlan();
    spoils[i](&plan);
    EXPECT_EQ(CheckPlan(plan).code(), absl::StatusCode::kInternal) << i;
  }
}

TEST(PlainNames, StayBelowTheirDirectory) {
  for (const char* good : {"00_graph.txt", "kernels/softmax-1.loops.txt", "a"})
    EXPECT_TRUE(IsPlainName(good)) << good;
  for (const char* bad :
       {"", ".", "..", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "a/.b", "a b", "a\n", "a\\b"}) {
    EXPECT_FALSE(IsPlainName(bad)) << bad;
  }
  EXPECT_TRUE(IsPlainName(std::string(kStringMax, 'a')));
  EXPECT_FALSE(IsPlainName(std::string(kStringMax + 1, 'a')));
}

TEST(Manifests, HoldNoTimes) {
  v1::EmitReply reply;
  reply.set_kind(v1::FLAT_IMAGE);
  reply.set_object("code");
  const auto kernel = PackKernel("key", "k", reply);
  ASSERT_TRUE(kernel.ok());
  std::string first;
  for (double seconds : {0.5, 1.5}) {
    v1::PlanReply plan = GoodPlan();
    plan.mutable_statistics()->set_plan_seconds(seconds);
    ArtifactIngredients ingredients;
    ingredients.signatures = &TestSignatures();
    ingredients.compile_key = std::string(32, 'c');
    ingredients.request_key = std::string(32, 'r');
    ingredients.kernels = absl::MakeConstSpan(&*kernel, 1);
    const Artifact artifact = AssembleArtifact(ingredients, std::move(plan));
    if (first.empty()) first = artifact.signed_manifest.manifest();
    EXPECT_EQ(artifact.signed_manifest.manifest(), first);
    EXPECT_EQ(artifact.entries.back().id.kind, EntryKind::kManifest)
        << "last: nothing refers to what is not there";
  }
}

TEST(PackKernel, RefusesNonsense) {
  v1::EmitReply reply;
  reply.set_object("code");
  EXPECT_EQ(PackKernel("key", "k", reply).status().code(), absl::StatusCode::kInternal);
  reply.set_kind(v1::OBJECT_UNSPECIFIED);
  EXPECT_EQ(PackKernel("key", "k", reply).status().code(), absl::StatusCode::kInternal);
  reply.set_kind(v1::GPU_IMAGE);
  EXPECT_TRUE(PackKernel("key", "k", reply).ok());
  reply.clear_object();
  EXPECT_EQ(PackKernel("key", "k", reply).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace kiln
