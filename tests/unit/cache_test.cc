// Each decorator of the store by itself, with the fault that it is there for.

#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cache/chain/metrics_store.h"
#include "cache/chain/store_config.h"
#include "cache/checks/completeness_store.h"
#include "cache/checks/entry_envelope.h"
#include "cache/checks/verifying_store.h"
#include "cache/engine/failing_store.h"
#include "cache/engine/memory_store.h"
#include "cache/engine/rocksdb_store.h"
#include "cache/engine/unavailable_store.h"
#include "cache/engine/usage_index.h"
#include "cache/tiers/coalescing_store.h"
#include "cache/tiers/tiered_store.h"
#include "compiler/support/monotonic_time.h"
#include "gtest/gtest.h"
#include "rocksdb/file_system.h"
#include "rocksdb/write_batch.h"
#include "tests/conformance/store_testing.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;
using Operation = FailingStore::Operation;

Entry Tuning(const std::string& key, std::string value = "value") {
  return {{EntryKind::kTuning, key}, MakeEntryValue(std::move(value))};
}

v1::StoreConfig Config(const std::string& directory) {
  v1::StoreConfig config;
  config.set_directory(directory);
  return config;
}

// ---- Envelope -------------------------------------------------------------------------------

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

// ---- Memory ---------------------------------------------------------------------------------

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

// ---- Tiered ---------------------------------------------------------------------------------

TEST(TieredStoreTest, ReadsOnceFromTheSlowStore) {
  int slow_gets = 0;
  auto slow = std::make_unique<MemoryStore>(1 << 20);
  ASSERT_TRUE(slow->Put({Tuning("a")}).ok());
  TieredStore store(std::make_unique<MemoryStore>(1 << 20),
                    std::make_unique<FailingStore>(std::move(slow), [&](Operation operation) {
                      slow_gets += operation == Operation::kGet;
                      return absl::OkStatus();
                    }));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(store.Get({EntryKind::kTuning, "a"}).ok());
  EXPECT_EQ(slow_gets, 1);
  EXPECT_EQ(store.fast_hits(), 2u);
}

