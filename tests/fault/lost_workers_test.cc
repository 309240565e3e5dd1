// kilnd whose workers are killed, crash, hang, take all memory, or try to get out.
#include <signal.h>

#include <future>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/worker/sandbox.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

TEST(Server, AWorkerKilledFromOutsideCostsNothing) {
  TestDaemon daemon;
  auto compile = std::async(std::launch::async, [&] { return daemon.Compile("sleep_ms 700\nkernels 3"); });
  absl::SleepFor(absl::Milliseconds(300));
  for (pid_t pid : daemon.Workers()) kill(pid, SIGKILL);
  EXPECT_TRUE(compile.get().done);
  EXPECT_GE(daemon.Stats().worker_crashes(), 1);
  EXPECT_TRUE(Eventually([&] { return daemon.Workers().size() == 2; })) << "replaced";
}

TEST(Server, AWorkerKilledUnderManyCallersFailsNone) {
  TestDaemon daemon;
  constexpr uint32_t kCallers = 50;
  std::vector<std::future<CompileResult>> calls;
  for (uint32_t i = 0; i < kCallers; ++i) {
    calls.push_back(
        std::async(std::launch::async, [&] { return daemon.Compile("sleep_ms 2000\nkernels 3"); }));
  }
  ASSERT_TRUE(Eventually([&] {
    v1::JobsReply jobs;
    grpc::ClientContext context;
    return daemon.admin().Jobs(&context, {}, &jobs).ok() && jobs.jobs_size() == 1 &&
           jobs.jobs(0).waiters() == kCallers;
  }));
  for (pid_t pid : daemon.Workers()) kill(pid, SIGKILL);
  std::set<std::string> manifests;
  for (std::future<CompileResult>& call : calls) {
    CompileResult result = call.get();
    EXPECT_TRUE(result.done) << result.failed_reason;
    manifests.insert(result.manifest_bytes);
  }
  EXPECT_EQ(manifests.size(), 1u);
  EXPECT_GE(daemon.Stats().worker_crashes(), 1);
  EXPECT_LE(daemon.Stats().compiles(), 2);
}

TEST(Server, AKeyThatBringsDownTwoWorkersIsRefusedUntilRemoved) {
  TestDaemon daemon;
  const CompileResult result = daemon.Compile("crash");
  EXPECT_EQ(result.failed_code, grpc::FAILED_PRECONDITION);
  EXPECT_EQ(daemon.Stats().worker_crashes(), 2);
  EXPECT_EQ(daemon.Lookup("crash").failed().code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(daemon.Compile("crash").failed_code, grpc::FAILED_PRECONDITION);
  EXPECT_EQ(daemon.Stats().worker_crashes(), 2) << "no third";
  EXPECT_TRUE(daemon.Compile("name others").done) << "others are not hurt";

  const size_t quote = result.failed_reason.find("kilnctl rm ");
  ASSERT_NE(quote, std::string::npos) << result.failed_reason;
  grpc::ClientContext context;
  v1::RemoveRequest request;
  request.set_key_prefix(result.failed_reason.substr(quote + 11, 12));
  v1::RemoveReply reply;
  ASSERT_TRUE(daemon.admin().Remove(&context, request, &reply).ok());
  EXPECT_EQ(reply.removed(), 1);
  EXPECT_TRUE(daemon.Lookup("crash").has_miss());
}

TEST(Server, ACrashWhileEmittingIsRefusedToo) {
  TestDaemon daemon;
  EXPECT_EQ(daemon.Compile("emit crash").failed_code, grpc::FAILED_PRECONDITION);
}

TEST(Server, AGraphThatNeedsMoreMemoryThanAWorkerHasIsRefusedForNow) {
  if (!kBoundAddressSpace) GTEST_SKIP() << "a sanitizer's workers have no memory limit";
  TestDaemon daemon("workers { memory_bytes: 268435456 }");
  for (const char* script : {"exhaust", "emit exhaust"}) {
    const CompileResult result = daemon.Compile(script);
    // A code that clients do not try again, and words that tell what to do.
    EXPECT_EQ(result.failed_code, grpc::FAILED_PRECONDITION);
    EXPECT_EQ(result.failed_reason,
              "the compiler ran out of its memory of 256 MiB; workers.memory_bytes in the file of kilnd "
              "--config raises it");
    EXPECT_TRUE(daemon.Lookup(script).has_miss()) << "with more memory it may do";
  }
  EXPECT_EQ(daemon.Stats().worker_crashes(), 0);
  EXPECT_TRUE(daemon.Compile("name after").done);
}

TEST(Server, AHangingWorkerIsEndedAtItsLimit) {
  TestDaemon daemon("workers { plan_seconds_max: 1 }");
  const absl::Time start = absl::Now();
  const CompileResult result = daemon.Compile("hang");
  EXPECT_EQ(result.failed_code, grpc::DEADLINE_EXCEEDED);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(daemon.Stats().worker_timeouts(), 1);
  EXPECT_TRUE(daemon.Compile("name after").done);
}

TEST(Server, TheSandboxHolds) {
  TestDaemon daemon;
  const CompileResult result = daemon.Compile(absl::StrCat("probe ", daemon.pid()));
  ASSERT_TRUE(result.done) << result.failed_reason;
  for (const v1::Step& step : result.manifest.program().steps()) {
    EXPECT_FALSE(step.has_call()) << "not denied: " << step.call().target();
  }
}

}  // namespace
}  // namespace kiln
