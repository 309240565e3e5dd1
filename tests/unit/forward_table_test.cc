// What becomes of a compile at the upstream, input by input.
#include "server/flight/forward_table.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/flight/gang_verdict.h"
#include "server/flight/refusals.h"

namespace kiln {
namespace {

using Callers = ForwardTable::Callers;
using State = ForwardTable::State;
using Lines = std::vector<std::string>;
using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr FlightId kFlight = 7;
constexpr TaskId kTask = 3;
const MonotonicTime kBegin{seconds(1000)};
const milliseconds kHour = seconds(3600);

ForwardedEnd Program() {
  ForwardedEnd end;
  end.manifest.emplace();
  end.workers_lost = 2;
  return end;
}

ForwardedEnd Verdict(bool without_gang = false) {
  ForwardedEnd end;
  end.verdict = absl::UnimplementedError("no such operator");
  end.without_gang = without_gang;
  return end;
}

ForwardedEnd Broken(absl::Status call, std::optional<absl::Duration> come_again = std::nullopt) {
  ForwardedEnd end;
  end.call = std::move(call);
  end.come_again = come_again;
  return end;
}

ForwardedEnd Full(absl::Duration come_again) {
  return Broken(absl::ResourceExhaustedError("full"), come_again);
}
ForwardedEnd Late() { return Broken(absl::DeadlineExceededError("late")); }

class ForwardTableTest : public testing::Test {
 protected:
  void Begin(bool compiles_here = true, Callers callers = Callers::kAny, bool packed = true) {
    table_ = std::make_unique<ForwardTable>(compiles_here, Outside());
    table_->Forward(kTask, kFlight, callers);
    if (packed) table_->Packed(kFlight, now_);
    Said();
  }
  void CallEnds(ForwardTable::Turn turn, ForwardedEnd end) {
    table_->CallEnded(kFlight, turn, std::move(end), now_);
  }
  void Due(ForwardTable::Turn turn) { table_->Due(kFlight, turn, now_); }
  void Waited() { table_->Waited(kFlight, now_); }
  void Taken() { table_->Taken(kFlight, std::make_shared<const Artifact>()); }
  Lines Said() { return std::exchange(said_, {}); }
  State state() const { return table_->StateOf(kFlight); }
  // The last one's failure; OK: none.
  absl::Status Told() const { return next_.outcome.has_value() ? next_.outcome->status() : absl::OkStatus(); }
  static std::string At(MonotonicTime time) {
    if (time == MonotonicTime::max()) return "never";
    return absl::StrCat((time - kBegin) / milliseconds(1), " ms");
  }
  void Ended(FlightNext next) {
    next_ = std::move(next);
    if (!next_.outcome.has_value()) {
      said_.push_back(next_.tasks.size() == 1 && next_.tasks[0].kind == TaskQueue::Kind::kPlan ? "ended: here"
                                                                                               : "ended: ?");
    } else if (next_.outcome->ok()) {
      said_.push_back(absl::StrCat("ended: program, lost ", next_.workers_lost));
    } else {
      said_.push_back(absl::StrCat("ended: ", Told().message()));
    }
  }

  MonotonicTime now_ = kBegin;
  MonotonicTime deadline_ = MonotonicTime::max();
  Lines said_;
  FlightNext next_;  // the last one
  std::unique_ptr<ForwardTable> table_;

