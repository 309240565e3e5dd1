// The engine on RocksDB on a disk that is slow, full or unreadable: reopened, and what is not promised
// then.
#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/engine/rocksdb_store.h"
#include "gtest/gtest.h"
#include "rocksdb/file_system.h"
#include "tests/conformance/store_testing.h"
#include "tests/unit/store_options.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;

// One thread can be made to find the disk full. The blobs of the others are read slowly, and from the fifth
// read on not until the store has probed for space: a Reclaim that comes to its next pass before would meet
// the full disk itself.
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
  rocksdb::IOStatus DeleteFile(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* context) override {
    if (absl::EndsWith(path, "/probe")) probed = true;
    return FileSystemWrapper::DeleteFile(path, options, context);
  }
  static constexpr int kHeldFrom = 5;
  std::atomic<bool> slow{false}, full{false}, probed{false};
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
        if (++system_->slow_reads >= kHeldFrom) {
          while (!system_->probed) absl::SleepFor(absl::Milliseconds(1));
        }
        absl::SleepFor(absl::Milliseconds(100));
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
  ASSERT_TRUE((*store)->Reclaim(nullptr).ok()) << "so that no write waits for a compaction, which is held";
  ASSERT_TRUE((*store)->Delete(gone).ok());
  system->slow = true;
  absl::Status reclaimed;
  std::thread reclaimer([&] { reclaimed = (*store)->Reclaim(nullptr); });
  while (system->slow_reads < SlowFileSystem::kHeldFrom) absl::SleepFor(absl::Milliseconds(1));
  system->full = true;
  EXPECT_EQ((*store)->Put({Tuning("a")}).code(), StatusCode::kResourceExhausted);
  system->full = false;
  absl::Status put = absl::UnknownError("not yet");
  // The catalogue answers as it did while the database is reopened.
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
  EXPECT_TRUE(store_->was_reset());
  ExpectNothingIsPromised();
  system_->logs_full = false;
  ASSERT_TRUE(PutOnceItOpens().ok());
  EXPECT_EQ(*store_->FindMissing(kIds), kIds);
  EXPECT_TRUE(store_->Get(Tuning("c").id).ok());
}

}  // namespace
}  // namespace kiln
