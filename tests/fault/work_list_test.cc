// The work list in the tuner's words, on a redis-server: an item that a trusted key has signed is measured
// only where it is what its name says.
#include "server/tune/work_list.h"

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "cache/shared/shared_tier.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/zstd.h"
#include "gtest/gtest.h"
#include "server/server_limits.h"
#include "tests/fault/redis_server.h"

namespace kiln {
namespace {

constexpr char kCompiler[] = "compiler";
constexpr char kNamespace[] = "test";

v1::Target TargetOf(const std::string& feature) {
  v1::Target target;
  target.set_triple("nvptx64-nvidia-cuda");
  target.add_features(feature);
  return target;
}

v1::TuningItem GemmItem() {
  v1::TuningItem item;
  item.mutable_tunable()->mutable_gemm()->set_batch(1);
  item.mutable_tunable()->set_compiler(kCompiler);
  *item.mutable_target() = TargetOf("sm_90");
  return item;
}

v1::TuningItem KernelItem(const std::string& kernel = "a kernel") {
  v1::TuningItem item;
  v1::KernelTunable& tunable = *item.mutable_tunable()->mutable_kernel();
  tunable.set_digest(Sha256(kernel));
  item.mutable_tunable()->set_compiler(kCompiler);
  tunable.add_schedules();
  *item.mutable_target() = TargetOf("sm_90a");
  item.set_kernel(ZstdCompress(kernel));
  return item;
}

class WorkListTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::IsThere())
      GTEST_SKIP() << "no redis-server on this host (apt-get install redis-server)";
    redis_ = std::make_unique<RedisServer>();
    SharedTier::Options options;
    options.addresses = {redis_->address()};
    options.lookup_limit = absl::Seconds(10);
    absl::StatusOr<std::unique_ptr<SharedTier>> tier = SharedTier::Create(std::move(options), &signatures_);
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
    list_ = std::make_unique<WorkList>(tier_->work(), kCompiler, "policy");
  }
  // What comes of it, as it is claimed.
  absl::StatusOr<WorkList::Work> Claimed(const std::string& kind = "sm_90") {
    const auto claimed = list_->Claim(list_->ListOf(kNamespace, kind));
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    if (!claimed.ok() || !claimed->has_value()) return absl::NotFoundError("nothing is on the list");
    return (*claimed)->work;
  }
  absl::StatusOr<WorkList::Work> Through(const v1::TuningItem& item) {
    const auto asked = list_->Ask(kNamespace, item);
    EXPECT_TRUE(asked.ok()) << asked.status();
    return Claimed();
  }
  // The same of an item that nobody asks for as it is.
  absl::StatusOr<WorkList::Work> Sneaked(const v1::TuningItem& item) {
    EXPECT_TRUE(absl::IsInvalidArgument(list_->Ask(kNamespace, item).status()));
    return Forged(list_->SubjectOf(kNamespace, item.tunable(), item.target()), SerializeDeterministic(item));
  }
  // As who has a trusted key may write them.
  absl::StatusOr<WorkList::Work> Forged(const std::string& subject, const std::string& bytes) {
    EXPECT_TRUE(tier_->work()->Ask(list_->ListOf(kNamespace, "sm_90"), subject, bytes).ok());
    return Claimed();
  }

  const Signatures signatures_ = Signatures::OfThisProcess();
  std::unique_ptr<RedisServer> redis_;
  std::unique_ptr<SharedTier> tier_;
  std::unique_ptr<WorkList> list_;
};

TEST_F(WorkListTest, WhatIsAskedForArrives) {
  const absl::StatusOr<WorkList::Work> gemm = Through(GemmItem());
  ASSERT_TRUE(gemm.ok()) << gemm.status();
  EXPECT_EQ(gemm->tunable.gemm().batch(), 1);
  EXPECT_EQ(gemm->target.features(0), "sm_90");
  const absl::StatusOr<WorkList::Work> kernel = Through(KernelItem());
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  EXPECT_EQ(kernel->kernel, "a kernel");
}

