// The engine on RocksDB: what survives a reopening, what is measured, and databases that are not its own.
#include "cache/engine/rocksdb_store.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cache/cache_limits.h"
#include "cache/chain/store_config.h"
#include "gtest/gtest.h"
#include "rocksdb/file_system.h"
#include "rocksdb/write_batch.h"
#include "tests/conformance/store_testing.h"
#include "tests/unit/store_options.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;

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
  EXPECT_FALSE((*store)->was_reset());
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
  // Also counted twice it would not be measured again at once; on a slow machine a second may pass meanwhile.
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

TEST(RocksdbStoreTest, SecondProcessIsRefused) {
  TemporaryDirectory directory;
  auto first = RocksdbStore::Open(Options(directory.path()));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(RocksdbStore::Open(Options(directory.path())).status().code(), StatusCode::kAborted);
  EXPECT_EQ(NewStore(Config(directory.path())).status().code(), StatusCode::kAborted);
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
    EXPECT_TRUE((*store)->was_reset());
    EXPECT_FALSE((*store)->Get(Tuning("a").id).ok());
    EXPECT_TRUE((*store)->Put({Tuning("a")}).ok());
    EXPECT_TRUE(std::filesystem::exists(directory.path() + "/corrupt-12345/CURRENT"));
  }
  auto store = RocksdbStore::Open(options);
  ASSERT_TRUE(store.ok());
  EXPECT_FALSE((*store)->was_reset());
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

}  // namespace
}  // namespace kiln
