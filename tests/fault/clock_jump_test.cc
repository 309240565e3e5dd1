// The wall's clock is set back and forth by up to a day under a running kilnd. Promises: answers, limits and
// what is running do not depend on it; nothing that is in use is evicted for it; a restart at another time
// finds everything.
#include <csignal>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/shifted_clock.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

constexpr int64_t kDay = 24 * 3600;
constexpr int kPrograms = 20;

std::string Program(int i) { return absl::StrCat("kernels 2\nname program ", i); }

class ClockJump : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer wants to be the first library";
#endif
  }

  void Fill(TestDaemon& daemon) {
    for (int i = 0; i < kPrograms; ++i) {
      const CompileResult made = daemon.Compile(Program(i));
      ASSERT_TRUE(made.durable) << made.failed_reason;
      manifests_.push_back(made.manifest.SerializeAsString());
    }
  }
  // Programs that are not there, or are others than they were.
  int Missed(TestDaemon& daemon) {
    int missed = 0;
    for (int i = 0; i < kPrograms; ++i) {
      v1::Manifest manifest;
      const v1::LookupReply reply = daemon.Lookup(Program(i));
      EXPECT_TRUE(manifest.ParseFromString(reply.hit().manifest().manifest()));
      missed += !reply.has_hit() || manifest.SerializeAsString() != manifests_[static_cast<size_t>(i)];
    }
    return missed;
  }
  // As kilnd's clock says.
  static int64_t StartOf(TestDaemon& daemon) {
    grpc::ClientContext context;
    v1::StatusReply reply;
    EXPECT_TRUE(daemon.admin().Status(&context, {}, &reply).ok());
    return reply.started_unix_seconds();
  }

  ShiftedClock clock_;
  std::vector<std::string> manifests_;
};

TEST_F(ClockJump, ChangesNoAnswerAndEvictsNothing) {
  TestDaemon daemon;
  Fill(daemon);
  std::mt19937_64 random(20261128);
  const uint64_t entries = daemon.Stats().entries();
  const int jumps = Count(30, 300);
  for (int jump = 0; jump < jumps; ++jump) {
    const int64_t seconds = static_cast<int64_t>(random() % (2 * kDay)) - kDay;
    clock_.Set(seconds);
    EXPECT_EQ(Missed(daemon), 0) << "at " << seconds;
    EXPECT_TRUE(daemon.Compile(absl::StrCat("name after jump ", jump)).durable) << "at " << seconds;
  }
  EXPECT_EQ(daemon.Stats().entries(), entries + static_cast<uint64_t>(jumps));
  EXPECT_EQ(daemon.Stats().evicted(), 0);
  EXPECT_EQ(daemon.Stats().worker_timeouts(), 0);
  for (const int64_t seconds : {kDay, -kDay}) {
    EXPECT_EQ(daemon.Stop(SIGTERM), 0);
    clock_.Set(seconds);
    daemon.Start();
    EXPECT_EQ(Missed(daemon), 0) << "started anew at " << seconds;
    EXPECT_EQ(daemon.Stats().evicted(), 0);
  }
}

// What has not been used for long goes, by the time that has passed; the control: a start at another time,
// when nobody knows how long nobody was there.
TEST_F(ClockJump, ExpiresNothing) {
  TestDaemon daemon(
      "store { unused_seconds_max: 3600 entries_max: 20 }");  // so that each write asks for a sweep
  Fill(daemon);
  clock_.Set(kDay);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(daemon.Compile(absl::StrCat("name after the jump ", i)).durable);
  absl::SleepFor(absl::Seconds(1));
  EXPECT_EQ(daemon.Stats().evicted(), 0);
  EXPECT_EQ(Missed(daemon), 0);
  EXPECT_EQ(daemon.Stop(SIGTERM), 0);
  clock_.Set(2 * kDay);
  daemon.Start();
  EXPECT_TRUE(daemon.Compile("name a day later").durable);
  EXPECT_TRUE(Eventually([&] { return daemon.Stats().evicted() > 0; }));
}

