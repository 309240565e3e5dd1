// A process that runs out of memory while it keeps and serves, at many limits. Promise: it may end, but what
// it acknowledged is there afterwards, and nothing is damaged.

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/chain/store_config.h"
#include "gtest/gtest.h"
#include "tests/conformance/store_testing.h"
#include "tests/fault/store_process.h"

namespace kiln {
namespace {

constexpr int kPuts = 60;
constexpr size_t kObjectBytes = 600'000;
constexpr uint64_t kStepBytes = 3u << 20;
constexpr int kLevels = 50;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimitsWork = false;  // their shadow memory is beyond any limit
#else
constexpr bool kLimitsWork = true;
#endif

v1::StoreConfig Config(const std::string& directory) {
  v1::StoreConfig config;
  config.set_directory(directory);
  config.set_budget_bytes(256u << 20);
  return config;
}

struct Outcome {
  bool ended_early = false;
  int told = 0;
};

Outcome ServeWithin(uint64_t level) {
  TemporaryDirectory directory;
  StoreProcess server({directory.path(), absl::StrCat(level * 1'000), absl::StrCat(kPuts),
                       absl::StrCat(kObjectBytes), "late", absl::StrCat(level * kStepBytes)});
  std::vector<uint64_t> told;
  for (uint64_t number = 0; server.Next(&number);) told.push_back(number);
  const int status = server.Wait();
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
  auto store = NewStore(Config(directory.path()));
  EXPECT_TRUE(store.ok()) << store.status();
  if (!store.ok()) return {};
  for (uint64_t number : told) {
    for (const Entry& entry : ArtifactBatch(number, 2, kObjectBytes)) {
      auto value = (*store)->artifacts().Get(entry.id);
      EXPECT_TRUE(value.ok()) << value.status();
      EXPECT_TRUE(!value.ok() || **value == *entry.value);
    }
  }
  const auto verified = (*store)->Verify(false, [] { return false; });
  EXPECT_TRUE(verified.ok()) << verified.status();
  EXPECT_EQ(verified->corrupt, 0u);
  EXPECT_EQ(verified->missing, 0u);
  return {status != 0, static_cast<int>(told.size())};
}

TEST(StoreMemoryLimitTest, WhatWasAcknowledgedIsThereAndWhole) {
  if (!kLimitsWork) GTEST_SKIP() << "not under a sanitizer";
  const int step = std::getenv("KILN_FULL") != nullptr ? 1 : 10;
  int ended_early = 0, told = 0;
  for (int level = 1; level <= kLevels; level += step) {
    SCOPED_TRACE(level);
    const Outcome outcome = ServeWithin(static_cast<uint64_t>(level));
    ended_early += outcome.ended_early ? 1 : 0;
    told += outcome.told;
  }
  // The controls: some limits were too tight, and without one all is kept.
  EXPECT_GT(ended_early, 0);
  EXPECT_GT(told, 0);
  const Outcome plenty = ServeWithin(1'000);
  EXPECT_FALSE(plenty.ended_early);
  EXPECT_EQ(plenty.told, kPuts);
}

}  // namespace
}  // namespace kiln
