// Each decorator of the store by itself, with the fault that it is there for, and the parts of engines.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cache/chain/metrics_store.h"
#include "cache/checks/completeness_store.h"
#include "cache/checks/entry_envelope.h"
#include "cache/checks/verifying_store.h"
#include "cache/engine/failing_store.h"
#include "cache/engine/memory_store.h"
#include "cache/engine/rocksdb_store.h"
#include "cache/engine/unavailable_store.h"
#include "cache/engine/usage_index.h"
#include "cache/tiers/coalescing_store.h"
#include "gtest/gtest.h"
#include "tests/conformance/store_testing.h"
#include "tests/unit/store_options.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;
using Operation = FailingStore::Operation;

TEST(EntryEnvelopeTest, AnyFlippedBitIsSeen) {
  EntryId id = {EntryKind::kFailure, "key"};
  std::string sealed = SealEntry(id, "payload");
  ASSERT_EQ(*OpenEntry(id, sealed), "payload");
  for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    std::string damaged = sealed;
    damaged[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_EQ(OpenEntry(id, damaged).status().code(), StatusCode::kDataLoss) << bit;
  }
  for (size_t size = 0; size < sealed.size(); ++size) {
    EXPECT_FALSE(OpenEntry(id, absl::string_view(sealed).substr(0, size)).ok());
  }
  EXPECT_FALSE(OpenEntry({EntryKind::kFailure, "kex"}, sealed).ok());
  EXPECT_FALSE(OpenEntry({EntryKind::kTuning, "key"}, sealed).ok());
}

