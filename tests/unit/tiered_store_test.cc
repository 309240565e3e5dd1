// A store in two tiers, memory before a disk: what the disk refuses, and fills that are overtaken.
#include "cache/tiers/tiered_store.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cache/engine/failing_store.h"
#include "cache/engine/memory_store.h"
#include "gtest/gtest.h"
#include "tests/conformance/store_testing.h"
#include "tests/unit/store_options.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;
using Operation = FailingStore::Operation;

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

}  // namespace
}  // namespace kiln