TEST(TieredStoreTest, FullDiskIsToldAndServedFromMemory) {
  absl::Status trouble = absl::ResourceExhaustedError("no space");
  TieredStore store(
      std::make_unique<MemoryStore>(1 << 20),
      std::make_unique<FailingStore>(std::make_unique<MemoryStore>(1 << 20), [&](Operation operation) {
        return operation == Operation::kPut ? trouble : absl::OkStatus();
      }));
  EXPECT_EQ(store.Put({Tuning("a")}).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(store.Get({EntryKind::kTuning, "a"}).ok());
  trouble = absl::OkStatus();
  EXPECT_TRUE(store.Put({Tuning("a")}).ok());
}

// A memory tier that holds nothing, and a disk that refuses: who was told of an artifact can fetch it for a
// minute.
TEST(TieredStoreTest, WhatTheDiskRefusedIsThereForAMinute) {
  absl::Status trouble = absl::ResourceExhaustedError("no space");
  MonotonicTime now;
  RefusedWritesOptions refused;
  refused.bytes_max = 10'000;
  refused.now = [&now] { return now; };
  TieredStore store(
      std::make_unique<MemoryStore>(0),
      std::make_unique<FailingStore>(
          std::make_unique<MemoryStore>(1 << 20),
          [&](Operation operation) { return operation == Operation::kPut ? trouble : absl::OkStatus(); }),
      refused);
  const auto there = [&](const std::string& key) {
    const EntryId id = Tuning(key).id;
    const bool found = store.Get(id).ok();
    EXPECT_EQ(store.FindMissing({id})->empty(), found) << key;
    return found;
  };
  const auto put = [&](const std::vector<Entry>& batch) {
    EXPECT_EQ(store.Put(batch).code(), trouble.code());
  };
  put({Tuning("a"), Tuning("b")});
  now += std::chrono::seconds(59);
  EXPECT_TRUE(there("a") && there("b"));
  now += std::chrono::seconds(1);
  EXPECT_FALSE(there("a") || there("b"));
  // Bounded: the oldest go, and what alone is too much is not kept in part.
  put({Tuning("a", std::string(4'000, 'v'))});
  put({Tuning("b", std::string(4'000, 'v'))});
  put({Tuning("c", std::string(4'000, 'v'))});
  EXPECT_FALSE(there("a"));
  EXPECT_TRUE(there("b") && there("c"));
  put({Tuning("d", std::string(9'000, 'v')), Tuning("b", std::string(9'000, 'v'))});
  EXPECT_FALSE(there("d"));
  EXPECT_FALSE(there("b")) << "an older value than the last that was put";
  EXPECT_TRUE(there("c"));
  ASSERT_TRUE(store.Delete({Tuning("c").id}).ok());
  EXPECT_FALSE(there("c"));
  // Once written, the slow store alone says what is there.
  put({Tuning("e", "refused")});
  trouble = absl::OkStatus();
  put({Tuning("e", "written")});
  EXPECT_EQ(**store.Get(Tuning("e").id), "written");
  // The control: what no environment refused, the caller's fault, is not kept.
  trouble = absl::InvalidArgumentError("drill");
  put({Tuning("f")});
  EXPECT_FALSE(there("f"));
}

// A write that the disk refuses, and another that comes to its end meanwhile.
TEST(TieredStoreTest, ARefusedValueHidesNoneThatWasWrittenMeanwhile) {
  constexpr int kKeys = 200;  // several a stripe
  const auto batch = [](const char* value) {
    std::vector<Entry> entries;
    for (int i = 0; i < kKeys; ++i) entries.push_back(Tuning(absl::StrCat(i), value));
    return entries;
  };
  for (const uint64_t memory : {0, 1 << 20}) {
    std::vector<absl::Status> outcomes;  // of the puts to come, the last one first
    std::function<void()> meanwhile;
    TieredStore store(
        std::make_unique<MemoryStore>(memory),
        std::make_unique<FailingStore>(std::make_unique<MemoryStore>(1 << 20), [&](Operation operation) {
          if (operation != Operation::kPut) return absl::OkStatus();
          const absl::Status outcome = outcomes.back();
          outcomes.pop_back();
          if (const auto then = std::exchange(meanwhile, nullptr)) then();
          return outcome;
        }));
    const auto expect = [&](absl::string_view value) {
      for (int i = 0; i < kKeys; ++i) {
        const auto found = store.Get(Tuning(absl::StrCat(i)).id);
        ASSERT_TRUE(found.ok()) << value << ": " << found.status();
        ASSERT_EQ(**found, value);
      }
    };
    const absl::Status full = absl::ResourceExhaustedError("no space");
    outcomes = {absl::OkStatus(), full};
    meanwhile = [&] { EXPECT_TRUE(store.Put(batch("newer")).ok()); };
    EXPECT_EQ(store.Put(batch("older")).code(), full.code());
    expect("newer");
    // The controls: what is refused later is served, and two that are refused at a time don't matter.
    outcomes = {full};
    EXPECT_EQ(store.Put(batch("newest")).code(), full.code());
    expect("newest");
    outcomes = {full, full};
    meanwhile = [&] { EXPECT_EQ(store.Put(batch("first")).code(), full.code()); };
    EXPECT_EQ(store.Put(batch("second")).code(), full.code());
    expect("second");
  }
}

// A fill that began before an entry went must not bring it back: by a Delete, or because the slow store lost
// it by itself. The control takes it from the fast store alone, behind the tiers' back.
class TieredFillTest : public testing::TestWithParam<const char*> {};

TEST_P(TieredFillTest, FillThatWasOvertakenIsDropped) {
  const std::string how = GetParam();
  absl::Notification reading, deleted;
  auto slow = std::make_unique<MemoryStore>(1 << 20);
  MemoryStore* slow_store = slow.get();
  ASSERT_TRUE(slow->Put({Tuning("a")}).ok());
  class LateStore : public ArtifactStore {
   public:
    LateStore(std::unique_ptr<ArtifactStore> base, absl::Notification* reading, absl::Notification* go)
        : base_(std::move(base)), reading_(reading), go_(go) {}
    absl::StatusOr<EntryValue> Get(const EntryId& id) override {
      auto value = base_->Get(id);
      if (!reading_->HasBeenNotified()) {
        reading_->Notify();
        go_->WaitForNotification();
      }
      return value;
    }
    absl::Status Put(absl::Span<const Entry> batch) override { return base_->Put(batch); }
    absl::Status Delete(absl::Span<const EntryId> ids) override { return base_->Delete(ids); }
    absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override {
      return base_->FindMissing(ids);
    }

   private:
    std::unique_ptr<ArtifactStore> base_;
    absl::Notification* reading_;
    absl::Notification* go_;
  };
  auto fast = std::make_unique<MemoryStore>(1 << 20);
  MemoryStore* fast_store = fast.get();
  TieredStore store(std::move(fast), std::make_unique<LateStore>(std::move(slow), &reading, &deleted));
  std::thread reader([&] { EXPECT_TRUE(store.Get({EntryKind::kTuning, "a"}).ok()); });
  reading.WaitForNotification();
  const EntryId id = {EntryKind::kTuning, "a"};
  if (how == "deleted") {
    ASSERT_TRUE(store.Delete({id}).ok());
  } else {
    ASSERT_TRUE(slow_store->Delete({id}).ok());
    if (how == "evicted") store.Forget({id});
    if (how == "control") {
      ASSERT_TRUE(fast_store->Delete({id}).ok());
    }
  }
  deleted.Notify();
  reader.join();
  EXPECT_FALSE(slow_store->Get(id).ok());
  EXPECT_EQ(store.Get(id).status().code(), how == "control" ? StatusCode::kOk : StatusCode::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(Ways, TieredFillTest, testing::Values("deleted", "evicted", "control"),
                         [](const auto& info) { return info.param; });

// ---- Coalescing -----------------------------------------------------------------------------

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

// ---- Verifying ------------------------------------------------------------------------------

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

// ---- Completeness ---------------------------------------------------------------------------

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

// ---- Metrics --------------------------------------------------------------------------------

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

// ---- RocksDB --------------------------------------------------------------------------------

RocksdbOptions Options(const std::string& directory) {
  RocksdbOptions options;
  options.directory = directory;
  return options;
}

TEST(RocksdbStoreTest, EntriesUsesAndPinsSurviveReopening) {
  TemporaryDirectory directory;
  Entry entry = Tuning("a");
  {
    auto store = RocksdbStore::Open(Options(directory.path()));
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Put({entry}).ok());
    for (int i = 0; i < 5; ++i) (*store)->RecordUse(entry.id);
    ASSERT_TRUE((*store)->SetPinned(entry.id, true).ok());
    (*store)->RecordUse(entry.id);
  }
  auto store = RocksdbStore::Open(Options(directory.path()));
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(**(*store)->Get(entry.id), *entry.value);
  EXPECT_EQ((*store)->Find(entry.id)->hits, 6u);
  EXPECT_TRUE((*store)->Find(entry.id)->pinned);
  EXPECT_FALSE((*store)->started_anew());
}

// More entries than are loaded together, of two kinds, some replaced.
TEST(RocksdbStoreTest, AWholeCatalogueIsLoadedAgain) {
  TemporaryDirectory directory;
  constexpr size_t kEntries = 2'500;
  CatalogTotals before;
  {
    auto store = RocksdbStore::Open(Options(directory.path()));
    ASSERT_TRUE(store.ok()) << store.status();
    for (const char* value : {"value", "another value"}) {
      std::vector<Entry> batch;
      for (size_t i = 0; i < kEntries; i += *value == 'v' ? 1 : 3) {
        batch.push_back(Tuning(absl::StrCat(i), value));
        batch.push_back({{EntryKind::kFailure, absl::StrCat(i)}, MakeEntryValue(value)});
      }
      ASSERT_TRUE((*store)->Put(batch).ok());
    }
    before = (*store)->Totals();
  }
  auto store = RocksdbStore::Open(Options(directory.path()));
  ASSERT_TRUE(store.ok()) << store.status();
  const CatalogTotals after = (*store)->Totals();
  for (size_t kind = 0; kind < kEntryKinds; ++kind) {
    EXPECT_EQ(after.entries[kind], before.entries[kind]) << kind;
    EXPECT_EQ(after.bytes[kind], before.bytes[kind]) << kind;
  }
  EXPECT_EQ(after.entries[static_cast<size_t>(EntryKind::kTuning)], kEntries);
  EXPECT_EQ((*store)->Find(Tuning("2499").id)->bytes, strlen("another value"));
  EXPECT_EQ((*store)->Scan(EntryKind::kFailure, "", 0, "")->size(), kEntries);
}

// Knows which threads append to files.
class WatchedFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit WatchedFileSystem(const std::shared_ptr<rocksdb::FileSystem>& target)
      : FileSystemWrapper(target) {}
  const char* Name() const override { return "WatchedFileSystem"; }
  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* context) override {
    std::unique_ptr<rocksdb::FSWritableFile> target;
    rocksdb::IOStatus status = FileSystemWrapper::NewWritableFile(path, options, &target, context);
    if (status.ok()) *file = std::make_unique<WatchedFile>(std::move(target), this);
    return status;
  }
  std::set<std::thread::id> TakeWriters() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(writers_, {});
  }

 private:
  class WatchedFile : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    WatchedFile(std::unique_ptr<rocksdb::FSWritableFile> target, WatchedFileSystem* system)
        : FSWritableFileOwnerWrapper(std::move(target)), system_(system) {}
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* context) override {
      system_->Note();
      return FSWritableFileOwnerWrapper::Append(data, options, context);
    }
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             const rocksdb::DataVerificationInfo& info,
                             rocksdb::IODebugContext* context) override {
      system_->Note();
      return FSWritableFileOwnerWrapper::Append(data, options, info, context);
    }

   private:
    WatchedFileSystem* const system_;
  };
  void Note() {
    absl::MutexLock lock(&mutex_);
    writers_.insert(std::this_thread::get_id());
  }
  absl::Mutex mutex_;
  std::set<std::thread::id> writers_ ABSL_GUARDED_BY(mutex_);
};

TEST(RocksdbStoreTest, WhoRecordsUsesWritesNothing) {
  TemporaryDirectory directory;
  auto files = std::make_shared<WatchedFileSystem>(rocksdb::FileSystem::Default());
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(files);
  RocksdbOptions options = Options(directory.path());
  options.env = env.get();
  auto store = RocksdbStore::Open(options);
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<Entry> entries;
  for (int i = 0; i < 2000; ++i) entries.push_back(Tuning(absl::StrCat("entry ", i)));
  ASSERT_TRUE((*store)->Put(entries).ok());
  EXPECT_TRUE(files->TakeWriters().contains(std::this_thread::get_id())) << "a Put does";
  for (const Entry& entry : entries) (*store)->RecordUse(entry.id);
  std::set<std::thread::id> writers = files->TakeWriters();
  for (int i = 0; i < 200 && writers.empty(); ++i) {
    absl::SleepFor(absl::Milliseconds(50));
    writers = files->TakeWriters();
  }
  EXPECT_FALSE(writers.empty()) << "uses are written all the same";
  EXPECT_FALSE(writers.contains(std::this_thread::get_id()));
}

// Lists directories for real, and counts.
class CountingFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit CountingFileSystem(const std::shared_ptr<rocksdb::FileSystem>& target)
      : FileSystemWrapper(target) {}
  const char* Name() const override { return "CountingFileSystem"; }
  rocksdb::IOStatus GetChildrenFileAttributes(const std::string& directory, const rocksdb::IOOptions& options,
                                              std::vector<rocksdb::FileAttributes>* result,
                                              rocksdb::IODebugContext* context) override {
    ++listings;
    return FileSystemWrapper::GetChildrenFileAttributes(directory, options, result, context);
  }
  std::atomic<int> listings{0};
};

TEST(RocksdbStoreTest, BytesOnDiskAreMeasuredOnceASecond) {
  TemporaryDirectory directory;
  auto system = std::make_shared<CountingFileSystem>(rocksdb::FileSystem::Default());
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(system);
  StoreEnvironment environment;
  environment.env = env.get();
  auto store = NewStore(Config(directory.path()), environment);
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Time start = absl::Now();
  uint64_t before = 0;
  int listed_before = 0;
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE((*store)->artifacts().Put({Tuning(absl::StrCat(i), std::string(1'000, 'v'))}).ok());
    const uint64_t now = (*store)->statistics().bytes_on_disk;
    // What was written since the last measurement counts; one shows besides what RocksDB has tidied away.
    if (i % 50 == 49) {
      EXPECT_TRUE(now > before || system->listings != listed_before) << now << " " << before;
      before = now;
      listed_before = system->listings;
    }
  }
  EXPECT_LE(system->listings, 2 + absl::ToInt64Seconds(absl::Now() - start));
  // The control: it is measured, when the time has come.
  const int listings = system->listings;
  absl::SleepFor(absl::Milliseconds(1'100));
  (*store)->statistics();
  EXPECT_EQ(system->listings, listings + 1);
}

TEST(RocksdbStoreTest, WhatWasJustWrittenCountsOnce) {
  TemporaryDirectory directory;
  auto store = RocksdbStore::Open(Options(directory.path()));
  ASSERT_TRUE(store.ok()) << store.status();
  // Also counted twice it would not be measured anew at once; on a slow machine a second may pass meanwhile.
  constexpr uint64_t kBytes = 400u << 10;
  for (int i = 0;; ++i) {
    const absl::Time start = absl::Now();
    const uint64_t before = (*store)->Totals().bytes_on_disk;
    ASSERT_TRUE((*store)->Put({Tuning(absl::StrCat(i), std::string(kBytes, 'v'))}).ok());
    const uint64_t after = (*store)->Totals().bytes_on_disk;
    if (i < 20 && absl::Now() - start > absl::Milliseconds(900)) continue;
    EXPECT_GE(after, before + kBytes / 10 * 9);
    EXPECT_LE(after, before + kBytes / 10 * 11);
    break;
  }
}

// Blobs are read slowly by every thread but one, which can be made to find the disk full.
class SlowFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit SlowFileSystem(const std::shared_ptr<rocksdb::FileSystem>& target) : FileSystemWrapper(target) {}
  const char* Name() const override { return "SlowFileSystem"; }
  rocksdb::IOStatus NewRandomAccessFile(const std::string& path, const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* context) override {
    std::unique_ptr<rocksdb::FSRandomAccessFile> target;
    rocksdb::IOStatus status = FileSystemWrapper::NewRandomAccessFile(path, options, &target, context);
    if (!status.ok()) return status;
    *file = std::move(target);
    if (absl::EndsWith(path, ".blob")) *file = std::make_unique<SlowFile>(std::move(*file), this);
    return status;
  }
  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* context) override {
    std::unique_ptr<rocksdb::FSWritableFile> target;
    rocksdb::IOStatus status = FileSystemWrapper::NewWritableFile(path, options, &target, context);
    if (status.ok()) *file = std::make_unique<FullFile>(std::move(target), this);
    return status;
  }
  std::atomic<bool> slow{false}, full{false};
  std::atomic<int> slow_reads{0};

 private:
  class SlowFile : public rocksdb::FSRandomAccessFileOwnerWrapper {
   public:
    SlowFile(std::unique_ptr<rocksdb::FSRandomAccessFile> target, SlowFileSystem* system)
        : FSRandomAccessFileOwnerWrapper(std::move(target)), system_(system) {}
    rocksdb::IOStatus Read(uint64_t offset, size_t size, const rocksdb::IOOptions& options,
                           rocksdb::Slice* result, char* scratch,
                           rocksdb::IODebugContext* context) const override {
      if (system_->slow && std::this_thread::get_id() != system_->quick_) {
        ++system_->slow_reads;
        absl::SleepFor(absl::Milliseconds(20));
      }
      return FSRandomAccessFileOwnerWrapper::Read(offset, size, options, result, scratch, context);
    }

   private:
    SlowFileSystem* const system_;
  };
  class FullFile : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    FullFile(std::unique_ptr<rocksdb::FSWritableFile> target, SlowFileSystem* system)
        : FSWritableFileOwnerWrapper(std::move(target)), system_(system) {}
    using FSWritableFileOwnerWrapper::Append;
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* context) override {
      if (system_->full && std::this_thread::get_id() == system_->quick_) return rocksdb::IOStatus::NoSpace();
      return FSWritableFileOwnerWrapper::Append(data, options, context);
    }

   private:
    SlowFileSystem* const system_;
  };

  const std::thread::id quick_ = std::this_thread::get_id();
};

// Rewriting blobs takes minutes on a real disk, and a writer would have to wait for all of it.
TEST(RocksdbStoreTest, OpeningAnewWaitsForNoReclaim) {
  TemporaryDirectory directory;
  auto system = std::make_shared<SlowFileSystem>(rocksdb::FileSystem::Default());
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(system);
  RocksdbOptions options = Options(directory.path());
  options.env = env.get();
  options.cache_bytes = 0;
  options.write_buffer_bytes = options.blob_file_bytes = 64u << 10;
  auto store = RocksdbStore::Open(options);
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<EntryId> gone;
  for (int i = 0; i < 400; ++i) {
    const Entry blob = {{EntryKind::kObject, absl::StrCat(i)}, MakeEntryValue(std::string(8'000, 'v'))};
    ASSERT_TRUE((*store)->Put({blob}).ok());
    if (i % 2 == 0) gone.push_back(blob.id);
  }
  ASSERT_TRUE((*store)->Delete(gone).ok());
  system->slow = true;
  absl::Status reclaimed;
  std::thread reclaimer([&] { reclaimed = (*store)->Reclaim(nullptr); });
  while (system->slow_reads < 5) absl::SleepFor(absl::Milliseconds(1));
  system->full = true;
  EXPECT_EQ((*store)->Put({Tuning("a")}).code(), StatusCode::kResourceExhausted);
  system->full = false;
  absl::Status put = absl::UnknownError("not yet");
  // The catalogue answers as it did while the database is opened anew.
  std::atomic<bool> open{false};
  std::atomic<int> scans{0};
  std::thread reader([&] {
    while (!open) {
      EXPECT_EQ((*store)->Scan(EntryKind::kObject, "", 0, "")->size(), 200u);
      ++scans;
    }
  });
  while (!put.ok()) put = (*store)->Put({Tuning("a")});
  open = true;
  system->slow = false;
  reader.join();
  reclaimer.join();
  EXPECT_EQ(reclaimed.code(), StatusCode::kCancelled) << reclaimed;
  EXPECT_GT(scans, 0);
  EXPECT_TRUE((*store)->Reclaim(nullptr).ok()) << "the control: undisturbed it ends";
}

// A database whose logs find the disk full, and that can't be opened; a probe for space succeeds.
class UnopenableFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit UnopenableFileSystem(const std::shared_ptr<rocksdb::FileSystem>& target)
      : FileSystemWrapper(target) {}
  const char* Name() const override { return "UnopenableFileSystem"; }
  rocksdb::IOStatus NewSequentialFile(const std::string& path, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* file,
                                      rocksdb::IODebugContext* context) override {
    if (unopenable && absl::EndsWith(path, "/CURRENT")) return rocksdb::IOStatus::IOError("bad sector");
    return FileSystemWrapper::NewSequentialFile(path, options, file, context);
  }
  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* context) override {
    std::unique_ptr<rocksdb::FSWritableFile> target;
    rocksdb::IOStatus status = FileSystemWrapper::NewWritableFile(path, options, &target, context);
    if (!status.ok()) return status;
    *file = std::move(target);
    if (absl::EndsWith(path, ".log")) *file = std::make_unique<Log>(std::move(*file), this);
    return status;
  }
  std::atomic<bool> unopenable{false}, logs_full{false};

 private:
  class Log : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    Log(std::unique_ptr<rocksdb::FSWritableFile> target, UnopenableFileSystem* system)
        : FSWritableFileOwnerWrapper(std::move(target)), system_(system) {}
    using FSWritableFileOwnerWrapper::Append;
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* context) override {
      if (system_->logs_full) return rocksdb::IOStatus::NoSpace();
      return FSWritableFileOwnerWrapper::Append(data, options, context);
    }

   private:
    UnopenableFileSystem* const system_;
  };
};

class ReopeningTest : public testing::Test {
 protected:
  // A store with two entries that has just stopped, since its log found the disk full.
  void SetUp() override {
    RocksdbOptions options = Options(directory_.path());
    options.env = env_.get();
    auto store = RocksdbStore::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    ASSERT_TRUE(store_->Put({Tuning("a"), Tuning("b")}).ok());
    system_->logs_full = true;
    ASSERT_EQ(store_->Put({Tuning("c")}).code(), StatusCode::kResourceExhausted);
    ASSERT_TRUE(store_->FindMissing(kIds)->empty()) << "the control: reads go on";
  }
  void ExpectNothingIsPromised() {
    EXPECT_EQ(*store_->FindMissing(kIds), kIds);
    EXPECT_TRUE(store_->Scan(EntryKind::kTuning, "", 0, "")->empty());
    EXPECT_EQ(store_->Get(kIds[0]).status().code(), StatusCode::kUnavailable);
    EXPECT_FALSE(store_->write_state().ok());
  }
  absl::Status PutOnceItOpens() {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    absl::Status put = store_->Put({Tuning("c")});
    for (; !put.ok() && absl::Now() < end; put = store_->Put({Tuning("c")})) {
      absl::SleepFor(absl::Milliseconds(50));
    }
    return put;
  }

  const std::vector<EntryId> kIds = {Tuning("a").id, Tuning("b").id};
  TemporaryDirectory directory_;
  const std::shared_ptr<UnopenableFileSystem> system_ =
      std::make_shared<UnopenableFileSystem>(rocksdb::FileSystem::Default());
  const std::unique_ptr<rocksdb::Env> env_ = rocksdb::NewCompositeEnv(system_);
  std::unique_ptr<RocksdbStore> store_;
};

TEST_F(ReopeningTest, WhatCannotBeOpenedIsNotPromised) {
  system_->logs_full = false;
  system_->unopenable = true;
  EXPECT_EQ(store_->Put({Tuning("c")}).code(), StatusCode::kUnavailable);
  ExpectNothingIsPromised();
  system_->unopenable = false;
  ASSERT_TRUE(PutOnceItOpens().ok());
  EXPECT_TRUE(store_->FindMissing(kIds)->empty());
  EXPECT_TRUE(store_->Get(kIds[0]).ok());
}

TEST_F(ReopeningTest, WhatWasSetAsideIsNotPromised) {
  std::ofstream(directory_.path() + "/db/CURRENT") << "damaged";
  EXPECT_EQ(store_->Put({Tuning("c")}).code(), StatusCode::kResourceExhausted) << "of the format";
  EXPECT_TRUE(store_->started_anew());
  ExpectNothingIsPromised();
  system_->logs_full = false;
  ASSERT_TRUE(PutOnceItOpens().ok());
  EXPECT_EQ(*store_->FindMissing(kIds), kIds);
  EXPECT_TRUE(store_->Get(Tuning("c").id).ok());
}

TEST(RocksdbStoreTest, SecondProcessIsRefused) {
  TemporaryDirectory directory;
  auto first = RocksdbStore::Open(Options(directory.path()));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(RocksdbStore::Open(Options(directory.path())).status().code(), StatusCode::kAborted);
  EXPECT_EQ(NewStore(Config(directory.path())).status().code(), StatusCode::kAborted);
}

TEST(NewStoreTest, WhatAnotherProcessHasIsLeftAloneAndMemoryServes) {
  TemporaryDirectory directory;
  auto first = NewStore(Config(directory.path()));
  ASSERT_TRUE(first.ok());
  auto second = NewStore(Config(directory.path()), StoreEnvironment(), WhereInUse::kMemoryOnly);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_FALSE((*second)->statistics().writable);
  EXPECT_NE((*second)->statistics().message.find("in use"), std::string::npos);
  const Entry entry = ObjectEntry(/*seed=*/7, /*size=*/100);
  EXPECT_EQ((*second)->artifacts().Put({entry}).code(), StatusCode::kUnavailable);
  EXPECT_TRUE((*second)->artifacts().Get(entry.id).ok());
  EXPECT_EQ((*first)->artifacts().Get(entry.id).status().code(), StatusCode::kNotFound);
}

TEST(RocksdbStoreTest, DatabaseThatDoesNotOpenIsSetAside) {
  TemporaryDirectory directory;
  ASSERT_TRUE((*RocksdbStore::Open(Options(directory.path())))->Put({Tuning("a")}).ok());
  std::filesystem::resize_file(directory.path() + "/db/CURRENT", 3);
  RocksdbOptions options = Options(directory.path());
  options.now_unix_seconds = [] { return int64_t{12345}; };
  {
    auto store = RocksdbStore::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE((*store)->started_anew());
    EXPECT_FALSE((*store)->Get(Tuning("a").id).ok());
    EXPECT_TRUE((*store)->Put({Tuning("a")}).ok());
    EXPECT_TRUE(std::filesystem::exists(directory.path() + "/corrupt-12345/CURRENT"));
  }
  auto store = RocksdbStore::Open(options);
  ASSERT_TRUE(store.ok());
  EXPECT_FALSE((*store)->started_anew());
  EXPECT_TRUE((*store)->Get(Tuning("a").id).ok());
}

// Returns the database's format so far.
std::string SetFormat(const std::string& path, const std::string& format) {
  rocksdb::DB* opened = nullptr;
  std::vector<std::string> names;
  EXPECT_TRUE(rocksdb::DB::ListColumnFamilies(rocksdb::DBOptions(), path, &names).ok());
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  for (const std::string& name : names) descriptors.emplace_back(name, rocksdb::ColumnFamilyOptions());
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  EXPECT_TRUE(rocksdb::DB::Open(rocksdb::DBOptions(), path, descriptors, &handles, &opened).ok());
  std::unique_ptr<rocksdb::DB> db(opened);
  std::string before;
  for (auto* handle : handles) {
    if (handle->GetName() == "meta") {
      const std::string key = "format" + std::string(kEntryKeyBytesMax, '.');
      EXPECT_TRUE(db->Get(rocksdb::ReadOptions(), handle, key, &before).ok());
      EXPECT_TRUE(db->Put(rocksdb::WriteOptions(), handle, key, format).ok());
    }
    EXPECT_TRUE(db->DestroyColumnFamilyHandle(handle).ok());
  }
  return before;
}

TEST(RocksdbStoreTest, TheFirstFormatIsOpenedAndRaised) {
  TemporaryDirectory directory;
  {
    auto store = RocksdbStore::Open(Options(directory.path()));
    ASSERT_TRUE((*store)->Put({Tuning("a")}).ok());
    ASSERT_TRUE((*store)->SetPinned(Tuning("a").id, true).ok());
  }
  EXPECT_EQ(SetFormat(directory.path() + "/db", "1"), "2");
  {
    auto store = RocksdbStore::Open(Options(directory.path()));
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE((*store)->Find(Tuning("a").id)->pinned);
  }
  EXPECT_EQ(SetFormat(directory.path() + "/db", "2"), "2");
}

TEST(RocksdbStoreTest, UnknownFormatIsLeftUntouched) {
  TemporaryDirectory directory;
  ASSERT_TRUE((*RocksdbStore::Open(Options(directory.path())))->Put({Tuning("a")}).ok());
  std::string path = directory.path() + "/db";
  SetFormat(path, "999");
  auto snapshot = [&] {
    std::map<std::string, std::string> files;
    for (const auto& file : std::filesystem::directory_iterator(path)) {
      if (file.path().filename().string().rfind("LOG", 0) == 0) continue;  // RocksDB's own diary
      std::ifstream in(file.path(), std::ios::binary);
      files[file.path().filename()] = std::string(std::istreambuf_iterator<char>(in), {});
    }
    return files;
  };
  auto before = snapshot();
  EXPECT_EQ(RocksdbStore::Open(Options(directory.path())).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(before, snapshot());
  EXPECT_EQ(NewStore(Config(directory.path())).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(before, snapshot());
}

TEST(RocksdbStoreTest, AWholeDatabaseOfAnotherKindIsRefusedAndStays) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/db";
  rocksdb::Options options;
  options.create_if_missing = options.create_missing_column_families = true;
  rocksdb::ColumnFamilyOptions backwards;
  backwards.comparator = rocksdb::ReverseBytewiseComparator();
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {{rocksdb::kDefaultColumnFamilyName, {}},
                                                                 {"objects", backwards}};
  const auto open = [&](std::vector<rocksdb::ColumnFamilyHandle*>* handles) {
    rocksdb::DB* db = nullptr;
    EXPECT_TRUE(rocksdb::DB::Open(options, path, families, handles, &db).ok());
    return std::unique_ptr<rocksdb::DB>(db);
  };
  const auto close = [](rocksdb::DB& db, const std::vector<rocksdb::ColumnFamilyHandle*>& handles) {
    for (rocksdb::ColumnFamilyHandle* handle : handles)
      EXPECT_TRUE(db.DestroyColumnFamilyHandle(handle).ok());
  };
  {
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    const std::unique_ptr<rocksdb::DB> db = open(&handles);
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), handles[1], "key", "somebody's").ok());
    close(*db, handles);
  }
  const absl::Status refused = RocksdbStore::Open(Options(directory.path())).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "name another directory")) << refused;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  const std::unique_ptr<rocksdb::DB> db = open(&handles);
  std::string value;
  EXPECT_TRUE(db->Get(rocksdb::ReadOptions(), handles[1], "key", &value).ok());
  EXPECT_EQ(value, "somebody's");
  close(*db, handles);
}

TEST(RocksdbStoreTest, WhatWasSetAsideStaysWhileAnotherHasTheStore) {
  TemporaryDirectory directory;
  auto first = RocksdbStore::Open(Options(directory.path()));
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string older = directory.path() + "/corrupt-1";
  std::filesystem::create_directory(older);
  std::ofstream(directory.path() + "/damaged") << "noted";
  EXPECT_EQ(RocksdbStore::Open(Options(directory.path())).status().code(), StatusCode::kAborted);
  EXPECT_TRUE(std::filesystem::exists(older));
  first->reset();
  EXPECT_TRUE(RocksdbStore::Open(Options(directory.path())).ok());
  EXPECT_FALSE(std::filesystem::exists(older)) << "the latest is kept";
}

// ---- The chain ------------------------------------------------------------------------------

TEST(NewStoreTest, BadConfigurationsNameTheField) {
  absl::Status no_directory = NewStore(v1::StoreConfig()).status();
  EXPECT_EQ(no_directory.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(no_directory.message().find("store.directory"), absl::string_view::npos);
  TemporaryDirectory directory;
  v1::StoreConfig tiny = Config(directory.path());
  tiny.set_budget_bytes(1000);
  EXPECT_NE(NewStore(tiny).status().message().find("store.budget_bytes"), absl::string_view::npos);
}

TEST(NewStoreTest, DirectoryThatOthersCanWriteIsRefused) {
  TemporaryDirectory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
  EXPECT_EQ(NewStore(Config(directory.path())).status().code(), StatusCode::kFailedPrecondition);
}

TEST(NewStoreTest, DirectoryBelowOneThatOthersCanWriteIsRefused) {
  TemporaryDirectory directory;
  const std::string parent = directory.path() + "/parent";
  for (const bool open : {true, false}) {
    std::filesystem::create_directory(parent);
    std::filesystem::permissions(parent,
                                 open ? std::filesystem::perms::all : std::filesystem::perms::owner_all);
    const absl::Status status = NewStore(Config(parent + "/store")).status();
    EXPECT_EQ(status.code(), open ? StatusCode::kFailedPrecondition : StatusCode::kOk) << status;
  }
}

TEST(NewStoreTest, DirectoryThatCannotBeMadeGivesMemoryOnly) {
  TemporaryDirectory directory;
  std::ofstream(directory.path() + "/file") << "in the way";
  auto store = NewStore(Config(directory.path() + "/file/store"));
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE((*store)->statistics().writable);
  EXPECT_FALSE((*store)->statistics().message.empty());
  EXPECT_EQ((*store)->artifacts().Put({Tuning("a")}).code(), StatusCode::kPermissionDenied);
  EXPECT_TRUE((*store)->artifacts().Get(Tuning("a").id).ok());
}

TEST(NewStoreTest, VerifyFindsDamageAndRepairs) {
  TemporaryDirectory directory;
  std::vector<Entry> batch = ArtifactBatch(1, 3, 5'000);
  auto store = NewStore(Config(directory.path()));
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->artifacts().Put(batch).ok());
  auto clean = (*store)->Verify(false, [] { return false; });
  ASSERT_TRUE(clean.ok());
  EXPECT_EQ(clean->objects, 3u);
  EXPECT_EQ(clean->entries, 5u);
  EXPECT_EQ(clean->corrupt + clean->missing, 0u);
  int asked = 0;
  EXPECT_EQ((*store)->Verify(false, [&asked] { return ++asked == 3; }).status().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(asked, 3) << "it goes on after its caller";
  store->reset();
  {
    auto engine = RocksdbStore::Open(Options(directory.path()));
    ASSERT_TRUE(engine.ok());
    std::string bytes = **(*engine)->Get(batch[0].id);
    bytes[bytes.size() / 2] ^= 4;
    ASSERT_TRUE((*engine)->Put({{batch[0].id, MakeEntryValue(bytes)}}).ok());
  }
  store = NewStore(Config(directory.path()));
  ASSERT_TRUE(store.ok());
  EXPECT_EQ((*store)->Verify(false, [] { return false; })->corrupt, 1u);
  EXPECT_EQ((*store)->Verify(true, [] { return false; })->corrupt, 1u);
  auto repaired = (*store)->Verify(false, [] { return false; });
  EXPECT_EQ(repaired->corrupt, 0u);
  EXPECT_EQ(repaired->missing, 2u);  // the manifest and the kernel name what is gone
  EXPECT_EQ((*store)->artifacts().Get(batch[6].id).status().code(), StatusCode::kNotFound);
  EXPECT_EQ((*store)->statistics().quarantined, 1u);
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
