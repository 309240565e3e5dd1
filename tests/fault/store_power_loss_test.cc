// Power cuts in the middle of writing. Promise: what Put acknowledged is there afterwards, byte for byte,
// and nothing damaged is served. The control, with sync off, has to lose: else the test proves nothing.

#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "cache/chain/store_config.h"
#include "gtest/gtest.h"
#include "rocksdb/env.h"
#include "tests/conformance/store_testing.h"
#include "tests/fault/fault_file_system.h"

namespace kiln {
namespace {

constexpr int kCyclesADatabase = 10;

int Cycles() { return std::getenv("KILN_FULL") != nullptr ? 1'000 : 200; }

struct Campaign {
  explicit Campaign(bool no_sync) {
    config.set_directory("/store");
    config.set_budget_bytes(256u << 20);
    config.set_dangerously_no_sync(no_sync);
  }

  // Has a last look at the database, and goes on with an empty one.
  void StartAnew() {
    if (env != nullptr) {
      Check(Open().get());
      acknowledged += entries_acknowledged[EntryKind::kManifest].size();
      bytes_lost += system->bytes_lost();
    }
    entries_acknowledged.clear();
    entries_open.clear();
    env.reset();
    system.reset();
    memory.reset(rocksdb::NewMemEnv(rocksdb::Env::Default()));
    system = std::make_shared<FaultFileSystem>(memory->GetFileSystem());
    env = rocksdb::NewCompositeEnv(system);
  }

  std::unique_ptr<Store> Open() {
    StoreEnvironment environment;
    environment.env = env.get();
    auto store = NewStore(config, environment);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  // Writes until the power goes; remembers what was acknowledged.
  void WriteUntilDeath(Store* store, int cycle, int writer) {
    for (int i = 0; i < 40 && !system->dead(); ++i) {
      std::vector<Entry> batch = ArtifactBatch(uint64_t(cycle) * 1000 + writer * 100 + i, 2, 200 + i * 300);
      bool acknowledged = store->artifacts().Put(batch).ok();
      std::lock_guard<std::mutex> lock(mutex);
      for (const Entry& entry : batch) {
        (acknowledged ? entries_acknowledged : entries_open)[entry.id.kind].push_back(entry);
      }
    }
  }

  void Check(Store* store) {
    for (const auto& [kind, entries] : entries_acknowledged) {
      for (const Entry& entry : entries) {
        auto value = store->artifacts().Get(entry.id);
        if (!value.ok()) {
          ++lost;
        } else if (**value != *entry.value) {
          ++wrong;
        }
      }
    }
    for (const auto& [kind, entries] : entries_open) {
      for (const Entry& entry : entries) {
        auto value = store->artifacts().Get(entry.id);
        if (value.ok() && **value != *entry.value) ++wrong;
        if (value.ok() || absl::IsNotFound(value.status())) continue;
        ADD_FAILURE() << value.status();
      }
    }
  }

  void Run(int cycles) {
    std::mt19937_64 random(20261121);
    for (int cycle = 0; cycle < cycles; ++cycle) {
      if (cycle % kCyclesADatabase == 0) StartAnew();
      std::unique_ptr<Store> store = Open();
      ASSERT_NE(store, nullptr);
      Check(store.get());
      quarantined += store->statistics().quarantined;
      system->DieAt(1 + random() % 120);
      std::thread other([&] { WriteUntilDeath(store.get(), cycle, 1); });
      WriteUntilDeath(store.get(), cycle, 2);
      other.join();
      system->DieAt(1);
      store.reset();
      system->PowerLoss(random());
    }
    StartAnew();
    std::printf(
        "%d power losses: %zu artifacts acknowledged, %zu entries lost, %zu wrong, %zu bytes torn off\n",
        cycles, acknowledged, lost, wrong, bytes_lost);
  }

  std::unique_ptr<rocksdb::Env> memory;
  std::shared_ptr<FaultFileSystem> system;
  std::unique_ptr<rocksdb::Env> env;
  v1::StoreConfig config;

  std::mutex mutex;
  std::map<EntryKind, std::vector<Entry>> entries_acknowledged, entries_open;
  size_t acknowledged = 0, lost = 0, wrong = 0, quarantined = 0, bytes_lost = 0;
};

TEST(StorePowerLossTest, NothingAcknowledgedIsLost) {
  Campaign campaign(/*no_sync=*/false);
  campaign.Run(Cycles());
  EXPECT_EQ(campaign.lost, 0u);
  EXPECT_EQ(campaign.wrong, 0u);
  EXPECT_EQ(campaign.quarantined, 0u);
  EXPECT_GT(campaign.acknowledged, static_cast<size_t>(Cycles()));
  EXPECT_GT(campaign.bytes_lost, 0u);
}

TEST(StorePowerLossTest, ControlWithSyncOffLoses) {
  Campaign campaign(/*no_sync=*/true);
  campaign.Run(20);
  EXPECT_GT(campaign.lost, 0u);
  EXPECT_EQ(campaign.wrong, 0u);
}

}  // namespace
}  // namespace kiln
