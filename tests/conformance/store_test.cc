// One suite for every store: what cache/artifact_store.h promises.

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "cache/budget/evicting_store.h"
#include "cache/budget/uses_store.h"
#include "cache/cache_limits.h"
#include "cache/chain/metrics_store.h"
#include "cache/chain/store_config.h"
#include "cache/checks/completeness_store.h"
#include "cache/checks/verifying_store.h"
#include "cache/engine/failing_store.h"
#include "cache/engine/memory_store.h"
#include "cache/engine/rocksdb_store.h"
#include "cache/tiers/coalescing_store.h"
#include "cache/tiers/tiered_store.h"
#include "gtest/gtest.h"
#include "tests/conformance/store_testing.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;

constexpr EntryKind kPublicKinds[] = {EntryKind::kManifest, EntryKind::kObject,  EntryKind::kKernel,
                                      EntryKind::kTuning,   EntryKind::kFailure, EntryKind::kMeta};

// Keeps alive what the store under test needs.
struct Subject {
  std::unique_ptr<ArtifactStore> owned;
  std::unique_ptr<Store> chain;
  ArtifactStore* store = nullptr;
  Catalog* catalog = nullptr;  // of those that have one
};

struct Implementation {
  const char* name;
  std::function<Subject(const std::string& directory)> make;
  bool has_catalog = false;
};

Subject Own(std::unique_ptr<ArtifactStore> store) {
  Subject subject;
  subject.store = store.get();
  subject.owned = std::move(store);
  return subject;
}

