// Who asks other daemons to measure, on a store and a redis-server: what is watched for, and for how long.
#include "server/flight/work_asker.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/chain/store_config.h"
#include "cache/shared/shared_tier.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "gtest/gtest.h"
#include "server/server_limits.h"
#include "server/tune/tuner.h"
#include "tests/conformance/store_testing.h"
#include "tests/fault/redis_server.h"
#include "tests/fault/test_daemon.h"

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

v1::Tunable GemmOf(int64_t batch) {
  v1::Tunable tunable;
  tunable.mutable_gemm()->set_batch(batch);
  tunable.set_compiler(kCompiler);
  return tunable;
}

v1::GpuFacts Facts() {
  v1::GpuFacts facts;
  facts.set_name("a GPU");
  facts.set_architecture(90);
  return facts;
}

class WorkAskerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::IsThere())
      GTEST_SKIP() << "no redis-server on this host (apt-get install redis-server)";
    redis_ = std::make_unique<RedisServer>();
    store_ = OpenStore(own_);
    there_ = OpenStore(elsewhere_);
    SharedTier::Options options;
    options.addresses = {redis_->address()};
    options.lookup_limit = absl::Seconds(10);
    tier_ = *SharedTier::Create(std::move(options), &signatures_);
    list_ = std::make_unique<WorkList>(tier_->work(), kCompiler, std::string(Tuner::Policy()));
    records_ = std::make_unique<TuningRecords>(&signatures_, store_.get(), tier_.get());
    // As a daemon that has the device.
    serves_ = std::make_unique<WorkList>(tier_->work(), kCompiler, std::string(Tuner::Policy()));
    measures_ = std::make_unique<TuningRecords>(&signatures_, there_.get(), tier_.get());
    WorkAsker::Outside outside;
    outside.store = store_.get();
    outside.list = list_.get();
    outside.records = records_.get();
    outside.forget = [this](const std::string&) { ++forgotten_; };
    asker_ = *WorkAsker::Create(std::move(outside));
  }
  std::unique_ptr<Store> OpenStore(const TemporaryDirectory& directory) {
    v1::StoreConfig config;
    config.set_directory(directory.path() + "/store");
    StoreEnvironment environment;
    environment.signatures = &signatures_;
    auto store = NewStore(config, environment);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  // Programs of these names, as their compiles have left them.
  void Put(const std::vector<std::string>& names, const std::vector<v1::Tunable>& waits,
           const std::string& feature = "sm_90") {
    std::vector<Entry> batch;
    for (const std::string& name : names) {
      v1::Manifest manifest;
      manifest.set_namespace_(kNamespace);
      manifest.set_compile_key(Sha256(name));
      manifest.set_variant_id(Sha256("variant"));
      *manifest.mutable_target() = TargetOf(feature);
      manifest.mutable_tuning()->set_waits_for("sm_90");
      manifest.mutable_tuning()->mutable_waits()->Assign(waits.begin(), waits.end());
      batch.push_back({{EntryKind::kManifest, ManifestEntryKey(Sha256(name), Sha256("variant"))},
                       MakeEntryValue(SerializeDeterministic(signatures_.SignManifest(manifest)))});
    }
    const absl::Status put = store_->artifacts().Put(batch);
    EXPECT_TRUE(put.ok()) << put;
  }
  bool IsOutdated(const std::string& name) {
    return asker_->IsOutdated(kNamespace, Sha256(name), Sha256("variant"));
  }
  bool BecomesOutdated(const std::string& name, absl::Duration limit = absl::Seconds(20)) {
    return Eventually([&] { return IsOutdated(name); }, limit);
  }
  v1::TierWorkStatus Status() {
    v1::TierWorkStatus status;
    asker_->AddTo(&status);
    return status;
  }
  // Whoever has the device measures the oldest item, or finds that it can't be.
  void ServeOne(bool can) {
    const TierWork::List list = serves_->ListOf(kNamespace, "sm_90");
    const auto claimed = serves_->Claim(list);
    ASSERT_TRUE(claimed.ok() && claimed->has_value()) << claimed.status();
    ASSERT_TRUE((*claimed)->work.ok()) << (*claimed)->work.status();
    if (can) {
      v1::Measurement record;
      *record.mutable_tunable() = (*claimed)->work->tunable;
      const std::string key = Tuner::KeyOf(kNamespace, record.tunable(), Facts());
      measures_->Keep(kNamespace, key, record);
      EXPECT_TRUE(*measures_->Publish(kNamespace, key));
    }
    EXPECT_TRUE(*serves_->tier().End(list, (*claimed)->claim, /*tried=*/true));
  }

  const Signatures signatures_ = Signatures::OfThisProcess();
  TemporaryDirectory own_, elsewhere_;
  std::unique_ptr<RedisServer> redis_;
  std::unique_ptr<Store> store_, there_;
  std::unique_ptr<SharedTier> tier_;
  std::unique_ptr<WorkList> list_, serves_;
  std::unique_ptr<TuningRecords> records_, measures_;
  std::atomic<int> forgotten_{0};
  std::unique_ptr<WorkAsker> asker_;
};

TEST_F(WorkAskerTest, WhatHasBeenMeasuredOutdatesAProgram) {
  Put({"a"}, {GemmOf(1)});
  EXPECT_FALSE(IsOutdated("a"));
  EXPECT_TRUE(Eventually([&] { return Status().asked() == 1; }));
  ASSERT_TRUE(serves_->Tell(kNamespace, Facts()).ok());
  EXPECT_FALSE(IsOutdated("a"));
  ServeOne(/*can=*/true);
  EXPECT_TRUE(BecomesOutdated("a"));
  EXPECT_EQ(forgotten_, 1);
  EXPECT_EQ(Status().waiting(), 0);
  // One that is recompiled as it was is none.
  asker_->Made(Sha256("a"), Sha256("variant"));
  EXPECT_FALSE(IsOutdated("a"));
}

