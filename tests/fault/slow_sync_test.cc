// A store whose syncs take seconds. Promises: who has his program does not wait for them, and that he has
// left ends no compile and no write.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

constexpr absl::Duration kSync = absl::Seconds(3);  // as slow_sync.cc has it

class SlowSync : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer wants to be the first library";
#endif
    char path[] = "/tmp/kiln-test-sync-XXXXXX";
    close(mkstemp(path));
    slow_ = path;
    unlink(path);
    setenv("KILN_TEST_SLOW_SYNC", path, 1);
    setenv("LD_PRELOAD", SLOW_SYNC, 1);
    daemon_ = std::make_unique<TestDaemon>();
    unsetenv("LD_PRELOAD");
  }
  void TearDown() override {
    SetSlow(false);
    unsetenv("KILN_TEST_SLOW_SYNC");
  }
  void SetSlow(bool slow) const {
    if (slow) {
      std::ofstream(slow_).put('1');
    } else {
      unlink(slow_.c_str());
    }
  }
  absl::StatusOr<CompiledArtifact> Get(const std::string& script) const {
    ClientOptions options;
    options.address = absl::StrCat("unix:", daemon_->socket());
    options.name_space = "test";
    CompileRequestInput input;
    input.graph = script;
    input.sections = SectionsOf(script);
    input.request_key = RequestKey(input.sections);
    return NewClient(options)->Get(input, /*compile=*/true);
  }

  std::string slow_;
  std::unique_ptr<TestDaemon> daemon_;
};

TEST_F(SlowSync, WhoHasHisProgramDoesNotWait) {
  ASSERT_TRUE(daemon_->Compile("name first").durable);  // workers and store are warm
  SetSlow(true);
  absl::Time begin = absl::Now();
  const auto compiled = Get("kernels 2\nname mine");
  const absl::Duration took = absl::Now() - begin;
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(compiled->objects.size(), 2u);
  EXPECT_TRUE(compiled->not_kept.empty()) << compiled->not_kept;
  EXPECT_LT(took, kSync);
  // The control: who reads to the end of the answer waits for the sync.
  begin = absl::Now();
  EXPECT_TRUE(daemon_->Compile("name other").durable);
  EXPECT_GE(absl::Now() - begin, kSync);
}

TEST_F(SlowSync, WhatItsCallerLeftIsKept) {
  ASSERT_TRUE(daemon_->Compile("name first").durable);
  SetSlow(true);
  ASSERT_TRUE(Get("kernels 2\nname mine").ok());
  EXPECT_EQ(daemon_->Stats().compiles(), 2u);
  EXPECT_EQ(daemon_->Lookup("kernels 2\nname mine").kind_case(), v1::LookupReply::kInFlight)
      << "its sync runs";
  SetSlow(false);
  // A caller of the same store who is told that his own is durable: what was written before his is as well.
  EXPECT_TRUE(daemon_->Compile("name behind").durable);
  daemon_->Stop(SIGKILL);
  daemon_->Start();
  EXPECT_EQ(daemon_->Lookup("kernels 2\nname mine").kind_case(), v1::LookupReply::kHit);
}

}  // namespace
}  // namespace kiln