std::unique_ptr<RocksdbStore> OpenRocksdb(const std::string& directory) {
  RocksdbOptions options;
  options.directory = directory;
  options.write_buffer_bytes = 256u << 10;
  auto store = RocksdbStore::Open(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

std::unique_ptr<ArtifactStore> Memory() { return std::make_unique<MemoryStore>(64u << 20); }

const Implementation kImplementations[] = {
    {"memory", [](const std::string&) { return Own(Memory()); }},
    {"rocksdb",
     [](const std::string& directory) {
       auto engine = OpenRocksdb(directory);
       Catalog* catalog = engine.get();
       Subject subject = Own(std::move(engine));
       subject.catalog = catalog;
       return subject;
     },
     true},
    {"tiered",
     [](const std::string& directory) {
       return Own(
           std::make_unique<TieredStore>(std::make_unique<MemoryStore>(20'000), OpenRocksdb(directory)));
     }},
    {"verifying",
     [](const std::string&) {
       return Own(std::make_unique<VerifyingStore>(Memory(), VerifyingStore::Mode::kVerify));
     }},
    {"coalescing", [](const std::string&) { return Own(std::make_unique<CoalescingStore>(Memory())); }},
    {"completeness", [](const std::string&) { return Own(std::make_unique<CompletenessStore>(Memory())); }},
    {"metrics", [](const std::string&) { return Own(std::make_unique<MetricsStore>(Memory())); }},
    {"failing_that_does_not",
     [](const std::string&) {
       return Own(std::make_unique<FailingStore>(Memory(),
                                                 [](FailingStore::Operation) { return absl::OkStatus(); }));
     }},
    {"evicting",
     [](const std::string& directory) {
       auto engine = OpenRocksdb(directory);
       Catalog* catalog = engine.get();
       EvictingOptions options;
       options.budget_bytes = 256u << 20;
       options.now_unix_seconds = [] { return int64_t{1000}; };
       Subject subject = Own(*EvictingStore::Create(std::move(engine), catalog, options));
       subject.catalog = catalog;
       return subject;
     },
     true},
    {"chain",
     [](const std::string& directory) {
       v1::StoreConfig config;
       config.set_directory(directory);
       auto chain = NewStore(config);
       EXPECT_TRUE(chain.ok()) << chain.status();
       Subject subject;
       subject.chain = *std::move(chain);
       subject.store = &subject.chain->artifacts();
       subject.catalog = &subject.chain->catalog();
       return subject;
     },
     true},
};

class StoreTest : public testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override { subject_ = GetParam().make(directory_.path()); }
  ArtifactStore& store() { return *subject_.store; }

  void ExpectHolds(const Entry& entry) {
    auto value = store().Get(entry.id);
    ASSERT_TRUE(value.ok()) << EntryKindName(entry.id.kind) << ": " << value.status();
    EXPECT_EQ(**value, *entry.value);
  }

  TemporaryDirectory directory_;
  Subject subject_;
};

TEST_P(StoreTest, MissIsNotFound) {
  for (EntryKind kind : kPublicKinds) {
    EXPECT_EQ(store().Get(PlainEntry(kind, 1).id).status().code(), StatusCode::kNotFound);
  }
}

TEST_P(StoreTest, GivesBackWhatWasPutForEveryKind) {
  std::vector<Entry> batch;
  for (EntryKind kind : kPublicKinds) {
    for (uint64_t seed = 0; seed < 8; ++seed) batch.push_back(PlainEntry(kind, seed));
  }
  ASSERT_TRUE(store().Put(batch).ok());
  for (const Entry& entry : batch) ExpectHolds(entry);
  for (const Entry& entry : batch) ExpectHolds(entry);  // from another tier, perhaps
}

TEST_P(StoreTest, KindsDoNotMeet) {
  Entry tuning = {{EntryKind::kTuning, "same"}, MakeEntryValue("tuning")};
  Entry failure = {{EntryKind::kFailure, "same"}, MakeEntryValue("failure")};
  ASSERT_TRUE(store().Put({tuning, failure}).ok());
  ExpectHolds(tuning);
  ExpectHolds(failure);
  ASSERT_TRUE(store().Delete({tuning.id}).ok());
  EXPECT_EQ(store().Get(tuning.id).status().code(), StatusCode::kNotFound);
  ExpectHolds(failure);
}

TEST_P(StoreTest, PutReplaces) {
  EntryId id = {EntryKind::kTuning, "key"};
  ASSERT_TRUE(store().Put({{id, MakeEntryValue("first")}}).ok());
  ExpectHolds({id, MakeEntryValue("first")});
  ASSERT_TRUE(store().Put({{id, MakeEntryValue("second")}}).ok());
  ExpectHolds({id, MakeEntryValue("second")});
}

TEST_P(StoreTest, LastOfABatchWins) {
  EntryId id = {EntryKind::kTuning, "key"};
  ASSERT_TRUE(store().Put({{id, MakeEntryValue("first")}, {id, MakeEntryValue("second")}}).ok());
  ExpectHolds({id, MakeEntryValue("second")});
}

TEST_P(StoreTest, EmptyAndBinaryBytesAreKept) {
  Entry empty = {{EntryKind::kMeta, "empty"}, MakeEntryValue("")};
  Entry binary = {{EntryKind::kMeta, std::string("\0\xff\0key", 6)}, MakeEntryValue(std::string(5, '\0'))};
  ASSERT_TRUE(store().Put({empty, binary}).ok());
  ExpectHolds(empty);
  ExpectHolds(binary);
}

TEST_P(StoreTest, BigValuesAreKept) {
  Entry big = ObjectEntry(7, 3u << 20);
  ASSERT_TRUE(store().Put({big}).ok());
  ExpectHolds(big);
}

TEST_P(StoreTest, DeleteMakesAMissAndMayBeRepeated) {
  std::vector<Entry> batch = ArtifactBatch(1, 3, 500);
  ASSERT_TRUE(store().Put(batch).ok());
  for (const Entry& entry : batch) ExpectHolds(entry);
  ASSERT_TRUE(store().Delete(IdsOf(batch)).ok());
  ASSERT_TRUE(store().Delete(IdsOf(batch)).ok());
  for (const Entry& entry : batch) {
    EXPECT_EQ(store().Get(entry.id).status().code(), StatusCode::kNotFound);
  }
}

TEST_P(StoreTest, FindMissingKeepsOrderAndDuplicates) {
  Entry a = PlainEntry(EntryKind::kObject, 1), b = PlainEntry(EntryKind::kObject, 2);
  Entry c = PlainEntry(EntryKind::kTuning, 3);
  ASSERT_TRUE(store().Put({b}).ok());
  auto missing = store().FindMissing({c.id, b.id, a.id, c.id});
  ASSERT_TRUE(missing.ok());
  EXPECT_EQ(*missing, (std::vector<EntryId>{c.id, a.id, c.id}));
  EXPECT_TRUE(store().FindMissing({})->empty());
}

TEST_P(StoreTest, EmptyBatchIsFine) {
  EXPECT_TRUE(store().Put({}).ok());
  EXPECT_TRUE(store().Delete({}).ok());
}

TEST_P(StoreTest, LimitsAreInvalidArguments) {
  EntryId longest = {EntryKind::kTuning, std::string(kEntryKeyBytesMax, 'k')};
  EXPECT_TRUE(store().Put({{longest, MakeEntryValue("v")}}).ok());
  EntryValue value = MakeEntryValue("v");
  for (const Entry& bad :
       {Entry{{EntryKind::kTuning, ""}, value},
        Entry{{EntryKind::kTuning, std::string(kEntryKeyBytesMax + 1, 'k')}, value},
        Entry{{EntryKind::kUses, "key"}, value}, Entry{{static_cast<EntryKind>(kEntryKinds), "key"}, value},
        Entry{{EntryKind::kTuning, "null"}, nullptr}}) {
    EXPECT_EQ(store().Put({bad}).code(), StatusCode::kInvalidArgument);
    if (bad.value != nullptr) {
      EXPECT_EQ(store().Get(bad.id).status().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(store().FindMissing({bad.id}).status().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(store().Delete({bad.id}).code(), StatusCode::kInvalidArgument);
    }
  }
  std::vector<Entry> too_many(kBatchEntriesMax + 1, {{EntryKind::kTuning, "k"}, value});
  EXPECT_EQ(store().Put(too_many).code(), StatusCode::kInvalidArgument);
}

TEST_P(StoreTest, BadEntryRefusesTheWholeBatch) {
  Entry good = PlainEntry(EntryKind::kTuning, 1);
  Entry bad = {{EntryKind::kTuning, ""}, MakeEntryValue("v")};
  EXPECT_FALSE(store().Put({good, bad}).ok());
  EXPECT_EQ(store().Get(good.id).status().code(), StatusCode::kNotFound);
}

// Writers replace two entries in one batch; a reader never sees time go backwards.
TEST_P(StoreTest, ConcurrentReadersSeeAcknowledgedWrites) {
  EntryId id = {EntryKind::kTuning, "counter"};
  ASSERT_TRUE(store().Put({{id, MakeEntryValue("0")}}).ok());
  constexpr int kLast = 60;
  std::atomic<int> acknowledged{0};
  std::thread writer([&] {
    for (int i = 1; i <= kLast; ++i) {
      ASSERT_TRUE(store().Put({{id, MakeEntryValue(absl::StrCat(i))}}).ok());
      acknowledged = i;
    }
  });
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&] {
      while (acknowledged < kLast) {
        int before = acknowledged;
        auto value = store().Get(id);
        ASSERT_TRUE(value.ok()) << value.status();
        EXPECT_GE(std::stoi(**value), before);
      }
    });
  }
  writer.join();
  for (std::thread& reader : readers) reader.join();
}

TEST_P(StoreTest, ConcurrentMixedCallsLeaveNothingHalf) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 15; ++i) {
        std::vector<Entry> batch = ArtifactBatch(i % 5, 2, 600);
        if ((i + t) % 4 == 0) {
          EXPECT_TRUE(store().Delete(IdsOf(batch)).ok());
        } else {
          EXPECT_TRUE(store().Put(batch).ok());
        }
        for (const Entry& entry : batch) {
          auto value = store().Get(entry.id);
          if (value.ok()) {
            EXPECT_EQ(**value, *entry.value);
          } else {
            EXPECT_EQ(value.status().code(), StatusCode::kNotFound);
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 5; ++i) {
    std::vector<Entry> batch = ArtifactBatch(i, 2, 600);
    ASSERT_TRUE(store().Put(batch).ok());
    for (const Entry& entry : batch) ExpectHolds(entry);
  }
}

class CatalogTest : public StoreTest {};

TEST_P(CatalogTest, TellsWhatIsThere) {
  Catalog& catalog = *subject_.catalog;
  Entry one = {{EntryKind::kTuning, "prefix/1"}, MakeEntryValue("v")};
  Entry two = {{EntryKind::kTuning, "prefix/2"}, MakeEntryValue("v")};
  Entry other = {{EntryKind::kTuning, "q"}, MakeEntryValue("v")};
  ASSERT_TRUE(store().Put({two, other, one}).ok());
  auto found = catalog.Scan(EntryKind::kTuning, "prefix/");
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 2u);
  EXPECT_EQ((*found)[0].id, one.id);
  EXPECT_EQ((*found)[1].id, two.id);
  EXPECT_EQ(catalog.Scan(EntryKind::kTuning, "", 2)->size(), 2u);
  EXPECT_EQ(catalog.Scan(EntryKind::kTuning, "")->size(), 3u);
  EXPECT_TRUE(catalog.Scan(EntryKind::kFailure, "")->empty());
  auto page = catalog.Scan(EntryKind::kTuning, "prefix/", 1, one.id.key);
  ASSERT_EQ(page->size(), 1u);
  EXPECT_EQ((*page)[0].id, two.id);
  EXPECT_TRUE(catalog.Scan(EntryKind::kTuning, "prefix/", 0, two.id.key)->empty());

  uint64_t hits = catalog.Find(one.id)->hits;
  catalog.RecordUse(one.id);
  EXPECT_EQ(catalog.Find(one.id)->hits, hits + 1);
  EXPECT_GE(catalog.Find(one.id)->bytes, 1u);
  EXPECT_GT(catalog.Find(one.id)->created_unix_seconds, 0);
  EXPECT_TRUE(catalog.SetPinned(one.id, true).ok());
  EXPECT_TRUE(catalog.Find(one.id)->pinned);
  EXPECT_EQ(catalog.SetPinned({EntryKind::kTuning, "nothing"}, true).code(), StatusCode::kNotFound);
  EXPECT_EQ(catalog.Totals().entries[static_cast<size_t>(EntryKind::kTuning)], 3u);
  EXPECT_GT(catalog.Totals().bytes_on_disk, 0u);

  ASSERT_TRUE(store().Delete({one.id}).ok());
  EXPECT_EQ(catalog.Find(one.id).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(catalog.Scan(EntryKind::kTuning, "prefix/")->size(), 1u);
  EXPECT_TRUE(catalog.Reclaim(nullptr).ok());
  ExpectHolds(two);
}

std::vector<Implementation> ImplementationsWithCatalog() {
  std::vector<Implementation> with;
  for (const Implementation& implementation : kImplementations) {
    if (implementation.has_catalog) with.push_back(implementation);
  }
  return with;
}

INSTANTIATE_TEST_SUITE_P(Every, CatalogTest, testing::ValuesIn(ImplementationsWithCatalog()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Every, StoreTest, testing::ValuesIn(kImplementations),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kiln