 private:
  ForwardTable::Outside Outside() {
    ForwardTable::Outside outside;
    outside.pack = [this](FlightId) { said_.push_back("pack"); };
    outside.call = [this](FlightId, ForwardTable::Turn turn, MonotonicTime deadline) {
      said_.push_back(absl::StrCat("call ", turn, " until ", At(deadline)));
    };
    outside.cancel = [this](FlightId) { said_.push_back("cancel"); };
    outside.remind = [this](FlightId, ForwardTable::Turn turn, MonotonicTime then) {
      said_.push_back(absl::StrCat("remind ", turn, " at ", At(then)));
    };
    outside.wait = [this](FlightId, absl::Duration pause) {
      said_.push_back(absl::StrCat("wait ", absl::FormatDuration(pause)));
    };
    outside.hurry = [this](FlightId) { said_.push_back("hurry"); };
    outside.take = [this](FlightId, const ForwardedEnd&) { said_.push_back("take"); };
    outside.answered = [this] { said_.push_back("answered"); };
    outside.failed = [this](const absl::Status& why) {
      said_.push_back(absl::StrCat("failed: ", absl::StatusCodeToString(why.code())));
      return absl::UnavailableError(absl::StrCat("away, ", why.message()));
    };
    outside.unknown = [](const absl::Status& why) {
      return WithoutVerdict(absl::UnavailableError(absl::StrCat("unknown, ", why.message())));
    };
    outside.ended = [this](TaskId task, FlightId id, FlightNext next) {
      EXPECT_EQ(task, kTask);
      EXPECT_EQ(id, kFlight);
      EXPECT_EQ(state(), State::kNone);
      Ended(std::move(next));
    };
    outside.deadline = [this](FlightId) { return deadline_; };
    outside.jitter = [](absl::Duration pause) { return pause + absl::Milliseconds(1); };
    return outside;
  }
};

// ---- Answers ---------------------------------------------------------------------------------

TEST_F(ForwardTableTest, AProgramIsTakenInAndIsTheOutcome) {
  Begin(true, Callers::kAny, /*packed=*/false);
  EXPECT_EQ(state(), State::kPacking);
  table_->Packed(kFlight, now_);
  EXPECT_EQ(Said(), Lines{"call 1 until never"});
  CallEnds(1, Program());
  EXPECT_EQ(Said(), Lines{"take"});
  EXPECT_EQ(state(), State::kTaking);
  Taken();
  EXPECT_EQ(Said(), (Lines{"answered", "ended: program, lost 2"}));
}

TEST_F(ForwardTableTest, AVerdictIsTheOutcome) {
  Begin();
  CallEnds(1, Verdict());
  EXPECT_EQ(Said(), (Lines{"answered", "ended: no such operator"}));
  EXPECT_FALSE(IsWithoutVerdict(Told()));
}

TEST_F(ForwardTableTest, WhatSaysNothingOfTheGangIsPassedOnAsThat) {
  Begin(true, Callers::kGang);
  CallEnds(1, Verdict(/*without_gang=*/true));
  EXPECT_EQ(Said(), (Lines{"answered", "ended: no such operator"}));
  EXPECT_TRUE(IsWithoutVerdict(Told()));
}

// ---- Without an answer -----------------------------------------------------------------------

TEST_F(ForwardTableTest, WithoutTheUpstreamItIsCompiledHereOrFails) {
  for (const bool compiles_here : {true, false}) {
    const std::string end = compiles_here ? "ended: here" : "ended: away, gone";
    Begin(compiles_here);
    CallEnds(1, Broken(absl::UnavailableError("gone")));
    EXPECT_EQ(Said(), (Lines{"failed: UNAVAILABLE", end}));
    Begin(compiles_here);
    CallEnds(1, Program());
    table_->Taken(kFlight, absl::DataLossError("gone"));
    EXPECT_EQ(Said(), (Lines{"take", "failed: DATA_LOSS", end}));
  }
}

TEST_F(ForwardTableTest, AGangsMemberIsNeverCompiledHere) {
  for (const bool compiles_here : {true, false}) {
    Begin(compiles_here, Callers::kGang);
    CallEnds(1, Broken(absl::UnavailableError("gone")));
    EXPECT_EQ(Said(), (Lines{"failed: UNAVAILABLE", "ended: unknown, gone"}));
    EXPECT_TRUE(IsWithoutVerdict(Told()));
    EXPECT_TRUE(next_.tasks.empty());
    Begin(compiles_here, Callers::kGang);
    CallEnds(1, Program());
    table_->Taken(kFlight, absl::DataLossError("gone"));
    EXPECT_EQ(Said(), (Lines{"take", "failed: DATA_LOSS", "ended: unknown, gone"}));
  }
}

TEST_F(ForwardTableTest, ADrainedOneIsThereAndIsNotWaitedFor) {
  const ForwardedEnd drained = Broken(absl::UnavailableError("drained"), absl::Seconds(5));
  Begin();
  CallEnds(1, drained);
  EXPECT_EQ(Said(), (Lines{"failed: FAILED_PRECONDITION", "ended: here"}));
  // Where nothing is compiled here, when to come again is passed on.
  for (const Callers callers : {Callers::kAny, Callers::kGang}) {
    Begin(/*compiles_here=*/callers == Callers::kGang, callers);
    CallEnds(1, drained);
    EXPECT_EQ(Said(), (Lines{"failed: FAILED_PRECONDITION", "ended: drained"}));
    EXPECT_EQ(PushbackOf(Told()), seconds(5));
  }
}

// ---- Asked again -----------------------------------------------------------------------------

TEST_F(ForwardTableTest, AFullOneIsAskedAgainWhenItSays) {
  Begin();
  CallEnds(1, Full(absl::Seconds(4)));
  EXPECT_EQ(Said(), Lines{"wait 4.001s"});
  EXPECT_EQ(state(), State::kWaiting);
  Waited();
  EXPECT_EQ(Said(), Lines{"call 2 until never"});
  CallEnds(2, Full(absl::Hours(1)));
  EXPECT_EQ(Said(), Lines{"wait 30.001s"}) << "bounded";
}

TEST_F(ForwardTableTest, WhoseTimeIsUpByThenIsToldInstead) {
  deadline_ = kBegin + seconds(8);
  Begin();
  CallEnds(1, Full(absl::Seconds(8)));
  EXPECT_EQ(state(), State::kEnding);
  Due(1);
  EXPECT_EQ(Said(), (Lines{"hurry", "failed: RESOURCE_EXHAUSTED", "hurry", "ended: here"}));
  Begin(/*compiles_here=*/false);
  CallEnds(1, Full(absl::Seconds(8)));
  Due(1);
  EXPECT_EQ(Said(), (Lines{"hurry", "failed: FAILED_PRECONDITION", "hurry", "ended: full"}));
  EXPECT_EQ(PushbackOf(Told()), seconds(8));
  // The control: by who has joined, it is asked again.
  Begin();
  deadline_ += seconds(1);
  CallEnds(1, Full(absl::Seconds(8)));
  EXPECT_EQ(Said(), (Lines{"hurry", "wait 8.001s"}));
}

TEST_F(ForwardTableTest, AFullOneThatDoesNotSayWhenIsNotAskedAgain) {
  Begin();
  CallEnds(1, Broken(absl::ResourceExhaustedError("full")));
  EXPECT_EQ(Said(), (Lines{"failed: RESOURCE_EXHAUSTED", "ended: here"}));
}

// ---- Longer ----------------------------------------------------------------------------------

TEST_F(ForwardTableTest, ACallIsBegunAgainInTimeForWhoWaitsLonger) {
  deadline_ = kBegin + seconds(10);
  Begin(true, Callers::kAny, /*packed=*/false);
  table_->Packed(kFlight, now_);
  EXPECT_EQ(Said(), (Lines{"call 1 until 10000 ms", "remind 1 at 8000 ms"}));
  deadline_ += kHour;
  now_ += seconds(8);
  Due(1);
  EXPECT_EQ(Said(), (Lines{"call 2 until 3610000 ms", "remind 2 at 3608000 ms"}));
  now_ += seconds(2);
  CallEnds(1, Late());
  EXPECT_EQ(Said(), Lines{}) << "the later one goes on";
  CallEnds(2, Program());
  Taken();
  EXPECT_EQ(Said(), (Lines{"hurry", "take", "answered", "hurry"})) << "a reminder is out";
  EXPECT_EQ(state(), State::kEnding);
  Due(2);
  EXPECT_EQ(Said(), Lines{"ended: program, lost 2"});
}

TEST_F(ForwardTableTest, WhereNobodyWaitsLongerItEndsWithItsTime) {
  deadline_ = kBegin + seconds(3);
  Begin(true, Callers::kAny, /*packed=*/false);
  table_->Packed(kFlight, now_);
  EXPECT_EQ(Said(), (Lines{"call 1 until 3000 ms", "remind 1 at 1500 ms"})) << "half, where that is less";
  Due(1);
  EXPECT_EQ(Said(), Lines{});
  CallEnds(1, Late());
  EXPECT_EQ(Said(), (Lines{"failed: RESOURCE_EXHAUSTED", "ended: here"})) << "no silence of the upstream's";
}

TEST_F(ForwardTableTest, WhoJoinsAfterTheReminderIsAskedForAtTheEnd) {
  deadline_ = kBegin + seconds(10);
  Begin();
  Due(1);
  deadline_ += kHour;
  now_ += seconds(10);
  CallEnds(1, Late());
  EXPECT_EQ(Said(), (Lines{"call 2 until 3610000 ms", "remind 2 at 3608000 ms"}));
  // The control: a time that its call had.
  CallEnds(2, Late());
  Due(2);
  EXPECT_EQ(Said(), (Lines{"hurry", "failed: RESOURCE_EXHAUSTED", "hurry", "ended: here"}));
}

TEST_F(ForwardTableTest, AnAnswerToTheEarlierCallCountsAndEndsTheLater) {
  deadline_ = kBegin + seconds(10);
  Begin();
  deadline_ = MonotonicTime::max();
  Due(1);
  EXPECT_EQ(Said(), Lines{"call 2 until never"});
  CallEnds(1, Program());
  EXPECT_EQ(Said(), (Lines{"cancel", "take"}));
  CallEnds(2, Verdict());
  EXPECT_EQ(Said(), Lines{}) << "the first answer is the one";
  Taken();
  EXPECT_EQ(Said(), (Lines{"answered", "ended: program, lost 2"}));
}

TEST_F(ForwardTableTest, AnAnswerToTheEarlierCallCountsWhileTheLaterWaits) {
  deadline_ = kBegin + seconds(10);
  Begin();
  deadline_ = MonotonicTime::max();
  Due(1);
  CallEnds(2, Full(absl::Seconds(4)));
  EXPECT_EQ(Said(), (Lines{"call 2 until never", "wait 4.001s"}));
  CallEnds(1, Program());
  EXPECT_EQ(Said(), (Lines{"hurry", "take"}));
  Taken();
  EXPECT_EQ(Said(), (Lines{"answered", "hurry"})) << "the wait is out";
  Waited();
  EXPECT_EQ(Said(), Lines{"ended: program, lost 2"}) << "nothing is asked for any more";
}

TEST_F(ForwardTableTest, TheLatestCallsTroubleEndsTheEarlier) {
  deadline_ = kBegin + seconds(10);
  Begin();
  deadline_ = MonotonicTime::max();
  Due(1);
  Said();
  CallEnds(2, Broken(absl::UnavailableError("gone")));
  EXPECT_EQ(Said(), (Lines{"failed: UNAVAILABLE", "cancel"}));
  CallEnds(1, Program());
  EXPECT_EQ(Said(), Lines{"ended: here"});
}

TEST_F(ForwardTableTest, AReminderOfACallThatIsOverIsNone) {
  deadline_ = kBegin + seconds(10);
  Begin();
  CallEnds(1, Full(absl::Seconds(1)));
  Waited();
  EXPECT_EQ(Said(), (Lines{"hurry", "wait 1.001s", "call 2 until 10000 ms", "remind 2 at 8000 ms"}));
  deadline_ += kHour;
  Due(1);
  EXPECT_EQ(Said(), Lines{});
  Due(2);
  EXPECT_EQ(Said(), (Lines{"call 3 until 3610000 ms", "remind 3 at 3608000 ms"}));
}

// ---- Stopped ---------------------------------------------------------------------------------

TEST_F(ForwardTableTest, WhatNobodyWaitsForEndsWhenAllIsBack) {
  deadline_ = kBegin + seconds(10);
  Begin();
  table_->Stop(kFlight);
  table_->Stop(kFlight);
  EXPECT_EQ(Said(), (Lines{"cancel", "hurry"}));
  CallEnds(1, Program());
  EXPECT_EQ(Said(), Lines{}) << "a reminder is out";
  Due(1);
  EXPECT_EQ(Said(), Lines{"ended: nobody waits for the answer"});
}

TEST_F(ForwardTableTest, StoppedWhileItIsPackedItIsNotCalled) {
  Begin(true, Callers::kAny, /*packed=*/false);
  table_->StopAll();
  EXPECT_EQ(state(), State::kPacking);
  table_->Packed(kFlight, now_);
  EXPECT_EQ(Said(), Lines{"ended: nobody waits for the answer"});
}

TEST_F(ForwardTableTest, StoppedWhileItWaitsItIsNotAskedAgain) {
  Begin();
  CallEnds(1, Full(absl::Seconds(4)));
  table_->StopAll();
  Waited();
  EXPECT_EQ(Said(), (Lines{"wait 4.001s", "hurry", "ended: nobody waits for the answer"}));
}

TEST_F(ForwardTableTest, WhatHasComeIsTakenInThoughNobodyWaits) {
  Begin();
  CallEnds(1, Program());
  table_->Stop(kFlight);
  Taken();
  EXPECT_EQ(Said(), (Lines{"take", "answered", "ended: program, lost 2"}));
}

TEST_F(ForwardTableTest, AnInputAboutWhatIsGoneIsIgnored) {
  deadline_ = kBegin + seconds(10);
  Begin();
  Due(2);
  CallEnds(2, Program());
  Waited();
  Taken();
  table_->Packed(kFlight, now_);
  EXPECT_EQ(Said(), Lines{}) << "nor is one that was not asked for";
  CallEnds(1, Verdict());
  Due(1);
  Said();
  table_->Stop(kFlight);
  Due(1);
  CallEnds(1, Program());
  Waited();
  Taken();
  table_->Packed(kFlight, now_);
  EXPECT_EQ(Said(), Lines{});
  EXPECT_EQ(state(), State::kNone);
}

}  // namespace
}  // namespace kiln
