// What kilnd keeps of who used what: hits and compiles as it counts them, calls as clients tell.
#include <signal.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "compiler/graph/key.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "kiln/run_count.h"
#include "server/server_limits.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

// Zeros where there is no such row.
v1::JobUse UseOf(TestDaemon& daemon, const std::string& tenant, const std::string& job) {
  const v1::StatsReply stats = daemon.Stats();
  for (const v1::JobUse& use : stats.uses()) {
    if (use.tenant() == tenant && use.job() == job && !use.several()) return use;
  }
  return {};
}

std::unique_ptr<Client> ClientOf(const TestDaemon& daemon, const std::string& job) {
  ClientOptions options;
  options.address = absl::StrCat("unix:", daemon.socket());
  options.name_space = "test";
  options.job = job;
  return NewClient(options);
}

absl::Status GetWith(Client& client, const std::string& script) {
  CompileRequestInput input;
  input.graph = script;
  input.sections = SectionsOf(script);
  input.request_key = RequestKey(input.sections);
  return client.Get(input, /*compile=*/true).status();
}

v1::LookupRequest LookupOf(const std::string& script) {
  v1::LookupRequest request;
  request.set_namespace_("test");
  request.set_request_key(RequestKey(SectionsOf(script)));
  return request;
}

grpc::Status Look(TestDaemon& daemon, const v1::LookupRequest& request) {
  grpc::ClientContext context;
  v1::LookupReply reply;
  return daemon.compiler().Lookup(&context, request, &reply);
}

grpc::Status Report(TestDaemon& daemon, const std::string& ns, const std::string& job, uint64_t executed) {
  grpc::ClientContext context;
  v1::ReportUseRequest request;
  request.set_namespace_(ns);
  request.set_job(job);
  request.mutable_use()->set_executed(executed);
  v1::ReportUseReply reply;
  return daemon.compiler().ReportUse(&context, request, &reply);
}

TEST(UseReports, CallsComeWithTheNextLookUpAndAtTheEnd) {
  TestDaemon daemon;
  TakeRuns();
  const std::unique_ptr<Client> client = ClientOf(daemon, "night");
  ASSERT_TRUE(GetWith(*client, "name a").ok());
  EXPECT_EQ(UseOf(daemon, "test", "night").executed(), 0);
  for (int i = 0; i < 3; ++i) CountRun();
  ASSERT_TRUE(GetWith(*client, "name b").ok());
  EXPECT_EQ(UseOf(daemon, "test", "night").executed(), 3);
  for (int i = 0; i < 4; ++i) CountRun();
  client->ReportUse(absl::Seconds(30));
  EXPECT_EQ(UseOf(daemon, "test", "night").executed(), 7);
  client->ReportUse(absl::Seconds(30));  // nothing is told twice
  EXPECT_EQ(UseOf(daemon, "test", "night").executed(), 7);
  EXPECT_EQ(UseOf(daemon, "test", "night").compiles(), 2);
  EXPECT_EQ(UseOf(daemon, "test", "night").hits(), 0);
}

TEST(UseReports, AHitSavesWhatItsCompileTookAlsoAfterARestart) {
  TestDaemon daemon;
  ASSERT_TRUE(GetWith(*ClientOf(daemon, "first"), "sleep_ms 60").ok());
  EXPECT_EQ(UseOf(daemon, "test", "first").seconds_saved(), 0);
  ASSERT_TRUE(GetWith(*ClientOf(daemon, "second"), "sleep_ms 60").ok());
  const v1::JobUse once = UseOf(daemon, "test", "second");
  EXPECT_EQ(once.hits(), 1);
  EXPECT_EQ(once.compiles(), 0);
  EXPECT_GE(once.seconds_saved(), 0.06);
  ASSERT_TRUE(GetWith(*ClientOf(daemon, "second"), "sleep_ms 60").ok());
  EXPECT_NEAR(UseOf(daemon, "test", "second").seconds_saved(), 2 * once.seconds_saved(), 1e-9);
  daemon.Stop(SIGTERM);
  daemon.Start();
  ASSERT_TRUE(GetWith(*ClientOf(daemon, "third"), "sleep_ms 60").ok());
  EXPECT_NEAR(UseOf(daemon, "test", "third").seconds_saved(), once.seconds_saved(), 1e-9);
}

TEST(UseReports, ADaemonThatIsAwayOrSilentKeepsNobodyAtTheEnd) {
  TestDaemon daemon;
  TakeRuns();
  const std::unique_ptr<Client> client = ClientOf(daemon, "");
  CountRun();
  client->ReportUse(absl::Milliseconds(50));  // it never asked anything: there is nobody to be told
  ASSERT_TRUE(GetWith(*client, "name a").ok());
  ASSERT_EQ(kill(daemon.pid(), SIGSTOP), 0);
  CountRun();
  client->ReportUse(absl::Milliseconds(50));  // without a limit: never
  EXPECT_EQ(TakeRuns(), 0) << "it is dropped";
  ASSERT_EQ(kill(daemon.pid(), SIGCONT), 0);
  daemon.Stop(SIGKILL);
  CountRun();
  client->ReportUse(absl::Milliseconds(50));
  EXPECT_EQ(TakeRuns(), 0);
}

TEST(UseReports, WhatIsTooMuchIsRefusedOrCut) {
  TestDaemon daemon;
  v1::LookupRequest request = LookupOf("name a");
  request.mutable_use()->set_executed(kExecutedMax + 1);
  const grpc::Status refused = Look(daemon, request);
  EXPECT_EQ(refused.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(refused.error_message(), "use.executed")) << refused.error_message();
  EXPECT_EQ(Report(daemon, "test", "", kExecutedMax + 1).error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(Report(daemon, std::string(kNamespaceBytesMax + 1, 'n'), "", 1).error_code(),
            grpc::INVALID_ARGUMENT);
  EXPECT_EQ(daemon.Stats().uses_size(), 0);
  request.mutable_use()->set_executed(kExecutedMax);
  EXPECT_TRUE(Look(daemon, request).ok());
  EXPECT_EQ(UseOf(daemon, "test", "").executed(), kExecutedMax);
  // 255 bytes and a character of two, of which none or both are kept: one alone would spoil the answer.
  ASSERT_TRUE(Report(daemon, "test", absl::StrCat(std::string(255, 'j'), "\xc3\xa9 and more"), 5).ok());
  EXPECT_EQ(UseOf(daemon, "test", std::string(255, 'j')).executed(), 5);
  ASSERT_TRUE(Report(daemon, "test", absl::StrCat(std::string(254, 'k'), "\xc3\xa9 and more"), 6).ok());
  EXPECT_EQ(UseOf(daemon, "test", absl::StrCat(std::string(254, 'k'), "\xc3\xa9")).executed(), 6);
}

TEST(UseReports, NamesWithoutEndTakeNoPlaceWithoutEnd) {
  TestDaemon daemon;
  constexpr size_t kJobs = kUseJobsMax + 50;
  for (size_t i = 0; i < kJobs; ++i) ASSERT_TRUE(Report(daemon, "test", absl::StrCat("job", i), 2).ok());
  const v1::StatsReply stats = daemon.Stats();
  ASSERT_EQ(stats.uses_size(), kUseJobsMax + 1);
  EXPECT_TRUE(stats.uses().rbegin()->several());
  uint64_t executed = 0;
  for (const v1::JobUse& use : stats.uses()) executed += use.executed();
  EXPECT_EQ(executed, 2 * kJobs);
}

}  // namespace
}  // namespace kiln
