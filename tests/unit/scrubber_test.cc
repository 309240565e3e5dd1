// Damage at rest is found without anybody asking, and no faster than allowed.

#include "cache/budget/scrubber.h"

#include <iostream>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "cache/engine/rocksdb_store.h"
#include "gtest/gtest.h"
#include "tests/conformance/store_testing.h"
#include "tests/unit/without_threads.h"

namespace kiln {
namespace {

struct Subject {
  Subject() {
    RocksdbOptions options;
    options.directory = directory.path();
    auto opened = RocksdbStore::Open(options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    engine = opened->get();
    store = std::make_unique<VerifyingStore>(*std::move(opened), VerifyingStore::Mode::kVerify);
  }

  // How long a pass takes.
  absl::Duration Scrub(uint64_t bytes_per_second) {
    ScrubOptions options;
    options.bytes_per_second = bytes_per_second;
    options.before_the_first = absl::ZeroDuration();
    const absl::Time start = absl::Now();
    const auto scrubber = *Scrubber::Create(store.get(), engine, options);
    while (scrubber->passes() == 0 && absl::Now() < start + absl::Seconds(30)) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(scrubber->passes(), 1u);
    return absl::Now() - start;
  }

  TemporaryDirectory directory;
  RocksdbStore* engine = nullptr;
  std::unique_ptr<VerifyingStore> store;
};

TEST(ScrubberTest, FindsDamageThatNobodyAskedFor) {
  Subject subject;
  const std::vector<Entry> batch = ArtifactBatch(1, 3, 2'000);
  ASSERT_TRUE(subject.store->Put(batch).ok());
  const Entry damaged = {batch[1].id, MakeEntryValue("no envelope")};
  ASSERT_TRUE(subject.engine->Put({damaged}).ok());
  // The control: it is there until somebody reads it.
  EXPECT_TRUE(subject.engine->Find(damaged.id).ok());
  EXPECT_EQ(subject.store->quarantined(), 0u);
  subject.Scrub(1u << 30);
  EXPECT_EQ(subject.store->quarantined(), 1u);
  for (const Entry& entry : batch) EXPECT_EQ(subject.engine->Find(entry.id).ok(), entry.id != damaged.id);
}

TEST(ScrubberTest, KeepsToItsRate) {
  Subject subject;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(subject.store->Put({ObjectEntry(i, 10'000)}).ok());
  EXPECT_GT(subject.Scrub(200'000), absl::Milliseconds(400));
  EXPECT_LT(subject.Scrub(1u << 30), absl::Milliseconds(400));
}

TEST(ScrubberTest, EndsAtOnceWhateverItWaitsFor) {
  Subject subject;
  ASSERT_TRUE(subject.store->Put({ObjectEntry(1, 100'000)}).ok());
  const absl::Time start = absl::Now();
  for (const absl::Duration before : {absl::ZeroDuration(), absl::Hours(1)}) {
    ScrubOptions options;
    options.bytes_per_second = 1;
    options.before_the_first = before;
    const auto scrubber = *Scrubber::Create(subject.store.get(), subject.engine, options);
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(ScrubberDeathTest, SaysSoWhereThereIsNoThreadToHave) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a store has threads
  Subject subject;
  EXPECT_EXIT(
      {
        const bool forbidden = ForbidThreads();
        const auto scrubber = Scrubber::Create(subject.store.get(), subject.engine, {});
        std::cerr << scrubber.status();
        _exit(forbidden && absl::IsUnavailable(scrubber.status()) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "raise the limit of processes");
}

}  // namespace
}  // namespace kiln
