// A process that dies while it writes. Promises: what was acknowledged is there afterwards; a manifest is
// there only with everything it names. By `kill -9` of a real process at random moments, with an oracle
// outside; and at every operation on the file system, with the power gone as well.

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cache/chain/store_config.h"
#include "cache/checks/completeness_store.h"
#include "cache/checks/references.h"
#include "cache/engine/rocksdb_store.h"
#include "gtest/gtest.h"
#include "rocksdb/env.h"
#include "tests/conformance/store_testing.h"
#include "tests/fault/fault_file_system.h"
#include "tests/fault/store_process.h"

namespace kiln {
namespace {

bool Full() { return std::getenv("KILN_FULL") != nullptr; }

// Such that buffers fill up and are written out within a database's cycles.
constexpr size_t kObjectBytes = 50'000;

v1::StoreConfig Config(const std::string& directory) {
  v1::StoreConfig config;
  config.set_directory(directory);
  config.set_budget_bytes(256u << 20);
  return config;
}

// ---- kill -9 --------------------------------------------------------------------------------

enum class Tells { kAfterPut, kBeforePut };

// Numbers that were told before the process was killed.
std::vector<uint64_t> WriteAndKill(const std::string& directory, uint64_t first, Tells when,
                                   useconds_t after) {
  StoreProcess writer({directory, absl::StrCat(first), "1000000", absl::StrCat(kObjectBytes),
                       when == Tells::kBeforePut ? "early" : "late"});
  std::vector<uint64_t> told;
  uint64_t number = 0;
  // The moment is counted from the first word on: opening is over by then.
  if (writer.Next(&number)) told.push_back(number);
  usleep(after);
  writer.Kill();
  while (writer.Next(&number)) told.push_back(number);
  const int status = writer.Wait();
  EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself, with " << WEXITSTATUS(status);
  return told;
}

struct Losses {
  int told = 0, lost = 0, wrong = 0;
};

Losses Campaign(int cycles, Tells when) {
  std::mt19937_64 random(20261127);
  Losses losses;
  std::unique_ptr<TemporaryDirectory> directory;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    if (cycle % 25 == 0) directory = std::make_unique<TemporaryDirectory>();
    const std::vector<uint64_t> told = WriteAndKill(directory->path(), uint64_t(cycle) * 10'000, when,
                                                    static_cast<useconds_t>(random() % 20'000));
    auto store = NewStore(Config(directory->path()));
    EXPECT_TRUE(store.ok()) << store.status();
    if (!store.ok()) return losses;
    for (uint64_t number : told) {
      ++losses.told;
      for (const Entry& entry : ArtifactBatch(number, 2, kObjectBytes)) {
        auto value = (*store)->artifacts().Get(entry.id);
        losses.lost += value.ok() ? 0 : 1;
        losses.wrong += value.ok() && **value != *entry.value ? 1 : 0;
      }
    }
    EXPECT_EQ((*store)->statistics().quarantined, 0u);
  }
  std::printf("%d kills: %d artifacts told, %d entries lost, %d wrong\n", cycles, losses.told, losses.lost,
              losses.wrong);
  return losses;
}

TEST(StoreCrashTest, KilledAtAnyMomentNothingAcknowledgedIsLost) {
  const int cycles = Full() ? 1'000 : 100;
  const Losses losses = Campaign(cycles, Tells::kAfterPut);
  EXPECT_GT(losses.told, cycles);
  EXPECT_EQ(losses.lost, 0);
  EXPECT_EQ(losses.wrong, 0);
}

TEST(StoreCrashTest, ControlThatAcknowledgesTooEarlyLoses) {
  const Losses losses = Campaign(20, Tells::kBeforePut);
  EXPECT_GT(losses.lost, 0);
  EXPECT_EQ(losses.wrong, 0);
}

// ---- Every operation ------------------------------------------------------------------------

enum class Order { kOneBatch, kManifestFirst };

struct Seen {
  int manifests = 0;
  int incomplete = 0;  // in the database, though an object is not
  int served = 0;      // of those
};

std::unique_ptr<RocksdbStore> OpenEngine(rocksdb::Env* env) {
  RocksdbOptions options;
  options.directory = "/store";
  options.write_buffer_bytes = 64u << 10;  // so that flushes are among the operations
  options.env = env;
  auto opened = RocksdbStore::Open(options);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return opened.ok() ? *std::move(opened) : nullptr;
}

void WriteUntilDeath(ArtifactStore& store, const FaultFileSystem& system, uint64_t first, Order order) {
  for (uint64_t i = first; i < first + 200 && !system.dead(); ++i) {
    std::vector<Entry> batch = ArtifactBatch(i, 2, 5'000);
    if (order == Order::kManifestFirst) {
      if (!store.Put({batch[4]}).ok()) return;
      batch.erase(batch.begin() + 4);
    }
    if (!store.Put(batch).ok()) return;
  }
}

Seen Look(std::unique_ptr<RocksdbStore> engine) {
  Seen seen;
  RocksdbStore* const catalog = engine.get();
  CompletenessStore store(std::move(engine));
  const auto manifests = catalog->Scan(EntryKind::kManifest, "", 0, "");
  for (const CatalogEntry& entry : *manifests) {
    ++seen.manifests;
    auto value = catalog->Get(entry.id);
    EXPECT_TRUE(value.ok()) << value.status();
    if (!value.ok()) continue;
    auto references = ReferencesOf(EntryKind::kManifest, **value);
    EXPECT_TRUE(references.ok()) << references.status();
    int missing = 0;
    for (const EntryId& object : references->objects) missing += catalog->Get(object).ok() ? 0 : 1;
    seen.incomplete += missing > 0 ? 1 : 0;
    seen.served += missing > 0 && store.Get(entry.id).ok() ? 1 : 0;
  }
  return seen;
}

// Dies at the n-th operation that changes anything, loses power, and looks.
Seen DieAtOperation(int n, Order order) {
  const std::unique_ptr<rocksdb::Env> memory(rocksdb::NewMemEnv(rocksdb::Env::Default()));
  auto system = std::make_shared<FaultFileSystem>(memory->GetFileSystem());
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(system);
  {
    std::unique_ptr<RocksdbStore> engine = OpenEngine(env.get());
    if (engine == nullptr) return {};
    system->DieAt(n);
    WriteUntilDeath(*engine, *system, uint64_t(n) * 1'000, order);
    EXPECT_TRUE(system->dead()) << "the script has fewer operations";
  }
  system->PowerLoss(n);
  std::unique_ptr<RocksdbStore> engine = OpenEngine(env.get());
  return engine == nullptr ? Seen() : Look(std::move(engine));
}

// Side by side: after a failure RocksDB takes its time to close.
Seen DieAtEvery(int step, Order order) {
  constexpr int kOperations = 600, kAtOnce = 20;
  for (const auto pool : {rocksdb::Env::Priority::LOW, rocksdb::Env::Priority::HIGH}) {
    rocksdb::Env::Default()->SetBackgroundThreads(kAtOnce, pool);  // which all databases share
  }
  std::vector<Seen> seen;
  for (int n = 1; n <= kOperations;) {
    std::vector<std::thread> threads;
    const size_t first = seen.size();
    std::vector<int> at;
    for (; n <= kOperations && at.size() < kAtOnce; n += step) at.push_back(n);
    seen.resize(first + at.size());
    for (size_t i = 0; i < at.size(); ++i) {
      threads.emplace_back([&, i] { seen[first + i] = DieAtOperation(at[i], order); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Seen all;
  for (const Seen& one : seen) {
    all.manifests += one.manifests;
    all.incomplete += one.incomplete;
    all.served += one.served;
  }
  return all;
}

TEST(StoreCrashTest, NoOperationIsBetweenAManifestAndItsObjects) {
  const Seen seen = DieAtEvery(Full() ? 1 : 10, Order::kOneBatch);
  EXPECT_GT(seen.manifests, 100);
  EXPECT_EQ(seen.incomplete, 0);
}

// Two batches: manifests are left alone, and even those are not served.
TEST(StoreCrashTest, ControlThatWritesTheManifestFirstLeavesItAlone) {
  const Seen seen = DieAtEvery(10, Order::kManifestFirst);
  EXPECT_GT(seen.incomplete, 0);
  EXPECT_EQ(seen.served, 0);
}

}  // namespace
}  // namespace kiln
