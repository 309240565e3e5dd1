// A disk whose n-th sync fails once. Promise: what that sync was to make durable is not acknowledged, and
// nothing that was acknowledged is lost when the power goes later, though every later sync succeeds: the
// kernel forgets what it could not write (the file system with faults does so too).

#include <chrono>
#include <cstdlib>
#include <thread>

#include "cache/chain/store_config.h"
#include "gtest/gtest.h"
#include "rocksdb/env.h"
#include "tests/conformance/store_testing.h"
#include "tests/fault/fault_file_system.h"

namespace kiln {
namespace {

constexpr int kPuts = 60;
constexpr int kSyncs = 60;  // the script has at least as many
constexpr int kAtOnce = 20;

struct Outcome {
  int acknowledged = 0, refused = 0, lost = 0, wrong = 0;
  bool failed = false;  // the sync was reached
};

// The script with EIO from its n-th sync, then a power cut.
Outcome FailAtSync(int n, bool no_sync) {
  const std::unique_ptr<rocksdb::Env> memory(rocksdb::NewMemEnv(rocksdb::Env::Default()));
  auto system = std::make_shared<FaultFileSystem>(memory->GetFileSystem());
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(system);
  v1::StoreConfig config;
  config.set_directory("/store");
  config.set_budget_bytes(4u << 20);  // small buffers, so that flushes sync as well
  config.set_dangerously_no_sync(no_sync);
  StoreEnvironment environment;
  environment.env = env.get();
  Outcome outcome;
  std::vector<Entry> acknowledged;
  {
    auto store = NewStore(config, environment);
    EXPECT_TRUE(store.ok()) << store.status();
    if (!store.ok()) return outcome;
    system->FailSyncAt(n);
    for (int i = 0; i < kPuts; ++i) {
      const std::vector<Entry> batch = ArtifactBatch(uint64_t(n) * 1000 + i, 2, 3'000);
      const absl::Status status = (*store)->artifacts().Put(batch);
      if (status.ok()) {
        acknowledged.insert(acknowledged.end(), batch.begin(), batch.end());
        ++outcome.acknowledged;
        continue;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      // The store opens its database anew after a second; the script goes on then.
      if (outcome.refused++ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1'100));
    }
    outcome.failed = system->sync_failed();
  }
  system->PowerLoss(n);
  auto store = NewStore(config, environment);
  EXPECT_TRUE(store.ok()) << store.status();
  if (!store.ok()) return outcome;
  for (const Entry& entry : acknowledged) {
    auto value = (*store)->artifacts().Get(entry.id);
    outcome.lost += value.ok() ? 0 : 1;
    outcome.wrong += value.ok() && **value != *entry.value ? 1 : 0;
  }
  return outcome;
}

// Side by side: each waits a second until the store looks at the disk again.
std::vector<Outcome> FailAtEvery(int step, bool no_sync) {
  std::vector<Outcome> outcomes((kSyncs + step - 1) / step);
  for (size_t at = 0; at < outcomes.size(); at += kAtOnce) {
    std::vector<std::thread> threads;
    for (size_t i = at; i < std::min(outcomes.size(), at + kAtOnce); ++i) {
      threads.emplace_back([&outcomes, i, step, no_sync] {
        outcomes[i] = FailAtSync(1 + static_cast<int>(i) * step, no_sync);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  return outcomes;
}

TEST(StoreSyncErrorTest, WhatASyncLostIsNotAcknowledged) {
  const int step = std::getenv("KILN_FULL") != nullptr ? 1 : 10;
  for (const Outcome& outcome : FailAtEvery(step, /*no_sync=*/false)) {
    EXPECT_TRUE(outcome.failed) << "the script syncs less often";
    EXPECT_GT(outcome.refused, 0);
    EXPECT_GT(outcome.acknowledged, kPuts / 2) << "writing goes on after the database was reopened";
    EXPECT_EQ(outcome.lost, 0);
    EXPECT_EQ(outcome.wrong, 0);
  }
}

// What makes the fault a real one.
TEST(StoreSyncErrorTest, NoLaterSyncBringsBackWhatOneLost) {
  for (const bool fails : {false, true}) {
    const std::unique_ptr<rocksdb::Env> memory(rocksdb::NewMemEnv(rocksdb::Env::Default()));
    auto system = std::make_shared<FaultFileSystem>(memory->GetFileSystem());
    const rocksdb::IOOptions options;
    ASSERT_TRUE(system->CreateDir("/d", options, nullptr).ok());
    std::unique_ptr<rocksdb::FSWritableFile> file;
    ASSERT_TRUE(system->NewWritableFile("/d/f", rocksdb::FileOptions(), &file, nullptr).ok());
    ASSERT_TRUE(file->Append(std::string(10'000, 'x'), options, nullptr).ok());
    if (fails) system->FailSyncAt(1);
    EXPECT_EQ(file->Sync(options, nullptr).ok(), !fails);
    EXPECT_TRUE(file->Sync(options, nullptr).ok());
    std::unique_ptr<rocksdb::FSDirectory> directory;
    ASSERT_TRUE(system->NewDirectory("/d", options, &directory, nullptr).ok());
    ASSERT_TRUE(directory->Fsync(options, nullptr).ok());
    system->PowerLoss(1);
    EXPECT_EQ(system->bytes_lost() > 0, fails);
  }
}

TEST(StoreSyncErrorTest, ControlThatAcknowledgesUnsyncedLoses) {
  int lost = 0;
  for (const Outcome& outcome : FailAtEvery(30, /*no_sync=*/true)) {
    lost += outcome.lost;
    EXPECT_EQ(outcome.wrong, 0);
  }
  EXPECT_GT(lost, 0);
}

}  // namespace
}  // namespace kiln
