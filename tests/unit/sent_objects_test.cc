#include "server/rpc/sent_objects.h"

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/flight/refusals.h"

namespace kiln {
namespace {

constexpr uint64_t kMax = 100;

absl::StatusOr<EntryValue> Get(SentObjects& sent, const std::string& tenant, const std::string& digest,
                               uint64_t bytes) {
  return sent.Get(tenant, digest, bytes, [&] { return MakeEntryValue(digest + " of " + tenant); });
}

TEST(SentObjects, OfOneTenantIsReadAndCountedOnce) {
  SentObjects sent(kMax);
  std::atomic<int> reads{0};
  std::vector<EntryValue> copies(8);
  std::vector<std::thread> callers;
  for (EntryValue& copy : copies) {
    callers.emplace_back([&] {
      const absl::StatusOr<EntryValue> got = sent.Get("t", "object", 50, [&] {
        ++reads;
        absl::SleepFor(absl::Milliseconds(50));
        return MakeEntryValue("bytes");
      });
      if (got.ok()) copy = *got;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(reads, 1);
  for (const EntryValue& copy : copies) {
    ASSERT_NE(copy, nullptr);
    EXPECT_EQ(copy.get(), copies[0].get());
  }
  // The last copy releases it, and who comes then reads again.
  while (copies.size() > 1) copies.pop_back();
  EXPECT_FALSE(Get(sent, "t", "more", 1).ok());
  copies.clear();
  EXPECT_TRUE(Get(sent, "t", "more", 1).ok());
  EXPECT_EQ(**Get(sent, "t", "object", 50), "object of t");
}

TEST(SentObjects, ATenantHasAsMuchAsIsLeftToTheOthers) {
  SentObjects sent(kMax);
  const absl::StatusOr<EntryValue> first = Get(sent, "greedy", "a", 50);
  ASSERT_TRUE(first.ok());
  const absl::Status refused = Get(sent, "greedy", "b", 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_TRUE(PushbackOf(refused).has_value());
  EXPECT_TRUE(absl::StrContains(refused.message(), "admission.objects_bytes_max")) << refused;
  // Another's, of the same digest too, is its own.
  const absl::StatusOr<EntryValue> other = Get(sent, "other", "a", 25);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(**other, "a of other");
  EXPECT_FALSE(Get(sent, "third", "c", 26).ok());
  // Control: without the rule there is room.
  EXPECT_TRUE(Get(sent, "third", "c", 25).ok());
}

TEST(SentObjects, WhatCannotBeReadCountsNothing) {
  SentObjects sent(kMax);
  const absl::Status gone =
      sent.Get("t", "a", 50, []() -> absl::StatusOr<EntryValue> { return absl::NotFoundError("gone"); })
          .status();
  EXPECT_TRUE(absl::IsNotFound(gone)) << gone;
  EXPECT_TRUE(Get(sent, "t", "b", 50).ok());
}

TEST(SentObjects, WhatACallKeepsCountsUntilItEnds) {
  SentObjects sent(kMax);
  absl::StatusOr<SentObjects::Share> kept = sent.Reserve("t", 50);
  ASSERT_TRUE(kept.ok());
  EXPECT_FALSE(sent.Reserve("t", 1).ok());
  kept->reset();
  EXPECT_TRUE(sent.Reserve("t", 50).ok());
}

// gRPC has an object's last slices when the daemon is gone.
TEST(SentObjects, AnObjectMayOutliveThem) {
  std::optional<SentObjects> sent(kMax);
  const absl::StatusOr<EntryValue> object = Get(*sent, "t", "a", 50);
  sent.reset();
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(**object, "a of t");
}

}  // namespace
}  // namespace kiln
