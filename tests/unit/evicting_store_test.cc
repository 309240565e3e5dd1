// A store held to its budget: what a sweep leaves, and whom it keeps waiting.

#include "cache/budget/evicting_store.h"

#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cache/chain/store_config.h"
#include "cache/checks/references.h"
#include "cache/checks/verifying_store.h"
#include "cache/engine/failing_store.h"
#include "cache/engine/rocksdb_store.h"
#include "gtest/gtest.h"
#include "tests/conformance/store_testing.h"
#include "tests/unit/without_threads.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;
using Operation = FailingStore::Operation;

// The engine's catalogue, and what happens right after the sweep has looked an entry up there.
class WatchedCatalog : public Catalog {
 public:
  explicit WatchedCatalog(Catalog* base) : base_(base) {}
  absl::StatusOr<CatalogEntry> Find(const EntryId& id) const override {
    absl::StatusOr<CatalogEntry> found = base_->Find(id);
    if (after_find) after_find();
    return found;
  }
  absl::StatusOr<std::vector<CatalogEntry>> Scan(EntryKind kind, absl::string_view prefix, size_t limit,
                                                 absl::string_view after) const override {
    return base_->Scan(kind, prefix, limit, after);
  }
  void RecordUse(const EntryId& id) override { base_->RecordUse(id); }
  absl::Status SetPinned(const EntryId& id, bool pinned) override { return base_->SetPinned(id, pinned); }
  CatalogTotals Totals() const override { return base_->Totals(); }
  void SetCompiler(uint32_t compiler) override { base_->SetCompiler(compiler); }
  absl::Status Reclaim(std::atomic<bool>* canceled) override { return base_->Reclaim(canceled); }

  std::function<void()> after_find;

 private:
  Catalog* const base_;
};

// An evicting store over a database in a directory of its own, and a hook below it.
struct Subject {
  explicit Subject(
      FailingStore::Hook hook = [](Operation) { return absl::OkStatus(); }, EvictingOptions options = {}) {
    RocksdbOptions rocksdb;
    rocksdb.directory = directory.path();
    rocksdb.write_buffer_bytes = 256u << 10;
    rocksdb.now_unix_seconds = [this] { return now.load(); };
    auto opened = RocksdbStore::Open(rocksdb);
    EXPECT_TRUE(opened.ok()) << opened.status();
    engine = opened->get();
    catalog = std::make_unique<WatchedCatalog>(engine);
    if (options.budget_bytes == 0) options.budget_bytes = 256u << 20;
    options.now_unix_seconds = [this] { return now.load(); };
    auto verifying = std::make_unique<VerifyingStore>(*std::move(opened), VerifyingStore::Mode::kVerify);
    store = *EvictingStore::Create(std::make_unique<FailingStore>(std::move(verifying), std::move(hook)),
                                   catalog.get(), options);
  }
  bool Has(const EntryId& id) const { return engine->Find(id).ok(); }

  TemporaryDirectory directory;
  std::atomic<int64_t> now{1'000'000};
  RocksdbStore* engine = nullptr;
  std::unique_ptr<WatchedCatalog> catalog;
  std::unique_ptr<EvictingStore> store;
};

// Tables that a small store merges lie on the disk twice for a moment, so it may say that it is full.
absl::Status PutPatiently(ArtifactStore* store, const std::vector<Entry>& batch) {
  absl::Status put = store->Put(batch);
  for (int wait = 0; wait < 1'000 && absl::IsResourceExhausted(put); ++wait) {
    absl::SleepFor(absl::Milliseconds(10));
    put = store->Put(batch);
  }
  return put;
}

