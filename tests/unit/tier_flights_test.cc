// What a flight does with the shared tier, input by input.
#include "server/flight/tier_flights.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

using State = TierFlights::State;
constexpr FlightId kFlight = 7;

KnownKeyPtr KnownWith(size_t variants) {
  auto known = std::make_shared<KnownKey>();
  known->variants.resize(variants);
  return known;
}

class HandClock final : public Clock {
 public:
  MonotonicTime Now() const override { return MonotonicTime(std::chrono::milliseconds(milliseconds)); }
  absl::Time WallNow() const override { return absl::UnixEpoch(); }
  int milliseconds = 1000;
};

class TierFlightsTest : public testing::Test {
 protected:
  TierFlightsTest()
      : flights_({[this](FlightId, const TierKeys::Name& key, MonotonicTime deadline) {
                    Say("look " + key.compile_key, deadline);
                  },
                  [this](FlightId, const TierKeys::Name& key, MonotonicTime deadline) {
                    Say("claim " + key.compile_key, deadline);
                  },
                  [this](FlightId) { said_.push_back("release"); },
                  [this](FlightId, KnownKeyPtr known, FlightTable::Where where) {
                    said_.push_back(absl::StrCat(where == FlightTable::Where::kHere ? "here " : "everywhere ",
                                                 known->variants.size()));
                  }},
                 &clock_, absl::Milliseconds(50)) {
    FlightRequest request;
    request.ns = "train";
    request.compile_key = "key";
    flights_.LookFurther(kFlight, request, {}, KnownWith(0));
  }
  void Say(std::string what, MonotonicTime deadline) {
    said_.push_back(std::move(what));
    deadlines_.push_back(static_cast<int>(deadline.time_since_epoch() / std::chrono::milliseconds(1)));
  }
  std::vector<std::string> Said() { return std::exchange(said_, {}); }
  using Lines = std::vector<std::string>;

  HandClock clock_;
  std::vector<std::string> said_;
  std::vector<int> deadlines_;  // of looks and claims, in milliseconds
  TierFlights flights_;
};

TEST_F(TierFlightsTest, WhatNobodyHasIsClaimedAndLookedForOnceMore) {
  EXPECT_EQ(Said(), Lines{"look key"});
  flights_.Missed(kFlight, absl::NotFoundError("no"), KnownWith(0));
  EXPECT_EQ(Said(), Lines{"claim key"});
  flights_.Claimed(kFlight, ClaimTable::Answer::kOurs);
  EXPECT_EQ(Said(), Lines{"look key"});
  flights_.Missed(kFlight, absl::NotFoundError("no"), KnownWith(0));
  EXPECT_EQ(Said(), Lines{"everywhere 0"});
  flights_.Over(kFlight);
  EXPECT_EQ(Said(), Lines{"release"});
}

// Another caller's gang had brought it while the claim was awaited: the tier has no more than the store then.
TEST_F(TierFlightsTest, WhatTheStoreHasByTheTimeThatTheClaimIsOursIsKnown) {
  flights_.Missed(kFlight, absl::NotFoundError("no"), KnownWith(0));
  flights_.Claimed(kFlight, ClaimTable::Answer::kOurs);
  Said();
  flights_.Missed(kFlight, absl::NotFoundError("no more than the store"), KnownWith(1));
  EXPECT_EQ(Said(), Lines{"everywhere 1"});
}

// Whatever each of them takes.
TEST_F(TierFlightsTest, LookAndClaimAndLookAgainHaveOneLimit) {
  clock_.milliseconds += 10;
  flights_.Missed(kFlight, absl::NotFoundError("no"), KnownWith(0));
  clock_.milliseconds += 10;
  flights_.Claimed(kFlight, ClaimTable::Answer::kOurs);
  EXPECT_EQ(Said(), (Lines{"look key", "claim key", "look key"}));
  EXPECT_EQ(deadlines_, (std::vector<int>{1050, 1050, 1050}));
}

// What another daemon has made meanwhile would be missed otherwise.
TEST_F(TierFlightsTest, AfterAnothersClaimThereIsTimeToLookAgain) {
  flights_.Missed(kFlight, absl::NotFoundError("no"), KnownWith(0));
  clock_.milliseconds = 9000;
  flights_.Claimed(kFlight, ClaimTable::Answer::kOurs);
  EXPECT_EQ(deadlines_, (std::vector<int>{1050, 1050, 9050}));
}

TEST_F(TierFlightsTest, AfterATransferThereIsTimeToClaim) {
  clock_.milliseconds = 9000;
  flights_.Taken(kFlight, KnownWith(1), /*whole=*/false);
  EXPECT_EQ(deadlines_, (std::vector<int>{1050, 9050}));
}

TEST_F(TierFlightsTest, ATierThatDoesNotSayIsGoneOnWithout) {
  flights_.Missed(kFlight, absl::UnavailableError("away"), nullptr);
  EXPECT_EQ(Said(), (Lines{"look key", "everywhere 0"}));
}

TEST_F(TierFlightsTest, WhatTheStoreDoesNotTakeWholeIsClaimed) {
  flights_.Taken(kFlight, KnownWith(1), /*whole=*/false);
  EXPECT_EQ(Said(), (Lines{"look key", "claim key"}));
  flights_.Claimed(kFlight, ClaimTable::Answer::kNobodys);
  EXPECT_EQ(Said(), Lines{"everywhere 1"});
}

TEST_F(TierFlightsTest, AClaimEndsWithTheWriteOfWhatWasMade) {
  flights_.Made(kFlight);
  flights_.Over(kFlight);
  EXPECT_EQ(Said(), Lines{"look key"});
}

TEST_F(TierFlightsTest, AnAnswerAboutWhatIsGoneIsIgnored) {
  flights_.Over(kFlight);
  Said();
  flights_.Missed(kFlight, absl::NotFoundError("no"), nullptr);
  flights_.Taken(kFlight, KnownWith(1), true);
  flights_.Claimed(kFlight, ClaimTable::Answer::kOurs);
  EXPECT_EQ(Said(), Lines{});
  EXPECT_EQ(flights_.StateOf(kFlight), State::kNone);
}

}  // namespace
}  // namespace kiln
