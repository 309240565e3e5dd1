// Variants that are not here yet: one tenant's keep no other's waiting, and the end waits for none.
#include "server/flight/gang_variants.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

GangName NameOf(const std::string& ns) { return {ns, "gang", "key", ""}; }

// Of tenant "late" nothing is there, and a look for it takes a while.
absl::StatusOr<KnownVariant> LookSlowly(const GangName& name, const std::string& variant_id) {
  if (name.ns == "late") {
    absl::SleepFor(absl::Milliseconds(100));
    return absl::NotFoundError("not there yet");
  }
  KnownVariant variant;
  variant.variant_id = variant_id;
  return variant;
}

std::unique_ptr<GangVariants> Make(GangVariants::Look look, bool may_come = true) {
  absl::StatusOr<std::unique_ptr<GangVariants>> made = GangVariants::Create(std::move(look), may_come);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

absl::StatusOr<KnownVariant> Await(GangVariants& variants, const std::string& ns) {
  absl::StatusOr<KnownVariant> got;
  absl::Notification told;
  variants.Bring(NameOf(ns), "variant", [&](absl::StatusOr<KnownVariant> answer) {
    got = std::move(answer);
    told.Notify();
  });
  told.WaitForNotification();
  return got;
}

TEST(GangVariants, OneTenantsKeepNoOthersWaiting) {
  std::atomic<int> cancelled{0};
  std::unique_ptr<GangVariants> variants = Make(LookSlowly);
  for (int i = 0; i < 500; ++i) {
    variants->Bring(NameOf("late"), absl::StrCat(i), [&](const absl::StatusOr<KnownVariant>& answer) {
      cancelled += absl::IsCancelled(answer.status());
    });
  }
  for (int i = 0; i < 10; ++i) {
    const absl::Time begin = absl::Now();
    EXPECT_TRUE(Await(*variants, "other").ok());
    EXPECT_LT(absl::Now() - begin, absl::Seconds(2)) << "500 looks of 0.1 s are before it";
  }
  // The end waits for the looks that are out, and for nothing that may come.
  const absl::Time begin = absl::Now();
  variants = nullptr;
  EXPECT_LT(absl::Now() - begin, kVariantPatience / 2);
  EXPECT_EQ(cancelled, 500);
}

// The control: a look is all that a tenant is bounded by.
TEST(GangVariants, ATenantHasTwoLooksAtATime) {
  std::atomic<int> looks{0}, most{0};
  const std::unique_ptr<GangVariants> variants = Make(
      [&](const GangName&, const std::string&) -> absl::StatusOr<KnownVariant> {
        const int now = ++looks;
        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        absl::SleepFor(absl::Milliseconds(20));
        --looks;
        return absl::NotFoundError("not here");
      },
      /*may_come=*/false);
  absl::BlockingCounter told(40);
  for (int i = 0; i < 40; ++i) {
    variants->Bring(NameOf(i < 20 ? "one" : "two"), absl::StrCat(i),
                    [&](const absl::StatusOr<KnownVariant>& answer) {
                      EXPECT_TRUE(absl::IsNotFound(answer.status())) << answer.status();
                      told.DecrementCount();
                    });
  }
  told.Wait();
  EXPECT_GT(most, static_cast<int>(kVariantLooksPerTenantMax)) << "of two tenants";
  EXPECT_LE(most, static_cast<int>(2 * kVariantLooksPerTenantMax));
}

TEST(GangVariants, WhatIsOnItsWayIsWaitedFor) {
  std::atomic<int> looks{0};
  const std::unique_ptr<GangVariants> variants =
      Make([&](const GangName&, const std::string&) -> absl::StatusOr<KnownVariant> {
        if (++looks < 5) return absl::NotFoundError("not there yet");
        return KnownVariant();
      });
  EXPECT_TRUE(Await(*variants, "tenant").ok());
  EXPECT_EQ(looks, 5);
}

TEST(GangVariants, OneTenantsWaitUpToALimit) {
  std::atomic<int> exhausted{0};
  std::unique_ptr<GangVariants> variants = Make(LookSlowly);
  const auto bring = [&](const std::string& ns) {
    variants->Bring(NameOf(ns), "variant", [&](const absl::StatusOr<KnownVariant>& answer) {
      exhausted += absl::IsResourceExhausted(answer.status());
    });
  };
  for (size_t i = 0; i < kVariantsWantedPerTenantMax; ++i) bring("late");
  EXPECT_EQ(exhausted, 0);
  bring("late");
  EXPECT_EQ(exhausted, 1);
  EXPECT_TRUE(Await(*variants, "other").ok());
}

}  // namespace
}  // namespace kiln