// Each variant of a key waits for its own.
TEST_F(WorkAskerTest, OnlyTheVariantThatWaitedIsOutdated) {
  Put({"a"}, {GemmOf(1)});
  EXPECT_FALSE(IsOutdated("a"));
  EXPECT_TRUE(Eventually([&] { return Status().asked() == 1; }));
  ASSERT_TRUE(serves_->Tell(kNamespace, Facts()).ok());
  ServeOne(/*can=*/true);
  EXPECT_TRUE(BecomesOutdated("a"));
  EXPECT_FALSE(asker_->IsOutdated(kNamespace, Sha256("a"), Sha256("another variant")));
}

// All has been done while it was not looked: that nobody had a device is remembered from before.
TEST_F(WorkAskerTest, WhatWasDoneAtOnceIsSeen) {
  v1::TuningItem item;
  *item.mutable_tunable() = GemmOf(1);
  *item.mutable_target() = TargetOf("sm_90");
  EXPECT_EQ(*serves_->Ask(kNamespace, item), TierWork::Asked::kNow);
  Put({"a"}, {GemmOf(1)});
  EXPECT_TRUE(absl::IsNotFound(list_->Facts(kNamespace, TargetOf("sm_90")).status()));
  ASSERT_TRUE(serves_->Tell(kNamespace, Facts()).ok());
  ServeOne(/*can=*/true);
  EXPECT_TRUE(BecomesOutdated("a"));
}

TEST_F(WorkAskerTest, WhatCouldNotBeMeasuredIsWatchedOn) {
  Put({"a"}, {GemmOf(1), GemmOf(2)});
  EXPECT_FALSE(IsOutdated("a"));
  EXPECT_TRUE(Eventually([&] { return Status().asked() == 2; }));
  ASSERT_TRUE(serves_->Tell(kNamespace, Facts()).ok());
  ServeOne(/*can=*/false);
  ServeOne(/*can=*/false);
  absl::SleepFor(absl::Seconds(3));
  EXPECT_FALSE(IsOutdated("a"));
  EXPECT_EQ(Status().waiting(), 1);
  EXPECT_EQ(Status().asked(), 2) << "and nobody is asked again for now";
  // What others could is taken without the rest.
  Put({"b"}, {GemmOf(1), GemmOf(3)});
  EXPECT_FALSE(IsOutdated("b"));
  EXPECT_TRUE(Eventually([&] { return Status().asked() == 3; }));
  ServeOne(/*can=*/true);
  EXPECT_TRUE(BecomesOutdated("b"));
}

// Of no use to who measures: it is not asked for, and keeps nothing else from being.
TEST_F(WorkAskerTest, WhatNobodyWouldMeasureIsSkipped) {
  v1::Tunable kernel;
  kernel.mutable_kernel()->set_digest(Sha256("an object that is not here"));
  kernel.set_compiler(kCompiler);
  v1::Tunable unknown;
  Put({"a"}, {kernel, unknown, GemmOf(1)});
  EXPECT_FALSE(IsOutdated("a"));
  EXPECT_TRUE(Eventually([&] { return Status().asked() == 1; }));
  ASSERT_TRUE(serves_->Tell(kNamespace, Facts()).ok());
  ServeOne(/*can=*/true);
  EXPECT_TRUE(BecomesOutdated("a"));
  EXPECT_EQ(Status().asked(), 1);
}

// What waits for a device that nobody has makes room for what does not.
TEST_F(WorkAskerTest, OfTooManyTheLatestIsForgotten) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kWaitingProgramsMax; ++i) names.push_back(absl::StrCat("waits ", i));
  Put(names, {GemmOf(1)}, "sm_80");
  for (const std::string& name : names) EXPECT_FALSE(IsOutdated(name));
  EXPECT_TRUE(Eventually([&] { return Status().asked() == 1; }));
  EXPECT_EQ(Status().waiting(), kWaitingProgramsMax);
  Put({"a"}, {GemmOf(1)});
  EXPECT_FALSE(IsOutdated("a"));
  EXPECT_EQ(Status().waiting(), kWaitingProgramsMax);
  EXPECT_TRUE(Eventually([&] { return Status().asked() == 2; }, absl::Seconds(60)));
  ASSERT_TRUE(serves_->Tell(kNamespace, Facts()).ok());
  ServeOne(/*can=*/true);
  EXPECT_TRUE(BecomesOutdated("a", absl::Seconds(60)));
  EXPECT_EQ(Status().waiting(), kWaitingProgramsMax - 1);
}

TEST_F(WorkAskerTest, WhatHasGoneIsWatchedNoMore) {
  EXPECT_FALSE(IsOutdated("a"));
  EXPECT_TRUE(Eventually([&] { return Status().waiting() == 0; }));
}

// A daemon that ends serves what it has.
TEST_F(WorkAskerTest, WhoWasStoppedOutdatesNothing) {
  Put({"a"}, {GemmOf(1)});
  EXPECT_FALSE(IsOutdated("a"));
  EXPECT_TRUE(Eventually([&] { return Status().asked() == 1; }));
  asker_->Stop();
  ASSERT_TRUE(serves_->Tell(kNamespace, Facts()).ok());
  ServeOne(/*can=*/true);
  EXPECT_FALSE(BecomesOutdated("a", absl::Seconds(3)));
}

}  // namespace
}  // namespace kiln
