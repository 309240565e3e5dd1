// A disk that is full from its n-th write on. Promise: every Put is either durable or RESOURCE_EXHAUSTED,
// reads go on, and writing goes on without a restart once there is space.

#include <sys/mount.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cache/chain/store_config.h"
#include "gtest/gtest.h"
#include "rocksdb/env.h"
#include "tests/conformance/store_testing.h"
#include "tests/fault/fault_file_system.h"

namespace kiln {
namespace {

constexpr int kWrites = 200;
constexpr int kPuts = 220;  // each writes once at least

void ExpectAll(ArtifactStore& store, const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    auto value = store.Get(entry.id);
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_EQ(**value, *entry.value);
  }
}

// The script with ENOSPC from the n-th write on.
// Tries again until the store takes it; how the last try went.
absl::Status PutWithin(std::chrono::seconds limit, Store& store, const std::vector<Entry>& batch) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  absl::Status status;
  do {
    status = store.artifacts().Put(batch);
    if (!status.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (!status.ok() && std::chrono::steady_clock::now() < deadline);
  return status;
}

void FillUpAtWrite(int n) {
  SCOPED_TRACE(n);
  std::unique_ptr<rocksdb::Env> memory(rocksdb::NewMemEnv(rocksdb::Env::Default()));
  auto system = std::make_shared<FaultFileSystem>(memory->GetFileSystem());
  std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(system);
  v1::StoreConfig config;
  config.set_directory("/store");
  config.set_budget_bytes(4u << 20);  // small buffers, so that flushes meet the full disk as well
  StoreEnvironment environment;
  environment.env = env.get();
  std::vector<Entry> acknowledged;
  {
    auto store = NewStore(config, environment);
    ASSERT_TRUE(store.ok()) << store.status();
    system->FillUpAt(n);
    int refused = 0;
    for (int i = 0; i < kPuts; ++i) {
      std::vector<Entry> batch = ArtifactBatch(uint64_t(n) * 1000 + i, 2, 3'000);
      absl::Status status = (*store)->artifacts().Put(batch);
      if (status.ok()) {
        acknowledged.insert(acknowledged.end(), batch.begin(), batch.end());
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
        ++refused;
      }
    }
    EXPECT_TRUE(system->full()) << "the script wrote less than " << n << " times";
    EXPECT_GT(refused, 0);
    EXPECT_FALSE((*store)->statistics().writable);
    EXPECT_FALSE((*store)->statistics().message.empty());
    ExpectAll((*store)->artifacts(), acknowledged);

    system->FillUpAt(0);
    std::vector<Entry> later = ArtifactBatch(999'999, 2, 3'000);
    const absl::Status status = PutWithin(std::chrono::seconds(20), **store, later);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE((*store)->statistics().writable);
    acknowledged.insert(acknowledged.end(), later.begin(), later.end());
    ExpectAll((*store)->artifacts(), acknowledged);
  }
  system->PowerLoss(n);
  auto store = NewStore(config, environment);
  ASSERT_TRUE(store.ok()) << store.status();
  ExpectAll((*store)->artifacts(), acknowledged);
}

TEST(StoreFullDiskTest, EveryWriteMayBeTheOneThatFails) {
  int step = std::getenv("KILN_FULL") != nullptr ? 1 : 10;
  // Side by side: each waits a second until the store looks at the disk again.
  constexpr int kAtOnce = 20;
  std::vector<std::thread> threads;
  for (int n = 1; n <= kWrites; n += step) {
    threads.emplace_back([n] { FillUpAtWrite(n); });
    if (threads.size() == kAtOnce) {
      for (std::thread& thread : threads) thread.join();
      threads.clear();
    }
  }
  for (std::thread& thread : threads) thread.join();
}

// A real file system of 32 MiB: somebody else fills it, and makes room again.
class SmallDisk {
 public:
  SmallDisk() : mounted_(mount("tmpfs", directory_.path().c_str(), "tmpfs", 0, "size=32m") == 0) {}
  ~SmallDisk() {
    if (mounted_) umount2(directory_.path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  std::string store() const { return directory_.path() + "/store"; }
  std::string filler() const { return directory_.path() + "/filler"; }

 private:
  TemporaryDirectory directory_;
  const bool mounted_;
};

TEST(StoreFullDiskTest, ARealDiskThatIsFullIsToldAndUsedAgainWithinFiveSeconds) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "mounting takes root";
  v1::StoreConfig config;
  config.set_directory(disk.store());
  config.set_budget_bytes(1u << 30);
  std::vector<Entry> acknowledged;
  {
    auto store = NewStore(config);
    ASSERT_TRUE(store.ok()) << store.status();
    std::ofstream filler(disk.filler(), std::ios::binary);
    for (int i = 0; i < 64 && filler.flush(); ++i) filler << std::string(1u << 20, 'f');
    int refused = 0;
    for (int i = 0; i < 40; ++i) {
      const std::vector<Entry> batch = ArtifactBatch(i, 2, 300'000);
      const absl::Status status = (*store)->artifacts().Put(batch);
      if (status.ok()) {
        acknowledged.insert(acknowledged.end(), batch.begin(), batch.end());
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
        ++refused;
      }
    }
    EXPECT_GT(refused, 0);
    ExpectAll((*store)->artifacts(), acknowledged);
    filler.close();
    std::filesystem::remove(disk.filler());
    const std::vector<Entry> later = ArtifactBatch(999, 2, 300'000);
    const absl::Status status = PutWithin(std::chrono::seconds(5), **store, later);
    ASSERT_TRUE(status.ok()) << status;
    acknowledged.insert(acknowledged.end(), later.begin(), later.end());
  }
  auto store = NewStore(config);
  ASSERT_TRUE(store.ok()) << store.status();
  ExpectAll((*store)->artifacts(), acknowledged);
}

TEST(StoreFullDiskTest, FullWhenOpenedServesFromMemory) {
  std::unique_ptr<rocksdb::Env> memory(rocksdb::NewMemEnv(rocksdb::Env::Default()));
  auto system = std::make_shared<FaultFileSystem>(memory->GetFileSystem());
  std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(system);
  v1::StoreConfig config;
  config.set_directory("/store");
  StoreEnvironment environment;
  environment.env = env.get();
  system->FillUpAt(1);
  std::vector<Entry> batch = ArtifactBatch(1, 2, 3'000);
  {
    auto store = NewStore(config, environment);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_FALSE((*store)->statistics().writable);
    EXPECT_EQ((*store)->artifacts().Put(batch).code(), absl::StatusCode::kResourceExhausted);
    ExpectAll((*store)->artifacts(), batch);
  }
  system->FillUpAt(0);
  {
    auto store = NewStore(config, environment);
    ASSERT_TRUE(store.ok());
    EXPECT_TRUE((*store)->artifacts().Put(batch).ok());
  }
  // A full disk at the opening of a database: what it holds is served.
  system->FillUpAt(1);
  auto store = NewStore(config, environment);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE((*store)->statistics().writable);
  ExpectAll((*store)->artifacts(), batch);
}

}  // namespace
}  // namespace kiln
