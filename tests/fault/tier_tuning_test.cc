// Daemons that measure and share a tier: the first record of a tunable is everybody's. The GPU is a script
// that finds another time each time (scripted_tuner.cc), so that what was measured twice shows.
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "tests/fault/tier_daemons.h"

namespace kiln {
namespace {

constexpr char kOwnTime[] = "gemms 8192";
constexpr char kOwnTimeSlowly[] = "gemms 8320";  // long enough for two daemons to measure at a time

class TierTunings : public TierDaemons {
 protected:
  void SetUp() override {
    TierDaemons::SetUp();
    if (IsSkipped()) return;
    first_ = std::make_unique<TestDaemon>(Measuring("first", {"second"}));
    second_ = std::make_unique<TestDaemon>(Measuring("second", {"first"}));
  }
  std::string Measuring(const std::string& key, const std::vector<std::string>& trusted, bool tier = true) {
    return absl::StrCat(Config(key, trusted, tier), "measuring { gpus: 1 binary: \"", SCRIPTED_TUNER,
                        "\" candidate_seconds_max: 1 lease_seconds_max: 60 }\n");
  }
  // The tier lacks the program, so that each daemon makes its own.
  CompileResult Make(TestDaemon& daemon, const std::string& script) {
    for (const std::string& name : redis_->Keys("*:m")) redis_->Ask({"DEL", name});
    CompileResult result = daemon.Compile(script);
    EXPECT_TRUE(result.done) << result.failed_reason << result.status.error_message();
    EXPECT_EQ(result.manifest.tuning().without(), "");
    return result;
  }
  // And the tier has it, so that it does not come later.
  CompileResult MakeAndWrite(TestDaemon& daemon, const std::string& script) {
    const uint64_t written = StatusOf(daemon).writes();
    CompileResult result = Make(daemon, script);
    AwaitWrites(daemon, written + 1);
    return result;
  }
  static v1::Measurement WinnerOf(const CompileResult& result) {
    EXPECT_EQ(result.manifest.tuning().measurements_size(), 1);
    return result.manifest.tuning().measurements(0);
  }
  static std::string BytesOf(const CompileResult& result) { return result.manifest.SerializeAsString(); }
  // In the order of their names.
  std::vector<std::string> Records() { return redis_->Keys("kiln:1:test:*:t"); }

