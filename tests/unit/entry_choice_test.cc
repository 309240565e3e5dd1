// Which entries a person means by the start of a key, what is read for it, and what a removal of everything
// takes.

#include "server/rpc/entry_choice.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache/chain/store_config.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/record.pb.h"
#include "server/build/artifact.h"
#include "tests/conformance/store_testing.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;

constexpr size_t kManifests = 1'200, kFailures = 3, kTuningRecords = 700;

// Counts what is read and how much is deleted together.
class CountedEntries : public ArtifactStore {
 public:
  explicit CountedEntries(ArtifactStore* base) : base_(base) {}
  absl::StatusOr<EntryValue> Get(const EntryId& id) override {
    ++gets;
    return base_->Get(id);
  }
  absl::Status Put(absl::Span<const Entry> batch) override { return base_->Put(batch); }
  absl::Status Delete(absl::Span<const EntryId> ids) override {
    deleted_together = std::max(deleted_together, ids.size());
    if (before_delete) before_delete(ids[0].kind);
    return base_->Delete(ids);
  }
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override {
    return base_->FindMissing(ids);
  }
  size_t gets = 0, deleted_together = 0;
  std::function<void(EntryKind)> before_delete;

 private:
  ArtifactStore* const base_;
};

class CountedStore : public Store {
 public:
  explicit CountedStore(std::unique_ptr<Store> base) : base_(std::move(base)) {}
  CountedEntries& artifacts() override { return artifacts_; }
  CountedEntries& inspection() override { return inspection_; }
  Catalog& catalog() override { return base_->catalog(); }
  Holds::Hold Keep(absl::Span<const EntryId> ids) override { return base_->Keep(ids); }
  void OnEvicted(EvictionListener listener) override { base_->OnEvicted(std::move(listener)); }
  void SetCompiler(absl::string_view fingerprint) override { base_->SetCompiler(fingerprint); }
  absl::Status EvictTo(uint64_t live_bytes) override { return base_->EvictTo(live_bytes); }
  StoreStatistics statistics() const override { return base_->statistics(); }
  absl::StatusOr<VerifyResult> Verify(bool repair, const std::function<bool()>& gone) override {
    return base_->Verify(repair, gone);
  }

 private:
  const std::unique_ptr<Store> base_;
  CountedEntries artifacts_{&base_->artifacts()}, inspection_{&base_->inspection()};
};

std::string KeyOf(size_t number) { return Sha256(absl::StrCat("key ", number)); }
std::string VariantOf(size_t number) { return Sha256(absl::StrCat("variant ", number)); }
std::string RequestOf(size_t number) { return Sha256(absl::StrCat("request ", number)); }

Entry ManifestOf(size_t number) {
  v1::Manifest manifest;
  manifest.set_compile_key(KeyOf(number));
  manifest.set_variant_id(VariantOf(number));
  manifest.set_request_key(RequestOf(number));
  v1::SignedManifest signed_manifest;
  signed_manifest.set_manifest(manifest.SerializeAsString());
  return {{EntryKind::kManifest, ManifestEntryKey(KeyOf(number), VariantOf(number))},
          MakeEntryValue(signed_manifest.SerializeAsString())};
}