// The sweep stands still while it reads a manifest, and then while it deletes. Callers do not.
TEST(EvictingStoreTest, NobodyWaitsForASweepButWhoWritesWhatGoes) {
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> stops = true;
  std::atomic<Operation> stops_at = Operation::kGet;
  absl::Notification at_read, may_read, at_delete, may_delete;
  Subject subject([&](Operation operation) {
    if (std::this_thread::get_id() == caller || !stops || operation != stops_at) return absl::OkStatus();
    (operation == Operation::kGet ? at_read : at_delete).Notify();
    (operation == Operation::kGet ? may_read : may_delete).WaitForNotification();
    return absl::OkStatus();
  });
  const std::vector<Entry> doomed = ArtifactBatch(1, 2, 500), other = ArtifactBatch(2, 2, 500);
  ASSERT_TRUE(subject.store->Put(doomed).ok());
  subject.now += 10'000;
  std::thread sweep([&] { EXPECT_TRUE(subject.store->EvictTo(0).ok()); });
  const auto call_everything = [&] {
    for (const Entry& entry : doomed) EXPECT_TRUE(subject.store->Get(entry.id).ok());
    EXPECT_EQ(subject.store->FindMissing({other[0].id})->size(), subject.Has(other[0].id) ? 0u : 1u);
    EXPECT_TRUE(subject.store->Put(other).ok());
  };
  at_read.WaitForNotification();
  call_everything();
  stops_at = Operation::kDelete;
  may_read.Notify();
  at_delete.WaitForNotification();
  call_everything();
  // As good as gone, though it can still be read.
  EXPECT_EQ(*subject.store->FindMissing({doomed[0].id}), (std::vector<EntryId>{doomed[0].id}));
  // The control: who writes what is going does wait, or the sweep would take what he wrote.
  absl::Notification written;
  std::thread writer([&] {
    EXPECT_TRUE(subject.store->Put(doomed).ok());
    written.Notify();
  });
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_FALSE(written.HasBeenNotified());
  stops = false;
  may_delete.Notify();
  writer.join();
  sweep.join();
  for (const Entry& entry : doomed) EXPECT_TRUE(subject.Has(entry.id)) << EntryKindName(entry.id.kind);
  for (const Entry& entry : other) EXPECT_TRUE(subject.Has(entry.id)) << EntryKindName(entry.id.kind);
}

// A flight found an object in the store and leaves it out of what it writes. Its only manifest goes
// meanwhile.
TEST(EvictingStoreTest, WhatWasFoundAMomentAgoStays) {
  Subject subject;
  const std::vector<Entry> batch = ArtifactBatch(1, 1, 500);
  const Entry& object = batch[0];
  const Entry manifest = ManifestEntry(2, {object});
  ASSERT_TRUE(subject.store->Put(batch).ok());
  subject.now += 10'000;
  ASSERT_TRUE(subject.store->FindMissing({object.id})->empty());
  subject.now += 599;
  ASSERT_TRUE(subject.store->EvictTo(0).ok());
  EXPECT_FALSE(subject.Has(batch[2].id));
  EXPECT_TRUE(subject.store->Put({manifest}).ok());
  EXPECT_TRUE(subject.store->FindMissing({object.id})->empty());
  // The control: the grace is over, the object goes, and a manifest that counts on it is refused.
  ASSERT_TRUE(subject.store->Delete({manifest.id}).ok());
  subject.now += 600;
  ASSERT_TRUE(subject.store->EvictTo(0).ok());
  EXPECT_FALSE(subject.Has(object.id));
  EXPECT_EQ(subject.store->Put({manifest}).code(), StatusCode::kAborted);
  EXPECT_TRUE(subject.store->Put({object, manifest}).ok());
}

TEST(EvictingStoreTest, WhatAFlightHoldsStaysAsLongAsItRuns) {
  Subject subject;
  const std::vector<Entry> batch = ArtifactBatch(1, 2, 500);
  ASSERT_TRUE(subject.store->Put(batch).ok());
  {
    const Holds::Hold flight = subject.store->holds().Keep({batch[0].id});
    subject.now += 1'000'000;
    ASSERT_TRUE(subject.store->EvictTo(0).ok());
    EXPECT_TRUE(subject.Has(batch[0].id));
    EXPECT_FALSE(subject.Has(batch[1].id));
  }
  ASSERT_TRUE(subject.store->EvictTo(0).ok());
  EXPECT_FALSE(subject.Has(batch[0].id));
}