TEST_F(WorkListTest, WhatIsNotWhatItSaysIsRefused) {
  const auto says = [](const absl::StatusOr<WorkList::Work>& work, const char* what) {
    EXPECT_TRUE(absl::IsDataLoss(work.status())) << what << ": " << work.status();
    EXPECT_NE(work.status().message().find(what), std::string::npos) << work.status();
  };
  says(Forged(Sha256("a"), "\xff\xff\xff"), "does not parse");
  says(Forged(Sha256("b"), SerializeDeterministic(GemmItem())), "not what its name says");
  v1::TuningItem item = GemmItem();
  item.clear_tunable();
  says(Sneaked(item), "no known kind");
  item = GemmItem();
  item.set_kernel(ZstdCompress("code"));
  says(Sneaked(item), "a kernel of what is none");
  for (v1::TuningItem other : {KernelItem(), GemmItem()}) {
    other.mutable_tunable()->set_compiler("another");
    says(Sneaked(other), "another compiler's");
  }
  item = KernelItem();
  item.mutable_tunable()->mutable_kernel()->clear_schedules();
  says(Sneaked(item), "no schedules");
  item = KernelItem();
  item.mutable_tunable()->mutable_kernel()->set_digest(Sha256("another kernel"));
  says(Sneaked(item), "not its digest's");
  item = KernelItem("no frame");
  item.set_kernel("no frame");
  says(Sneaked(item), "none, or too large");
  // A bomb: what it claims to be is what counts.
  says(Sneaked(KernelItem(std::string(kAskedKernelBytesMax + 1, 'x'))), "too large");
  EXPECT_TRUE(Through(KernelItem(std::string(kAskedKernelBytesMax, 'x'))).ok());
  // One for another device, on this one's list.
  item = GemmItem();
  *item.mutable_target() = TargetOf("sm_80");
  says(Forged(list_->SubjectOf(kNamespace, item.tunable(), item.target()), SerializeDeterministic(item)),
       "another device");
}

TEST_F(WorkListTest, DaemonsOfAnotherBuildHaveListsOfTheirOwn) {
  ASSERT_TRUE(list_->Ask(kNamespace, GemmItem()).ok());
  const WorkList other(tier_->work(), "another compiler", "policy");
  EXPECT_FALSE(other.Claim(other.ListOf(kNamespace, "sm_90"))->has_value());
  EXPECT_TRUE(Claimed().ok());
}

TEST_F(WorkListTest, AListIsOfAKindOfDevice) {
  EXPECT_EQ(WorkList::KindOf(TargetOf("sm_90a")), "sm_90");
  EXPECT_EQ(WorkList::KindOf(TargetOf("avx512f")), "");
}

TEST_F(WorkListTest, ADevicesFactsAreToldAndRemembered) {
  EXPECT_TRUE(absl::IsNotFound(list_->Facts(kNamespace, TargetOf("sm_90")).status()));
  v1::GpuFacts facts;
  facts.set_name("a GPU");
  facts.set_architecture(90);
  EXPECT_TRUE(list_->Tell(kNamespace, facts).ok());
  absl::SleepFor(absl::Milliseconds(1100));  // that there was none is remembered as well
  EXPECT_TRUE(list_->FactsNow("later", TargetOf("sm_90")).status().code() == absl::StatusCode::kNotFound);
  EXPECT_TRUE(list_->Tell("later", facts).ok());
  EXPECT_FALSE(list_->Facts("later", TargetOf("sm_90")).ok()) << "remembered";
  EXPECT_TRUE(list_->FactsNow("later", TargetOf("sm_90")).ok());
  EXPECT_TRUE(list_->Facts("later", TargetOf("sm_90")).ok());
  ASSERT_TRUE(list_->Facts(kNamespace, TargetOf("sm_90")).ok());
  EXPECT_EQ(list_->Facts(kNamespace, TargetOf("sm_90"))->name(), "a GPU");
  EXPECT_TRUE(absl::IsNotFound(list_->Facts("other", TargetOf("sm_90")).status()));
  redis_->Kill();
  EXPECT_TRUE(list_->Facts(kNamespace, TargetOf("sm_90")).ok());
  EXPECT_FALSE(list_->Facts(kNamespace, TargetOf("sm_80")).ok());
}

}  // namespace
}  // namespace kiln
