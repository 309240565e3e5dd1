// A daemon that is drained by hand: what it serves, whom it refuses and how, and that questions do not keep
// it from its end.
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

uint64_t Drain(TestDaemon& daemon, bool undo = false) {
  grpc::ClientContext context;
  v1::DrainRequest request;
  request.set_undo(undo);
  v1::DrainReply reply;
  const grpc::Status status = daemon.admin().Drain(&context, request, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.drained(), !undo);
  return reply.flights();
}

CompileRequestInput InputOf(const std::string& script) {
  CompileRequestInput input;
  input.graph = script;
  input.sections = SectionsOf(script);
  input.request_key = RequestKey(input.sections);
  return input;
}

// They do not wait for it, and do not take it for dead: its hits still count.
TEST(Drain, ClientsAreRefusedAtOnceAndStillHaveHits) {
  TestDaemon daemon;
  ClientOptions options;
  options.address = absl::StrCat("unix:", daemon.socket());
  options.name_space = "test";
  const std::unique_ptr<Client> client = NewClient(options);
  ASSERT_TRUE(daemon.Compile("name stored").durable);
  EXPECT_EQ(Drain(daemon), 0u);
  for (int i = 0; i < 3; ++i) {
    const absl::Time begin = absl::Now();
    const absl::Status refused = client->Get(InputOf("name new"), /*compile=*/true).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "drained")) << refused;
    EXPECT_LT(absl::Now() - begin, absl::Seconds(4)) << "the pushback is longer";
    const auto hit = client->Get(InputOf("name stored"), /*compile=*/true);
    ASSERT_TRUE(hit.ok()) << hit.status();
    EXPECT_TRUE(hit->hit);
  }
  Drain(daemon, /*undo=*/true);
  EXPECT_TRUE(client->Get(InputOf("name new"), /*compile=*/true).ok()) << "the control";
}

TEST(Drain, ARefusalSaysWhenToComeAgain) {
  TestDaemon daemon;
  Drain(daemon);
  grpc::ClientContext context;
  auto stream = daemon.compiler().Compile(&context);
  Send("test", "name new", stream.get());
  v1::CompileEvent event;
  while (stream->Read(&event)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  EXPECT_TRUE(context.GetServerTrailingMetadata().contains("grpc-retry-pushback-ms"));
}

TEST(Drain, WhatWaitsGoesOnAndWhoJoinsItIsServed) {
  TestDaemon daemon("", {}, "", /*workers=*/1);
  CompileResult first, second, joined;
  std::thread running([&] { first = daemon.Compile("sleep_ms 5000\nname first"); });
  ASSERT_TRUE(Eventually([&] { return daemon.Lookup("sleep_ms 5000\nname first").has_in_flight(); }));
  std::thread queued([&] { second = daemon.Compile("name second"); });
  ASSERT_TRUE(Eventually([&] { return daemon.Lookup("name second").has_in_flight(); }));
  // It holds a place once its graph is here.
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::JobsReply jobs;
    daemon.admin().Jobs(&context, v1::JobsRequest(), &jobs);
    for (const v1::JobInfo& job : jobs.jobs()) {
      if (job.phase() == "queued") return true;
    }
    return false;
  }));
  EXPECT_EQ(Drain(daemon), 2u);
  std::thread joins([&] { joined = daemon.Compile("name second"); });
  running.join();
  queued.join();
  joins.join();
  EXPECT_TRUE(first.durable && second.durable && joined.done);
  EXPECT_EQ(Drain(daemon), 0u);
}

// Who asks for the connections, which are the server's, while that ends.
TEST(Drain, QuestionsDoNotKeepADaemonFromItsEnd) {
  for (int round = 0; round < 5; ++round) {
    TestDaemon daemon;
    std::atomic<bool> over{false};
    std::vector<std::thread> askers;
    for (int i = 0; i < 4; ++i) {
      askers.emplace_back([&] {
        while (!over) {
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
          v1::TenantsReply reply;
          daemon.admin().Tenants(&context, v1::TenantsRequest(), &reply);
        }
      });
    }
    absl::SleepFor(absl::Milliseconds(50 * round));
    const int status = daemon.Stop(SIGTERM);
    over = true;
    for (std::thread& asker : askers) asker.join();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

}  // namespace
}  // namespace kiln
