// Variants and refusals of the store, as flights read and write them.
#include "server/flight/stored_keys.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/chain/store_config.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "server/build/artifact.h"
#include "server/flight/hit_index.h"
#include "server/schedule/clock.h"
#include "tests/unit/temporary_directory.h"
#include "tests/unit/test_signatures.h"

namespace kiln {
namespace {

// Its kernel's record is under "key".
Artifact ArtifactOfOneKernel() {
  v1::EmitReply reply;
  reply.set_kind(v1::FLAT_IMAGE);
  reply.set_object("an object");
  const auto kernel = PackKernel("key", "loops", reply);
  EXPECT_TRUE(kernel.ok()) << kernel.status();
  ArtifactIngredients ingredients;
  ingredients.signatures = &TestSignatures();
  ingredients.compile_key = Sha256("graph");
  ingredients.kernels = absl::MakeConstSpan(&*kernel, 1);
  v1::PlanReply plan;
  plan.add_kernels()->set_kernel("loops");
  plan.mutable_program()->add_steps()->mutable_launch()->set_kernel(0);
  return AssembleArtifact(ingredients, plan);
}

// Control: without the holds its objects go with the only manifest that names them.
TEST_F(InTemporaryDirectory, WhatAFlightTakesFromTheStoreIsNotEvicted) {
  for (const bool held : {true, false}) {
    int64_t now = 1'700'000'000;
    StoreEnvironment environment;
    environment.now_unix_seconds = [&now] { return now; };
    v1::StoreConfig config;
    config.set_directory(absl::StrCat(directory_, held ? "/held" : "/not"));
    auto store = NewStore(config, environment);
    ASSERT_TRUE(store.ok()) << store.status();
    const Artifact artifact = ArtifactOfOneKernel();
    ASSERT_TRUE((*store)->artifacts().Put(artifact.entries).ok());

    now += 24 * 3600;  // nobody has used it for long
    HitIndex index(1 << 20);
    SystemClock clock;
    StoredKeys keys(store->get(), /*tier=*/nullptr, &index, &clock, &TestSignatures());
    std::vector<Holds::Hold> holds;
    ASSERT_TRUE(keys.ReadKernel("", "key", &holds).ok());
    if (!held) holds.clear();
    now += 3600;  // a long flight
    ASSERT_TRUE((*store)->EvictTo(0).ok());
    EXPECT_EQ((*store)->statistics().entries, 0u);
    EXPECT_EQ((*store)->statistics().objects, held ? artifact.objects.size() : 0u);
  }
}

// A pinned variant is older than all others. The control: the oldest of those has gone.
TEST_F(InTemporaryDirectory, ANewVariantTakesNoPinnedOnesPlace) {
  int64_t now = 1'700'000'000;
  StoreEnvironment environment;
  environment.now_unix_seconds = [&now] { return now; };
  v1::StoreConfig config;
  config.set_directory(directory_ + "/store");
  auto store = NewStore(config, environment);
  ASSERT_TRUE(store.ok()) << store.status();
  HitIndex index(1 << 20);
  SystemClock clock;
  StoredKeys keys(store->get(), /*tier=*/nullptr, &index, &clock, &TestSignatures());
  std::vector<EntryId> variants;
  for (size_t i = 0; i < kVariantsPerKeyMax + 2; ++i) {
    ArtifactIngredients ingredients;
    ingredients.signatures = &TestSignatures();
    ingredients.compile_key = Sha256("graph");
    v1::PlanReply plan;
    plan.mutable_guards()->add_conditions(static_cast<uint32_t>(i));
    const auto artifact = std::make_shared<const Artifact>(AssembleArtifact(ingredients, plan));
    variants.push_back({EntryKind::kManifest, ManifestEntryKey(artifact->compile_key, artifact->variant_id)});
    keys.Announce(artifact);
    ASSERT_TRUE(keys.Put(artifact).ok());
    if (i == 0) {
      ASSERT_TRUE((*store)->catalog().SetPinned(variants[0], true).ok());
    }
    ++now;
  }
  for (size_t i = 0; i < variants.size(); ++i) {
    EXPECT_EQ((*store)->catalog().Find(variants[i]).ok(), i != 1) << i;
  }
}

// Its objects went while it was made. The control: with them it is a hit.
TEST_F(InTemporaryDirectory, AVariantWithoutItsObjectsIsNoHit) {
  v1::StoreConfig config;
  config.set_directory(directory_ + "/store");
  auto store = NewStore(config);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto whole = std::make_shared<const Artifact>(ArtifactOfOneKernel());
  auto torn = std::make_shared<Artifact>(ArtifactOfOneKernel());
  std::erase_if(torn->entries, [](const Entry& entry) { return entry.id.kind == EntryKind::kObject; });
  HitIndex index(1 << 20);
  SystemClock clock;
  StoredKeys keys(store->get(), /*tier=*/nullptr, &index, &clock, &TestSignatures());
  keys.Announce(torn);
  EXPECT_EQ(keys.Put(torn).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(keys.Load("", whole->compile_key)->variants.empty());
  keys.Announce(whole);
  EXPECT_TRUE(keys.Put(whole).ok());
  EXPECT_EQ(keys.Load("", whole->compile_key)->variants.size(), 1u);
}

// What waits goes last; outdated it is passed over, unless the key is refused by now. One that is recompiled
// is what there is.
TEST_F(InTemporaryDirectory, AVariantThatWaitsIsServedWhileNoOtherCanBe) {
  struct : public WaitingPrograms {
    bool IsOutdated(const std::string&, const std::string&, const std::string&) override { return outdated; }
    void Made(const std::string&, const std::string&) override { ++made; }
    bool outdated = false;
    int made = 0;
  } waiting;
  v1::StoreConfig config;
  config.set_directory(directory_ + "/store");
  auto store = NewStore(config);
  ASSERT_TRUE(store.ok()) << store.status();
  HitIndex index(1 << 20);
  SystemClock clock;
  StoredKeys keys(store->get(), /*tier=*/nullptr, &index, &clock, &TestSignatures());
  keys.SetWaiting(&waiting);
  const auto put = [&](const std::string& waits_for) {
    v1::Tuning tuning;
    tuning.set_waits_for(waits_for);
    ArtifactIngredients ingredients;
    ingredients.signatures = &TestSignatures();
    ingredients.compile_key = Sha256("graph");
    ingredients.tuning = &tuning;
    const auto artifact = std::make_shared<const Artifact>(AssembleArtifact(ingredients, v1::PlanReply()));
    keys.Announce(artifact);
    EXPECT_TRUE(keys.Put(artifact).ok());
    return artifact->variant_id;
  };
  const auto served = [&] {
    index.Clear();
    const KnownKeyPtr known = keys.Load("", Sha256("graph"));
    const KnownVariant* const variant = ChooseVariant(*known, {});
    return variant == nullptr ? "" : variant->variant_id;
  };
  const std::string waits = put("sm_90");
  EXPECT_EQ(waiting.made, 1);
  EXPECT_EQ(served(), waits);
  waiting.outdated = true;
  EXPECT_EQ(served(), "");
  FlightRequest request;
  request.compile_key = Sha256("graph");
  keys.PutRefusal(request, "compiler", absl::UnimplementedError("it crashes"), /*quarantine=*/true);
  EXPECT_EQ(served(), waits);
  waiting.outdated = false;
  const std::string made = put("");
  EXPECT_EQ(served(), made);
}

// Who guesses another namespace's variant takes nothing from its owner. The control: one that has gone is
// forgotten.
TEST_F(InTemporaryDirectory, AGuessLeavesTheOwnersHits) {
  v1::StoreConfig config;
  config.set_directory(directory_ + "/store");
  auto store = NewStore(config);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto artifact = std::make_shared<const Artifact>(ArtifactOfOneKernel());
  HitIndex index(1 << 20);
  SystemClock clock;
  StoredKeys keys(store->get(), /*tier=*/nullptr, &index, &clock, &TestSignatures());
  keys.Announce(artifact);
  ASSERT_TRUE(keys.Put(artifact).ok());
  v1::FetchObjectsRequest request;
  request.set_compile_key(artifact->compile_key);
  request.set_variant_id(artifact->variant_id);
  EXPECT_TRUE(keys.CheckFetch(request).ok());
  request.set_namespace_("guesser");
  EXPECT_TRUE(absl::IsNotFound(keys.CheckFetch(request).status()));
  EXPECT_NE(index.Find(artifact->compile_key), nullptr);
  ASSERT_TRUE((*store)->EvictTo(0).ok());
  EXPECT_TRUE(absl::IsNotFound(keys.CheckFetch(request).status()));
  EXPECT_EQ(index.Find(artifact->compile_key), nullptr);
}

}  // namespace
}  // namespace kiln