TEST(EvictingStoreTest, WhatIsUsedWhileTheSweepReadsStays) {
  for (const bool used : {false, true}) {
    std::function<void()> meanwhile;
    Subject subject([&](Operation operation) {
      if (operation == Operation::kGet && meanwhile) std::exchange(meanwhile, nullptr)();
      return absl::OkStatus();
    });
    const std::vector<Entry> batch = ArtifactBatch(1, 2, 500);
    ASSERT_TRUE(subject.store->Put(batch).ok());
    subject.now += 10'000;
    meanwhile = [&] {
      if (used) subject.engine->RecordUse(batch[4].id);
    };
    ASSERT_TRUE(subject.store->EvictTo(0).ok());
    for (const Entry& entry : batch) EXPECT_EQ(subject.Has(entry.id), used) << EntryKindName(entry.id.kind);
  }
}

// All of it within the grace time.
TEST(EvictingStoreTest, StoreThatFilledUpAMomentAgoLosesNoMoreThanIsAskedFor) {
  EvictingOptions options;
  options.budget_bytes = 2u << 20;
  Subject subject([](Operation) { return absl::OkStatus(); }, options);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(PutPatiently(subject.store.get(), ArtifactBatch(i, 1, 95'000)).ok()) << i;
  }
  const auto left = [&] { return subject.engine->Scan(EntryKind::kManifest, "", 0, "")->size(); };
  ASSERT_GT(subject.engine->Totals().bytes_on_disk, options.budget_bytes / 10 * 9)
      << "the control: it is full";
  ASSERT_TRUE(subject.store->Sweep().ok());
  EXPECT_EQ(left(), 20u);
  uint64_t live = 0;
  for (const uint64_t bytes : subject.engine->Totals().bytes) live += bytes;
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(subject.store->EvictTo(live / 100 * 91).ok());
    EXPECT_EQ(left(), 18u);
  }
  subject.now += 600 + 1;
  ASSERT_TRUE(subject.store->Sweep().ok());
  EXPECT_LT(left(), 18u);
  EXPECT_GE(left(), 12u);
}

// Once it refuses writes, room is made for them as soon as whoever was given an entry has had a minute.
TEST(EvictingStoreTest, StoreThatRefusesWritesMakesRoomForThemAfterAMinute) {
  EvictingOptions options;
  options.budget_bytes = 2u << 20;
  Subject subject([](Operation) { return absl::OkStatus(); }, options);
  const auto put = [&](int i) { return subject.store->Put(ArtifactBatch(i, 1, 900'000)); };
  for (int i = 0; i < 3; ++i) {
    // Until a table has taken its place, what is in it counts as the log besides.
    ASSERT_TRUE(PutPatiently(subject.store.get(), ArtifactBatch(i, 1, 900'000)).ok()) << i;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(put(3)));
  subject.now += 60;
  ASSERT_TRUE(subject.store->Sweep().ok());
  EXPECT_EQ(subject.store->evicted(), 0u) << "the control: within the minute all stays";
  EXPECT_TRUE(absl::IsResourceExhausted(put(3)));
  subject.now += 1;
  ASSERT_TRUE(subject.store->Sweep().ok());
  EXPECT_TRUE(PutPatiently(subject.store.get(), ArtifactBatch(3, 1, 900'000)).ok());
  EXPECT_TRUE(subject.Has(ArtifactBatch(3, 1, 900'000)[2].id));
}

// A database that is set aside for a write takes along what the write counts on.
TEST(EvictingStoreTest, WhatNamesAnObjectThatItsOwnWriteLostIsNotDurable) {
  const std::vector<Entry> objects = {ObjectEntry(1, 500)};
  for (const bool lost : {true, false}) {
    std::function<void()> meanwhile;
    Subject subject([&](Operation operation) {
      if (operation == Operation::kPut && meanwhile) std::exchange(meanwhile, nullptr)();
      return absl::OkStatus();
    });
    ASSERT_TRUE(subject.store->Put(objects).ok());
    if (lost) meanwhile = [&] { EXPECT_TRUE(subject.engine->Delete({objects[0].id}).ok()); };
    EXPECT_EQ(subject.store->Put({ManifestEntry(1, objects)}).code(),
              lost ? StatusCode::kAborted : StatusCode::kOk);
  }
}

TEST(EvictingStoreTest, ManifestThatCantBeReadStaysAndStopsNoSweep) {
  constexpr int kManifests = 10;
  int fail_from = 0, fail_to = 0, reads = 0;
  Subject subject([&](Operation operation) {
    if (operation != Operation::kGet) return absl::OkStatus();
    const bool fails = reads >= fail_from && reads < fail_to;
    ++reads;
    return fails ? absl::UnavailableError("Input/output error") : absl::OkStatus();
  });
  for (int i = 0; i < kManifests; ++i) ASSERT_TRUE(subject.store->Put(ArtifactBatch(i, 1, 500)).ok());
  subject.now += 10'000;
  const auto left = [&] { return subject.engine->Scan(EntryKind::kManifest, "", 0, "")->size(); };
  // The control: where all fail, nothing is known of what may go.
  fail_to = kManifests;
  EXPECT_EQ(subject.store->EvictTo(0).code(), StatusCode::kUnavailable);
  EXPECT_EQ(left(), 10u);
  EXPECT_EQ(subject.store->evicted(), 0u);
  fail_from = reads + 3;
  fail_to = fail_from + 1;
  EXPECT_TRUE(subject.store->EvictTo(0).ok());
  EXPECT_EQ(left(), 1u);
  EXPECT_EQ(subject.store->unread(), 1u);
  EXPECT_TRUE(subject.store->EvictTo(0).ok());
  EXPECT_EQ(left(), 0u);
  EXPECT_EQ(subject.store->unread(), 0u);
}

// Who pins it right then is told that it is going; who pinned it before keeps it.
TEST(EvictingStoreTest, APinThatWasAcceptedIsNotLost) {
  for (const bool before : {false, true}) {
    std::function<void()> meanwhile;
    Subject subject([&](Operation operation) {
      if (operation == Operation::kGet && meanwhile) std::exchange(meanwhile, nullptr)();
      return absl::OkStatus();
    });
    const std::vector<Entry> batch = ArtifactBatch(1, 1, 500);
    const EntryId manifest = batch[2].id;
    ASSERT_TRUE(subject.store->Put(batch).ok());
    subject.now += 10'000;
    bool accepted = false;
    const auto pin = [&] {
      const Holds::Hold hold = subject.store->holds().Keep({manifest});
      accepted = accepted || (!hold.late() && subject.engine->SetPinned(manifest, true).ok());
    };
    if (before) meanwhile = pin;
    if (!before) subject.catalog->after_find = pin;
    ASSERT_TRUE(subject.store->EvictTo(0).ok());
    EXPECT_EQ(accepted, before);
    EXPECT_EQ(subject.Has(manifest), before);
    EXPECT_FALSE(subject.store->holds().Keep({manifest}).late());
  }
}

TEST(EvictingStoreTest, ListenersHearOfEverythingThatGoes) {
  Subject subject;
  std::set<std::string> heard;
  subject.store->AddListener([&](absl::Span<const EntryId> ids) {
    for (const EntryId& id : ids) heard.insert(id.key);
  });
  const std::vector<Entry> batch = ArtifactBatch(1, 2, 500);
  ASSERT_TRUE(subject.store->Put(batch).ok());
  subject.now += 10'000;
  ASSERT_TRUE(subject.store->EvictTo(0).ok());
  for (const Entry& entry : batch) EXPECT_TRUE(heard.contains(entry.id.key)) << EntryKindName(entry.id.kind);
  EXPECT_EQ(subject.store->evicted(), batch.size());
}

TEST(EvictingStoreTest, UnusedForTooLongGoesThoughThereIsRoom) {
  EvictingOptions options;
  options.unused_seconds_max = 1'000;
  Subject subject([](Operation) { return absl::OkStatus(); }, options);
  const std::vector<Entry> old = ArtifactBatch(1, 2, 500), used = ArtifactBatch(2, 2, 500);
  ASSERT_TRUE(subject.store->Put(old).ok());
  ASSERT_TRUE(subject.store->Put(used).ok());
  subject.now += 1'000;
  ASSERT_TRUE(subject.store->Sweep().ok());
  EXPECT_EQ(subject.store->evicted(), 0u);
  subject.engine->RecordUse(used[4].id);
  subject.now += 1;
  ASSERT_TRUE(subject.store->Sweep().ok());
  for (const Entry& entry : old) EXPECT_FALSE(subject.Has(entry.id)) << EntryKindName(entry.id.kind);
  for (const Entry& entry : used) EXPECT_TRUE(subject.Has(entry.id)) << EntryKindName(entry.id.kind);
}

TEST(EvictingStoreTest, EntriesHaveABudget) {
  EvictingOptions options;
  options.entries_max = 60;
  Subject subject([](Operation) { return absl::OkStatus(); }, options);
  for (int i = 0; i < 9; ++i) {  // six entries each
    ASSERT_TRUE(subject.store->Put(ArtifactBatch(i, 2, 500)).ok());
    subject.now += 10'000;
  }
  ASSERT_TRUE(subject.store->Sweep().ok());
  EXPECT_EQ(subject.store->evicted(), 0u);
  for (int i = 9; i < 12; ++i) ASSERT_TRUE(subject.store->Put(ArtifactBatch(i, 2, 500)).ok());
  ASSERT_TRUE(subject.store->Sweep().ok());
  EXPECT_GE(subject.store->evicted(), 12u);
  EXPECT_FALSE(subject.Has(ArtifactBatch(0, 2, 500)[4].id));
  EXPECT_TRUE(subject.Has(ArtifactBatch(11, 2, 500)[4].id));
}

// The sweep stands still at its first manifest, and no call with it.
TEST(EvictingStoreTest, WriterThatOutrunsTheSweepIsToldAtOnce) {
  EvictingOptions options;
  options.budget_bytes = 2u << 20;
  absl::Notification may_read;
  const std::thread::id caller = std::this_thread::get_id();
  Subject subject(
      [&](Operation operation) {
        const bool sweeps = operation == Operation::kGet && std::this_thread::get_id() != caller;
        if (sweeps) may_read.WaitForNotification();
        return absl::OkStatus();
      },
      options);
  int refused = 0;
  for (int i = 0; i < 8; ++i) {
    const std::vector<Entry> batch = ArtifactBatch(i, 1, 500'000);
    const absl::Status put = subject.store->Put(batch);
    EXPECT_TRUE(put.ok() || absl::IsResourceExhausted(put)) << put;
    if (put.ok()) {
      EXPECT_TRUE(subject.engine->SetPinned(batch[2].id, true).ok());
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  may_read.Notify();
  // The control: nothing is pinned any more, and there is room.
  auto manifests = subject.engine->Scan(EntryKind::kManifest, "", 0, "");
  for (const CatalogEntry& entry : *manifests) EXPECT_TRUE(subject.engine->SetPinned(entry.id, false).ok());
  subject.now += 10'000;
  ASSERT_TRUE(subject.store->EvictTo(0).ok());
  EXPECT_TRUE(subject.store->Put(ArtifactBatch(9, 1, 500'000)).ok());
}

// Above the budget by what is pinned: that every small Put asks for a sweep again would help nobody.
TEST(EvictingStoreTest, ASweepThatFreesNothingIsNotTriedAtEveryPut) {
  EvictingOptions options;
  options.budget_bytes = 4u << 20;
  std::atomic<int> reads = 0;
  Subject subject(
      [&](Operation operation) {
        reads += operation == Operation::kGet ? 1 : 0;
        return absl::OkStatus();
      },
      options);
  for (int i = 0; i < 8; ++i) {
    const std::vector<Entry> batch = ArtifactBatch(i, 1, 470'000);
    ASSERT_TRUE(PutPatiently(subject.store.get(), batch).ok());
    ASSERT_TRUE(subject.engine->SetPinned(batch[2].id, true).ok());
  }
  ASSERT_TRUE(subject.store->Sweep().ok());
  const int before = reads;
  const int in_a_sweep = static_cast<int>(subject.engine->Scan(EntryKind::kManifest, "", 0, "")->size());
  ASSERT_GT(in_a_sweep, 1);
  const uint64_t disk = subject.engine->Totals().bytes_on_disk;
  EXPECT_GT(disk, (4u << 20) / 10 * 9) << "the control: it is above, and a sweep is what Sweep would do";
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(subject.store->Put({{{EntryKind::kTuning, absl::StrCat(i)}, MakeEntryValue("v")}}).ok());
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_LE(reads - before, in_a_sweep);
  ASSERT_TRUE(subject.store->Sweep().ok());
  EXPECT_GE(reads - before, in_a_sweep);
}

// Flights that share objects, find some present, write only the others, while everything is evicted again and
// again: no manifest in the store is without its objects. The careless one that does not ask is refused.
TEST(EvictingStoreTest, FlightsAndSweepsTogetherLeaveNoManifestWithoutItsObjects) {
  Subject subject;
  constexpr int kFlights = 150;
  constexpr uint64_t kEvicted = 100;
  std::atomic<int> left = 3, reused = 0, careless_refused = 0;
  const auto fly = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    // As many more as it takes until the sweeps have met them, on a loaded machine.
    const auto is_enough = [&](int i) {
      return i >= kFlights && (subject.store->evicted() > kEvicted || i >= 100 * kFlights);
    };
    for (int i = 0; !is_enough(i); ++i) {
      std::vector<Entry> objects;
      for (int k = 0; k < 4; ++k) objects.push_back(ObjectEntry(random() % 12, 400));
      std::vector<Entry> batch = {ManifestEntry(seed * 1'000'000 + i, objects)};
      const bool careless = i % 5 == 4;
      const auto missing = subject.store->FindMissing(IdsOf(objects));
      for (const Entry& object : objects) {
        const bool absent = std::find(missing->begin(), missing->end(), object.id) != missing->end();
        if (absent && !careless) batch.push_back(object);
        reused += absent ? 0 : 1;
      }
      subject.now += static_cast<int64_t>(random() % 300);
      const absl::Status status = subject.store->Put(batch);
      if (careless) {
        careless_refused += absl::IsAborted(status);
      } else if (!absl::IsAborted(status)) {  // another's sweep may run past the grace: told, not lost
        EXPECT_TRUE(status.ok()) << status;
      }
    }
    --left;
  };
  std::vector<std::thread> flights;
  for (uint64_t seed = 1; seed <= 3; ++seed) flights.emplace_back(fly, seed);
  while (left > 0) {
    EXPECT_TRUE(subject.store->EvictTo(0).ok());
    auto manifests = subject.engine->Scan(EntryKind::kManifest, "", 0, "");
    for (const CatalogEntry& entry : *manifests) {
      auto value = subject.store->Get(entry.id);
      if (!value.ok()) continue;
      auto references = ReferencesOf(EntryKind::kManifest, **value);
      ASSERT_TRUE(references.ok());
      // Only this thread evicts, so they are here together.
      EXPECT_TRUE(subject.engine->FindMissing(references->objects)->empty());
    }
  }
  for (std::thread& flight : flights) flight.join();
  EXPECT_GT(subject.store->evicted(), kEvicted);
  EXPECT_GT(reused, 10);
  EXPECT_GT(careless_refused, 0);
}

TEST(EvictingStoreTest, DiskStaysWithinTheBudgetAndTheLatestSurvives) {
  TemporaryDirectory directory;
  v1::StoreConfig config;
  config.set_directory(directory.path());
  constexpr uint64_t kBudget = 8u << 20;
  config.set_budget_bytes(kBudget);
  config.set_memory_bytes(1u << 20);
  std::atomic<int64_t> now = 1'000'000;
  StoreEnvironment environment;
  environment.now_unix_seconds = [&] { return now.load(); };
  auto store = NewStore(config, environment);
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<Entry> pinned = ArtifactBatch(0, 4, 64u << 10);
  ASSERT_TRUE((*store)->artifacts().Put(pinned).ok());
  ASSERT_TRUE((*store)->catalog().SetPinned(pinned[8].id, true).ok());
  uint64_t peak = 0;
  for (int i = 1; i <= 60; ++i) {  // 15 MiB
    now += 1'000;
    ASSERT_TRUE(PutPatiently(&(*store)->artifacts(), ArtifactBatch(i, 4, 64u << 10)).ok());
    peak = std::max(peak, (*store)->statistics().bytes_on_disk);
  }
  // Eleven tenths and the eighth that a Reclaim rewrites; of so small a store the buffers, the log and a blob
  // file are another tenth.
  EXPECT_LE(peak, kBudget / 10 * 14);
  for (int i = 0; i < 100 && (*store)->statistics().bytes_on_disk > kBudget; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_LE((*store)->statistics().bytes_on_disk, kBudget);
  EXPECT_GT((*store)->statistics().evicted, 0u);
  for (int i : {0, 58, 59, 60}) {
    for (const Entry& entry : ArtifactBatch(i, 4, 64u << 10)) {
      EXPECT_TRUE((*store)->artifacts().Get(entry.id).ok()) << i << " " << EntryKindName(entry.id.kind);
    }
  }
  auto first = ArtifactBatch(1, 4, 64u << 10);
  for (const Entry& entry : first) EXPECT_FALSE((*store)->artifacts().Get(entry.id).ok());
  ASSERT_TRUE((*store)->EvictTo(UINT64_MAX).ok());  // returns after the sweep that may be running
  auto verified = (*store)->Verify(false, [] { return false; });
  ASSERT_TRUE(verified.ok());
  EXPECT_EQ(verified->missing, 0u);
  EXPECT_EQ(verified->corrupt, 0u);
}

// From the daemon's side: the chain's own doors.
TEST(NewStoreTest, KnowsWhatIsExpensiveAndWhoseItIs) {
  TemporaryDirectory directory;
  v1::StoreConfig config;
  config.set_directory(directory.path());
  for (const bool again : {false, true}) {
    auto store = NewStore(config);
    ASSERT_TRUE(store.ok()) << store.status();
    std::vector<Entry> batch = ArtifactBatch(1, 1, 500);
    const EntryId manifest = batch[2].id;
    if (!again) {
      (*store)->SetCompiler("a fingerprint");
      batch[2].rebuild_ms = 1'500;
      ASSERT_TRUE((*store)->artifacts().Put(batch).ok());
    }
    EXPECT_EQ((*store)->catalog().Find(manifest)->rebuild_ms, 1'500u);
    EXPECT_EQ((*store)->catalog().Find(manifest)->compiler, CompilerNumber("a fingerprint"));
    if (!again) continue;
    const Holds::Hold hold = (*store)->Keep({manifest});
    ASSERT_TRUE((*store)->EvictTo(0).ok());
    EXPECT_TRUE((*store)->artifacts().Get(manifest).ok());
  }
  EXPECT_NE(CompilerNumber("a fingerprint"), CompilerNumber("another"));
}

TEST(EvictingStoreTest, BatchAboveHalfTheBudgetIsRefused) {
  TemporaryDirectory directory;
  v1::StoreConfig config;
  config.set_directory(directory.path());
  config.set_budget_bytes(2u << 20);
  auto store = NewStore(config);
  ASSERT_TRUE(store.ok());
  EXPECT_EQ((*store)->artifacts().Put({ObjectEntry(1, 1'100'000)}).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE((*store)->artifacts().Put({ObjectEntry(2, 900'000)}).ok());
}

TEST(EvictingStoreDeathTest, SaysSoWhereThereIsNoThreadToHave) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a store has threads
  Subject subject;
  EXPECT_EXIT(
      {
        const bool forbidden = ForbidThreads();
        const auto store = EvictingStore::Create(nullptr, subject.catalog.get(), {});
        std::cerr << store.status();
        _exit(forbidden && absl::IsUnavailable(store.status()) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "raise the limit of processes");
}

}  // namespace
}  // namespace kiln
