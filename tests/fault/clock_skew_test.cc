// Daemons of one tier whose clocks differ by two days: they share programs, claims and refusals as others do,
// and believe each other's signatures.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/shifted_clock.h"
#include "tests/fault/tier_daemons.h"

namespace kiln {
namespace {

constexpr int64_t kDay = 24 * 3600;

class ClockSkew : public TierDaemons {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer wants to be the first library";
#endif
    TierDaemons::SetUp();
    if (IsSkipped()) return;
    ahead_clock_ = std::make_unique<ShiftedClock>();
    ahead_clock_->Set(kDay);
    ahead_ = std::make_unique<TestDaemon>(Config("ahead", {"behind"}));
    behind_clock_ = std::make_unique<ShiftedClock>();
    behind_clock_->Set(-kDay);
    behind_ = std::make_unique<TestDaemon>(Config("behind", {"ahead"}));
  }
  static std::vector<std::string> Scripts(const std::string& name) {
    std::vector<std::string> scripts;
    for (int i = 0; i < 10; ++i) scripts.push_back(absl::StrCat("name ", name, " ", i, "\nkernels 2"));
    return scripts;
  }
  static int64_t StartOf(TestDaemon& daemon) {
    grpc::ClientContext context;
    v1::StatusReply reply;
    EXPECT_TRUE(daemon.admin().Status(&context, {}, &reply).ok());
    return reply.started_unix_seconds();
  }

  std::unique_ptr<ShiftedClock> ahead_clock_, behind_clock_;
  std::unique_ptr<TestDaemon> ahead_, behind_;
};

// The control: their clocks do differ.
TEST_F(ClockSkew, IsTwoDays) {
  EXPECT_NEAR(static_cast<double>(StartOf(*ahead_) - StartOf(*behind_)), 2.0 * kDay, 600);
}

TEST_F(ClockSkew, ProgramsAreSharedBothWays) {
  struct Way {
    const char* name;
    TestDaemon *from, *to;
  };
  for (const auto& [name, from, to] :
       {Way{"ahead", ahead_.get(), behind_.get()}, Way{"behind", behind_.get(), ahead_.get()}}) {
    const std::vector<std::string> scripts = Scripts(name);
    EXPECT_EQ(CompileAll(*from, scripts), scripts.size());
    AwaitWrites(*from, scripts.size());
    EXPECT_EQ(CompileAll(*to, scripts), 0) << name;
    EXPECT_EQ(StatusOf(*to).hits(), scripts.size()) << name;
    for (const std::string& script : scripts)
      EXPECT_EQ(to->Compile(script).manifest_bytes, from->Compile(script).manifest_bytes) << script;
  }
  EXPECT_EQ(StatusOf(*ahead_).refused() + StatusOf(*behind_).refused(), 0);
}

TEST_F(ClockSkew, OneOfThemCompiles) {
  const std::string script = "name wanted\nsleep_ms 1000";
  std::vector<std::thread> callers;
  for (TestDaemon* daemon : {ahead_.get(), behind_.get()}) {
    for (int i = 0; i < 10; ++i) callers.emplace_back([=] { EXPECT_TRUE(daemon->Compile(script).done); });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(ahead_->Stats().compiles() + behind_->Stats().compiles(), 1);
}

TEST_F(ClockSkew, RefusalsOfTheCompilerAreSharedBothWays) {
  EXPECT_EQ(ahead_->Compile("refuse 12 no such operator").failed_code, 12);
  EXPECT_EQ(behind_->Compile("refuse 12 no other operator").failed_code, 12);
  AwaitWrites(*ahead_, 1);
  AwaitWrites(*behind_, 1);
  EXPECT_EQ(behind_->Compile("refuse 12 no such operator").failed_code, 12);
  EXPECT_EQ(ahead_->Compile("refuse 12 no other operator").failed_code, 12);
  EXPECT_EQ(ahead_->Stats().compiles() + behind_->Stats().compiles(), 2);
}

}  // namespace
}  // namespace kiln