class EntryChoiceTest : public testing::Test {
 protected:
  // Manifests from 0 on, failures after them, each with the record of its request; tuning records.
  void SetUp() override {
    v1::StoreConfig config;
    config.set_directory(directory_.path());
    auto store = NewStore(config);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = std::make_unique<CountedStore>(*std::move(store));
    std::vector<Entry> batch = {ObjectEntry(1, 500)};
    for (size_t i = 0; i < kManifests; ++i) batch.push_back(ManifestOf(i));
    for (size_t i = kManifests; i < kManifests + kFailures; ++i) {
      v1::RequestRecord record;
      record.set_request_key(RequestOf(i));
      batch.push_back({{EntryKind::kFailure, KeyOf(i)}, MakeEntryValue("refused")});
      batch.push_back({RequestRecordId(KeyOf(i)), MakeEntryValue(record.SerializeAsString())});
    }
    for (size_t i = 0; i < kTuningRecords; ++i) {
      batch.push_back({{EntryKind::kTuning, absl::StrCat(i)}, MakeEntryValue("measured")});
    }
    ASSERT_TRUE(store_->artifacts().Put(batch).ok());
  }
  ChosenEntries Choose(const std::string& hex, size_t limit = 0,
                       RequestKeys request_keys = RequestKeys::kElse) {
    const auto chosen =
        ChooseEntries(*store_, *KeyPrefix::Parse(hex), request_keys, limit, [] { return false; });
    EXPECT_TRUE(chosen.ok()) << chosen.status();
    return chosen.ok() ? *chosen : ChosenEntries();
  }
  uint64_t Entries() {
    uint64_t entries = 0;
    for (uint64_t count : store_->catalog().Totals().entries) entries += count;
    return entries;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<CountedStore> store_;
};

TEST(KeyPrefixTest, IsHexadecimalAndMayEndWithinAByte) {
  const std::string key = "\x12\xab\xff";
  for (const char* hex : {"1", "12", "12a", "12ab", "12abf", "12abff"}) {
    EXPECT_TRUE(KeyPrefix::Parse(hex)->Begins(key)) << hex;
  }
  for (const char* hex : {"2", "13", "12b", "12abe", "12abff0", "12abff00"}) {
    EXPECT_FALSE(KeyPrefix::Parse(hex)->Begins(key)) << hex;
  }
  for (const char* text : {"", "12AB", "xy", "12 "}) {
    EXPECT_EQ(KeyPrefix::Parse(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST_F(EntryChoiceTest, CompileKeysAndVariantsAreFoundWithoutReadingAnything) {
  const std::string key = ToHex(KeyOf(7)), variant = ToHex(VariantOf(7));
  for (const std::string& hex : {key, key.substr(0, 15), key.substr(0, 1), variant, variant.substr(0, 15)}) {
    size_t expected = 0;
    for (size_t i = 0; i < kManifests; ++i) {
      expected += absl::StartsWith(ToHex(KeyOf(i)), hex) || absl::StartsWith(ToHex(VariantOf(i)), hex);
    }
    const ChosenEntries chosen = Choose(hex);
    EXPECT_EQ(chosen.manifests.size(), expected) << hex;
    const auto is_the_one = [&](const CatalogEntry& entry) { return entry.id == ManifestOf(7).id; };
    EXPECT_TRUE(std::any_of(chosen.manifests.begin(), chosen.manifests.end(), is_the_one)) << hex;
  }
  EXPECT_EQ(Choose(ToHex(KeyOf(kManifests))).failures.size(), 1u);
  EXPECT_GT(Choose(key.substr(0, 1)).manifests.size(), 10u);
  EXPECT_EQ(Choose(key.substr(0, 1), /*limit=*/10).manifests.size(), 10u);
  EXPECT_EQ(store_->inspection().gets, 0u);
}

TEST_F(EntryChoiceTest, RequestKeysAreReadWhereNothingElseBeginsSo) {
  const ChosenEntries manifest = Choose(ToHex(RequestOf(7)));
  ASSERT_EQ(manifest.manifests.size(), 1u);
  EXPECT_EQ(manifest.manifests[0].id, ManifestOf(7).id);
  EXPECT_EQ(store_->inspection().gets, kManifests + kFailures) << "the control: these are read";
  const ChosenEntries failure = Choose(ToHex(RequestOf(kManifests + 1)));
  ASSERT_EQ(failure.failures.size(), 1u);
  EXPECT_EQ(failure.failures[0].id.key, KeyOf(kManifests + 1));
  EXPECT_TRUE(failure.manifests.empty());
}

// A failure and a manifest whose CompileKeys begin as another manifest's RequestKey.
TEST_F(EntryChoiceTest, ShortPrefixesOfARequestKeyMayBeACompileKeysToo) {
  constexpr size_t kShared = 4;
  const std::string request = RequestOf(7), hex = ToHex(request.substr(0, kShared));
  const EntryId failure = {EntryKind::kFailure, request.substr(0, kShared) + KeyOf(0).substr(kShared)};
  ASSERT_TRUE(store_->artifacts().Put({{failure, MakeEntryValue("refused")}}).ok());
  const ChosenEntries shown = Choose(hex);
  ASSERT_EQ(shown.manifests.size(), 1u) << "a failure hides no manifest";
  EXPECT_EQ(shown.manifests[0].id, ManifestOf(7).id);
  EXPECT_EQ(shown.failures.size(), 1u);

  Entry manifest = ManifestOf(8);
  manifest.id.key = ManifestEntryKey(request.substr(0, kShared) + KeyOf(1).substr(kShared), VariantOf(8));
  ASSERT_TRUE(store_->artifacts().Put({manifest}).ok());
  EXPECT_EQ(Choose(hex).manifests.size(), 1u) << "the control: one is shown, by its CompileKey";
  const ChosenEntries removed = Choose(hex, /*limit=*/0, RequestKeys::kToo);
  ASSERT_EQ(removed.manifests.size(), 2u) << "a removal hears of both";
  EXPECT_EQ(removed.manifests[0].id, manifest.id);
  EXPECT_EQ(removed.manifests[1].id, ManifestOf(7).id);

  const size_t gets = store_->inspection().gets;
  EXPECT_EQ(Choose(ToHex(KeyOf(7)), /*limit=*/0, RequestKeys::kToo).manifests.size(), 1u);
  EXPECT_EQ(store_->inspection().gets, gets) << "a whole key is nobody else's";
}

TEST_F(EntryChoiceTest, NothingIsReadForACallerWhoHasGone) {
  const KeyPrefix prefix = *KeyPrefix::Parse(ToHex(Sha256("nobody's")));
  size_t gets_allowed = 10;
  const auto gone = [&] { return store_->inspection().gets >= gets_allowed; };
  EXPECT_EQ(ChooseEntries(*store_, prefix, RequestKeys::kElse, 0, gone).status().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(store_->inspection().gets, 10u);
  gets_allowed = SIZE_MAX;
  EXPECT_TRUE(ChooseEntries(*store_, prefix, RequestKeys::kElse, 0, gone).ok());
  EXPECT_EQ(store_->inspection().gets, 10u + kManifests + kFailures);
}

TEST_F(EntryChoiceTest, EverythingGoesInBatchesAndIsCounted) {
  CountsByKind removed = {};
  ASSERT_TRUE(RemoveAllEntries(*store_, [] { return false; }, &removed).ok());
  EXPECT_EQ(Entries(), 0u);
  EXPECT_EQ(removed[static_cast<size_t>(EntryKind::kManifest)], kManifests);
  EXPECT_EQ(removed[static_cast<size_t>(EntryKind::kFailure)], kFailures);
  EXPECT_EQ(removed[static_cast<size_t>(EntryKind::kTuning)], kTuningRecords);
  EXPECT_EQ(removed[static_cast<size_t>(EntryKind::kObject)], 1u);
  EXPECT_LE(store_->artifacts().deleted_together, 512u);
}

TEST_F(EntryChoiceTest, WhatNamesOthersGoesAlsoWhereItWasWrittenMeanwhile) {
  size_t written = 0;
  store_->artifacts().before_delete = [&](EntryKind kind) {
    // Once while the objects go, and once more while what was written then goes.
    if (written == 2 || kind != (written == 0 ? EntryKind::kObject : EntryKind::kManifest)) return;
    ++written;
    EXPECT_TRUE(store_->artifacts().Put({ManifestOf(9'000 + written)}).ok());
  };
  CountsByKind removed = {};
  ASSERT_TRUE(RemoveAllEntries(*store_, [] { return false; }, &removed).ok());
  EXPECT_EQ(written, 2u);
  EXPECT_EQ(Entries(), 0u);
  EXPECT_EQ(removed[static_cast<size_t>(EntryKind::kManifest)], kManifests + 2);
}

TEST_F(EntryChoiceTest, ARemovalStopsWithItsCallerAndSaysWhatItTook) {
  const uint64_t before = Entries();
  CountsByKind removed = {};
  const auto gone = [&] { return removed[static_cast<size_t>(EntryKind::kManifest)] > 0; };
  EXPECT_EQ(RemoveAllEntries(*store_, gone, &removed).code(), StatusCode::kCancelled);
  EXPECT_EQ(removed[static_cast<size_t>(EntryKind::kManifest)], 512u);
  EXPECT_EQ(Entries(), before - 512);
  std::vector<EntryId> rest;
  const auto left = store_->catalog().Scan(EntryKind::kManifest, "");
  for (const CatalogEntry& entry : *left) rest.push_back(entry.id);
  EXPECT_EQ(RemoveEntries(*store_, rest, [] { return true; }).code(), StatusCode::kCancelled);
  EXPECT_EQ(Entries(), before - 512);
  EXPECT_TRUE(RemoveEntries(*store_, rest, [] { return false; }).ok());
  EXPECT_EQ(Entries(), before - kManifests);
}

}  // namespace
}  // namespace kiln