  std::unique_ptr<TestDaemon> first_, second_;
};

TEST_F(TierTunings, TheSecondMeasuresNothingAndMakesTheSameBytes) {
  for (const char* script : {kOwnTime, "rows 9\ngemms 1", "schedules 1 0", "convolutions 0 0\ntraced 1 1"}) {
    const uint64_t measured = first_->Stats().tunables_measured();
    const CompileResult made = MakeAndWrite(*first_, script);
    EXPECT_GT(first_->Stats().tunables_measured(), measured) << script;
    const uint64_t compiles = second_->Stats().compiles();
    const CompileResult again = Make(*second_, script);
    EXPECT_EQ(second_->Stats().compiles(), compiles + 1) << script;
    EXPECT_EQ(second_->Stats().tunables_measured(), 0) << script;
    EXPECT_EQ(BytesOf(made), BytesOf(again)) << script;
  }
  EXPECT_EQ(StatusOf(*second_).refused(), 0);
}

// The control: it is the tier that makes them the same.
TEST_F(TierTunings, WithoutATierTheyFindTheirOwn) {
  TestDaemon alone(Measuring("alone", {}, /*tier=*/false));
  const CompileResult made = MakeAndWrite(*first_, kOwnTime);
  const CompileResult other = Make(alone, kOwnTime);
  EXPECT_EQ(alone.Stats().tunables_measured(), 1);
  EXPECT_NE(BytesOf(made), BytesOf(other));
}

// A kernel of kiln's own comes with its code, which is served without a worker that emits it.
TEST_F(TierTunings, TheWinnersCodeGoesAlong) {
  const std::string script = "rows 9\ngemms 1";
  Make(*first_, script);
  const CompileResult taken = Make(*second_, script + "\nname another");
  const v1::NativeKernel native = WinnerOf(taken).winner().native();
  EXPECT_EQ(native.name(), "faster");
  EXPECT_EQ(second_->Stats().tunables_measured(), 0);
  grpc::Status fetched;
  EXPECT_FALSE(second_->Fetch(taken.manifest, {native.object().digest()}, &fetched).empty());
  EXPECT_TRUE(fetched.ok()) << fetched.error_message();
}

TEST_F(TierTunings, OfTwoThatMeasureAtATimeOneWins) {
  const auto make = [&](TestDaemon* daemon, const char* name) {
    return std::async(std::launch::async,
                      [=] { return daemon->Compile(absl::StrCat(kOwnTimeSlowly, "\nname ", name)); });
  };
  std::future<CompileResult> one = make(first_.get(), "one");
  std::future<CompileResult> other = make(second_.get(), "other");
  EXPECT_EQ(WinnerOf(one.get()).SerializeAsString(), WinnerOf(other.get()).SerializeAsString());
  EXPECT_EQ(first_->Stats().tunables_measured(), 1);
  EXPECT_EQ(second_->Stats().tunables_measured(), 1) << "they did not measure at a time";
  EXPECT_EQ(Records().size(), 1);
}

// Each goes by its own meanwhile; with the tier back the first to use its own is everybody's.
TEST_F(TierTunings, AnOutageEndsInOneWinner) {
  redis_->Kill();
  const CompileResult one = first_->Compile(kOwnTime), other = second_->Compile(kOwnTime);
  EXPECT_NE(WinnerOf(one).SerializeAsString(), WinnerOf(other).SerializeAsString());
  redis_->Start();
  const auto again = [&](TestDaemon& daemon, const char* name) {
    EXPECT_TRUE(Eventually([&] { return StatusOf(daemon).connected() && !StatusOf(daemon).breaker_open(); }));
    return WinnerOf(daemon.Compile(absl::StrCat(kOwnTime, "\nname ", name))).SerializeAsString();
  };
  EXPECT_EQ(again(*second_, "two"), WinnerOf(other).SerializeAsString());
  EXPECT_EQ(again(*first_, "three"), WinnerOf(other).SerializeAsString());
  EXPECT_EQ(first_->Stats().tunables_measured(), 1);
}

// What nobody trusted has signed is refused, taken out and replaced by what is measured here.
TEST_F(TierTunings, ADamagedWinnerIsReplaced) {
  const CompileResult made = MakeAndWrite(*first_, kOwnTime);
  ASSERT_EQ(Records().size(), 1);
  const std::string name = Records()[0];
  for (const std::string& lie : {std::string("a lie"), redis_->Ask({"GET", name}) + "x"}) {
    redis_->Ask({"SET", name, lie});
    TestDaemon third(Measuring("third", {"first", "second"}));
    MakeAndWrite(third, kOwnTime);
    EXPECT_EQ(third.Stats().tunables_measured(), 1);
    EXPECT_GE(StatusOf(third).refused(), 1);
    EXPECT_NE(redis_->Ask({"GET", name}), lie);
  }
  // Of a key that it does not trust it is as damaged.
  TestDaemon stranger(Measuring("stranger", {}));
  const CompileResult own = Make(stranger, kOwnTime);
  EXPECT_EQ(stranger.Stats().tunables_measured(), 1);
  EXPECT_NE(BytesOf(own), BytesOf(made));
}

// ---- A bad winner ----------------------------------------------------------------------------

class BadWinner : public TierTunings {
 protected:
  void SetUp() override {
    TierTunings::SetUp();
    if (IsSkipped()) return;
    bad_ = MakeAndWrite(*first_, kOwnTime);
    Make(*second_, absl::StrCat(kOwnTime, "\nname another"));  // it has the record as well
  }
  grpc::Status Remove(bool tuning, v1::RemoveReply* reply) {
    grpc::ClientContext context;
    v1::RemoveRequest request;
    request.set_key_prefix(ToHex(bad_.manifest.compile_key()));
    request.set_tuning(tuning);
    return first_->admin().Remove(&context, request, reply);
  }
  std::string WinnerAt(TestDaemon& daemon, const char* name) {
    return WinnerOf(daemon.Compile(absl::StrCat(kOwnTime, "\nname ", name))).SerializeAsString();
  }
  std::string Bad() const { return WinnerOf(bad_).SerializeAsString(); }

  CompileResult bad_;
};

TEST_F(BadWinner, IsMeasuredAnewAndNobodyBringsItBack) {
  v1::RemoveReply reply;
  ASSERT_TRUE(Remove(/*tuning=*/true, &reply).ok());
  EXPECT_EQ(reply.manifests(), 1);
  EXPECT_EQ(reply.tuning_records(), 1);
  EXPECT_TRUE(Records().empty());
  // Who still has it takes it no more, and what it finds now is everybody's.
  const std::string found = WinnerAt(*second_, "a third");
  EXPECT_NE(found, Bad());
  EXPECT_EQ(second_->Stats().tunables_measured(), 1);
  EXPECT_EQ(WinnerAt(*first_, "a fourth"), found);
  EXPECT_EQ(WinnerOf(first_->Compile(kOwnTime)).SerializeAsString(), found) << "the program came back";
  EXPECT_EQ(first_->Stats().tunables_measured(), 1);
  EXPECT_EQ(StatusOf(*second_).refused(), 0);
}

// The control: the record alone comes back by use.
TEST_F(BadWinner, RemovedWithoutItsRecordItStays) {
  v1::RemoveReply reply;
  ASSERT_TRUE(Remove(/*tuning=*/false, &reply).ok());
  EXPECT_EQ(reply.manifests(), 1);
  EXPECT_EQ(reply.tuning_records(), 0);
  for (const std::string& name : Records()) redis_->Ask({"DEL", name});
  EXPECT_EQ(WinnerAt(*second_, "a third"), Bad());
  EXPECT_EQ(WinnerAt(*first_, "a fourth"), Bad());
}

TEST_F(BadWinner, StaysWhereTheTierTakesNothing) {
  redis_->Kill();
  v1::RemoveReply reply;
  const grpc::Status refused = Remove(/*tuning=*/true, &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE) << refused.error_message();
  EXPECT_EQ(WinnerAt(*first_, "a third"), Bad());
  redis_->Start();
  EXPECT_TRUE(Eventually([&] { return StatusOf(*first_).connected(); }));
  EXPECT_TRUE(Remove(/*tuning=*/true, &reply).ok());
  EXPECT_EQ(reply.tuning_records(), 1);
}

}  // namespace
}  // namespace kiln