TEST(MemoryStoreTest, LeastRecentlyUsedGoesFirst) {
  MemoryStore store(3'000);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(store.Put({Tuning(absl::StrCat(i), std::string(700, 'x'))}).ok());
  ASSERT_TRUE(store.Get({EntryKind::kTuning, "0"}).ok());
  ASSERT_TRUE(store.Put({Tuning("3", std::string(700, 'x'))}).ok());
  EXPECT_TRUE(store.Get({EntryKind::kTuning, "0"}).ok());
  EXPECT_FALSE(store.Get({EntryKind::kTuning, "1"}).ok());
  EXPECT_LE(store.bytes(), 3'000u);
  ASSERT_TRUE(store.Put({Tuning("huge", std::string(5'000, 'x'))}).ok());
  EXPECT_FALSE(store.Get({EntryKind::kTuning, "huge"}).ok());
  EXPECT_TRUE(store.Get({EntryKind::kTuning, "0"}).ok());
}

TEST(CoalescingStoreTest, ConcurrentGetsShareOneRead) {
  std::atomic<int> gets{0};
  absl::Notification go;
  auto base = std::make_unique<MemoryStore>(1 << 20);
  ASSERT_TRUE(base->Put({Tuning("a")}).ok());
  CoalescingStore store(std::make_unique<FailingStore>(std::move(base), [&](Operation operation) {
    if (operation == Operation::kGet) {
      ++gets;
      go.WaitForNotification();
    }
    return absl::OkStatus();
  }));
  std::vector<std::thread> readers;
  for (int i = 0; i < 8; ++i) {
    readers.emplace_back([&] { EXPECT_TRUE(store.Get({EntryKind::kTuning, "a"}).ok()); });
  }
  while (store.shared() < 7) std::this_thread::yield();
  go.Notify();
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(gets, 1);
  EXPECT_TRUE(store.Get({EntryKind::kTuning, "a"}).ok());
  EXPECT_EQ(gets, 2);  // nothing is kept once the read is over
}

struct Damageable {
  explicit Damageable(VerifyingStore::Mode mode) {
    auto memory = std::make_unique<MemoryStore>(1 << 20);
    raw = memory.get();
    store = std::make_unique<VerifyingStore>(std::move(memory), mode);
  }
  void Damage(const EntryId& id) {
    std::string bytes = **raw->Get(id);
    bytes.back() ^= 1;
    ASSERT_TRUE(raw->Put({{id, MakeEntryValue(bytes)}}).ok());
  }
  MemoryStore* raw;
  std::unique_ptr<VerifyingStore> store;
};

TEST(VerifyingStoreTest, DamagedEntryBecomesAMissAndIsTakenOut) {
  Damageable damageable(VerifyingStore::Mode::kVerify);
  Entry object = ObjectEntry(1, 1000);
  ASSERT_TRUE(damageable.store->Put({object, Tuning("a")}).ok());
  for (const EntryId& id : {object.id, Tuning("a").id}) {
    damageable.Damage(id);
    EXPECT_EQ(damageable.store->Check(id).code(), StatusCode::kDataLoss);
    EXPECT_TRUE(damageable.raw->Get(id).ok());
    EXPECT_EQ(damageable.store->Get(id).status().code(), StatusCode::kNotFound);
    EXPECT_FALSE(damageable.raw->Get(id).ok());
  }
  EXPECT_EQ(damageable.store->quarantined(), 2u);
  ASSERT_TRUE(damageable.store->Put({object}).ok());
  EXPECT_EQ(**damageable.store->Get(object.id), *object.value);
}

TEST(VerifyingStoreTest, WithoutTheCheckTheDamageIsServed) {
  Damageable damageable(VerifyingStore::Mode::kDangerouslyBelieve);
  ASSERT_TRUE(damageable.store->Put({Tuning("a", "value")}).ok());
  damageable.Damage(Tuning("a").id);
  EXPECT_NE(**damageable.store->Get(Tuning("a").id), "value");
}

TEST(VerifyingStoreTest, ObjectMustMatchItsKey) {
  Damageable damageable(VerifyingStore::Mode::kVerify);
  Entry object = ObjectEntry(1, 1000);
  object.id.key = Sha256("something else");
  EXPECT_EQ(damageable.store->Put({object}).code(), StatusCode::kInvalidArgument);
  Entry unpacked = {{EntryKind::kObject, Sha256("raw")}, MakeEntryValue("raw")};
  EXPECT_EQ(damageable.store->Put({unpacked}).code(), StatusCode::kInvalidArgument);
}

TEST(VerifyingStoreTest, DamageThatTheEngineSeesIsAMissToo) {
  auto failing =
      std::make_unique<FailingStore>(std::make_unique<MemoryStore>(1 << 20), [](Operation operation) {
        return operation == Operation::kGet ? absl::DataLossError("bad block") : absl::OkStatus();
      });
  VerifyingStore store(std::move(failing), VerifyingStore::Mode::kVerify);
  EXPECT_EQ(store.Get(Tuning("a").id).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store.quarantined(), 1u);
}

TEST(CompletenessStoreTest, ManifestNeedsEveryObjectItNames) {
  for (size_t gone = 0; gone < 3; ++gone) {
    CompletenessStore store(std::make_unique<MemoryStore>(1 << 20));
    std::vector<Entry> batch = ArtifactBatch(1, 3, 400);
    ASSERT_TRUE(store.Put(batch).ok());
    const EntryId& manifest = batch[6].id;
    const EntryId& kernel = batch[3 + gone].id;
    ASSERT_EQ(manifest.kind, EntryKind::kManifest);
    EXPECT_TRUE(store.Get(manifest).ok());
    EXPECT_TRUE(store.Get(kernel).ok());
    ASSERT_TRUE(store.Delete({batch[gone].id}).ok());
    EXPECT_EQ(store.Get(manifest).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(store.Get(kernel).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(store.incomplete(), 2u);
    ASSERT_TRUE(store.Put({batch[gone]}).ok());
    EXPECT_TRUE(store.Get(manifest).ok());
  }
}

TEST(MetricsStoreTest, CountsByKind) {
  absl::Status trouble;
  MetricsStore store(std::make_unique<FailingStore>(std::make_unique<MemoryStore>(1 << 20),
                                                    [&](Operation) { return trouble; }));
  ASSERT_TRUE(store.Put({Tuning("a", "12345"), PlainEntry(EntryKind::kFailure, 1)}).ok());
  EXPECT_TRUE(store.Get(Tuning("a").id).ok());
  EXPECT_FALSE(store.Get(Tuning("b").id).ok());
  trouble = absl::UnavailableError("drill");
  EXPECT_FALSE(store.Get(Tuning("a").id).ok());
  EXPECT_FALSE(store.Put({Tuning("c")}).ok());
  MetricsStore::Counts counts = store.counts(EntryKind::kTuning);
  EXPECT_EQ(counts.gets, 3u);
  EXPECT_EQ(counts.hits, 1u);
  EXPECT_EQ(counts.errors, 1u);
  EXPECT_EQ(counts.puts, 1u);
  EXPECT_EQ(counts.bytes_read, 5u);
  EXPECT_EQ(store.total().puts, 2u);
  EXPECT_EQ(store.batches_failed(), 1u);
}

TEST(UnavailableStoreTest, AnswersWritesWithTheReason) {
  UnavailableStore store(absl::PermissionDeniedError("read-only"));
  EXPECT_EQ(store.Put({Tuning("a")}).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(store.Get(Tuning("a").id).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store.FindMissing({Tuning("a").id})->size(), 1u);
}

TEST(UsageIndexTest, RecordsRoundTripAndRejectOthers) {
  CatalogEntry entry = {{EntryKind::kObject, "key"}, 1, 2, -3, UINT64_MAX, true, 5, 6};
  std::string key = UsageIndex::EncodeKey(entry.id), record = UsageIndex::EncodeRecord(entry);
  auto decoded = UsageIndex::Decode(key, record);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->id, entry.id);
  EXPECT_EQ(decoded->last_used_unix_seconds, -3);
  EXPECT_EQ(decoded->hits, UINT64_MAX);
  EXPECT_TRUE(decoded->pinned);
  EXPECT_EQ(decoded->rebuild_ms, 5u);
  EXPECT_EQ(decoded->compiler, 6u);
  // As the first version wrote it.
  std::string first = record.substr(0, record.size() - 8);
  first[0] = 1;
  ASSERT_TRUE(UsageIndex::Decode(key, first).ok());
  EXPECT_TRUE(UsageIndex::Decode(key, first)->pinned);
  EXPECT_EQ(UsageIndex::Decode(key, first)->compiler, 0u);
  EXPECT_FALSE(UsageIndex::Decode(key, record.substr(0, record.size() - 8)).ok());
  EXPECT_FALSE(UsageIndex::Decode(key, record.substr(1)).ok());
  EXPECT_FALSE(UsageIndex::Decode("", record).ok());
  EXPECT_FALSE(UsageIndex::Decode("\x20key", record).ok());
}

}  // namespace
}  // namespace kiln