// Both ways: a limit is not passed by a jump, and not put off by it.
TEST_F(ClockJump, MovesNoLimit) {
  TestDaemon daemon("workers { plan_seconds_max: 3 }");
  for (const int64_t seconds : {kDay, -kDay}) {
    clock_.Set(0);
    CompileResult slow, endless;
    std::thread calls[] = {
        std::thread([&] { slow = daemon.Compile(absl::StrCat("sleep_ms 1500\nname slow ", seconds)); }),
        std::thread([&] { endless = daemon.Compile(absl::StrCat("hang\nname endless ", seconds)); })};
    EXPECT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      v1::StatusReply reply;
      return daemon.admin().Status(&context, {}, &reply).ok() && reply.workers_busy() == 2;
    }));
    clock_.Set(seconds);
    for (std::thread& call : calls) call.join();
    EXPECT_TRUE(slow.durable) << slow.failed_reason << slow.status.error_message();
    EXPECT_EQ(endless.failed_code, grpc::DEADLINE_EXCEEDED) << endless.failed_reason;
  }
  EXPECT_EQ(daemon.Stats().worker_timeouts(), 2);
}

// A client who says nothing is cut off in time, wherever the clock was set while kilnd waited for him.
TEST_F(ClockJump, HoldsNoSilentClient) {
  TestDaemon daemon("admission { silent_seconds_max: 2 }");
  for (const int64_t seconds : {kDay, -kDay}) {
    clock_.Set(0);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    auto stream = daemon.compiler().Compile(&context);
    v1::CompileRequest request;
    request.mutable_header()->set_namespace_("test");
    *request.mutable_header()->mutable_sections() = SectionsOf("name silent");
    request.mutable_header()->set_graph_bytes(100);
    stream->Write(request);
    absl::SleepFor(absl::Milliseconds(500));
    clock_.Set(seconds);
    v1::CompileEvent event;
    while (stream->Read(&event)) {
    }
    EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED) << "at " << seconds;
  }
}

// Of a graph's callers another is asked for it in time, where the first does not send it.
TEST_F(ClockJump, PutsOffNoOtherUpload) {
  TestDaemon daemon;
  const std::string script = "name wanted by two";
  grpc::ClientContext context;
  auto silent = daemon.compiler().Compile(&context);
  v1::CompileRequest request;
  request.mutable_header()->set_namespace_("test");
  *request.mutable_header()->mutable_sections() = SectionsOf(script);
  request.mutable_header()->set_graph_bytes(script.size());
  silent->Write(request);
  ASSERT_TRUE(Eventually([&] { return daemon.Lookup(script).has_in_flight(); }));
  CompileResult other;
  std::thread caller([&] { other = daemon.Compile(script, {}, absl::Seconds(30)); });
  absl::SleepFor(absl::Seconds(1));
  clock_.Set(-kDay);
  caller.join();
  EXPECT_TRUE(other.durable) << other.failed_reason << other.status.error_message();
  context.TryCancel();
}

// The control: kilnd does read the clock that is set. A key is refused for a day of it.
TEST_F(ClockJump, IsSeenByTheDaemon) {
  TestDaemon daemon;
  const int64_t before = StartOf(daemon);
  EXPECT_EQ(daemon.Compile("crash").failed_code, grpc::FAILED_PRECONDITION);
  EXPECT_EQ(daemon.Lookup("crash").failed().code(), grpc::FAILED_PRECONDITION);
  clock_.Set(kDay + 60);
  // Abseil's clock follows within two seconds.
  EXPECT_TRUE(Eventually([&] { return daemon.Lookup("crash").has_miss(); }));
  EXPECT_EQ(daemon.Stop(SIGTERM), 0);
  daemon.Start();
  EXPECT_GE(StartOf(daemon), before + kDay);
}

}  // namespace
}  // namespace kiln
