// SIGTERM under load, many times over one store. Promises: what runs is finished or handed back, the exit
// code is 0 within the grace, and what was acknowledged as durable is there for the next kilnd.
#include <signal.h>
#include <sys/wait.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

constexpr int kCallers = 4;
constexpr absl::Duration kGrace = absl::Seconds(30);  // the default of drain_seconds

// Callers who compile one graph after the other until the daemon goes.
class Load {
 public:
  Load(TestDaemon& daemon, int round) {
    for (int caller = 0; caller < kCallers; ++caller) {
      threads_.emplace_back([this, &daemon, round, caller] {
        for (int i = 0;; ++i) {
          const std::string script =
              absl::StrCat("kernels 2\nsleep_ms ", i % 4 * 5, "\nname ", round, " ", caller, " ", i);
          const CompileResult result = daemon.Compile(script);
          absl::MutexLock lock(&mutex_);
          if (result.durable) acknowledged_.push_back(script);
          if (result.durable) continue;
          // Handed back, or too late to be looked at: gRPC cancels what reaches a server that ends.
          const grpc::StatusCode code = result.status.error_code();
          EXPECT_TRUE(code == grpc::UNAVAILABLE || code == grpc::CANCELLED)
              << code << " " << result.failed_reason << " " << result.status.error_message();
          return;
        }
      });
    }
    threads_.emplace_back([this, &daemon, round] { AskByLibrary(daemon, round); });
  }
  std::vector<std::string> Join() {
    for (std::thread& thread : threads_) thread.join();
    absl::MutexLock lock(&mutex_);
    return acknowledged_;
  }

 private:
  // What libkiln makes of it: who asked is never told that he had cancelled.
  void AskByLibrary(TestDaemon& daemon, int round) {
    ClientOptions options;
    options.address = absl::StrCat("unix:", daemon.socket());
    options.name_space = "test";
    options.connect_seconds = 0.2;
    const std::unique_ptr<Client> client = NewClient(options);
    for (int i = 0;; ++i) {
      CompileRequestInput input;
      input.graph = absl::StrCat("name library ", round, " ", i);
      input.sections = SectionsOf(input.graph);
      input.request_key = RequestKey(input.sections);
      const absl::Status status = client->Get(input, /*compile=*/true).status();
      if (status.ok()) continue;
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      return;
    }
  }

  absl::Mutex mutex_;
  std::vector<std::string> acknowledged_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

int Lost(TestDaemon& daemon, const std::vector<std::string>& acknowledged) {
  int lost = 0;
  for (const std::string& script : acknowledged) lost += !daemon.Lookup(script).has_hit();
  return lost;
}

TEST(Termination, UnderLoadLosesNothingAndEndsInTime) {
  const int rounds = Count(10, 100);
  std::mt19937 random(20261127);
  TestDaemon daemon;
  std::vector<std::string> all;
  for (int round = 0; round < rounds; ++round) {
    Load load(daemon, round);
    absl::SleepFor(absl::Milliseconds(50 + random() % 200));
    kill(daemon.pid(), SIGTERM);
    const int status = daemon.Wait(kGrace);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "round " << round << ": " << status;
    const std::vector<std::string> acknowledged = load.Join();
    daemon.Start();
    EXPECT_EQ(Lost(daemon, acknowledged), 0) << "round " << round;
    all.insert(all.end(), acknowledged.begin(), acknowledged.end());
  }
  EXPECT_EQ(Lost(daemon, all), 0);
  std::printf("%d SIGTERMs: %zu compiles were acknowledged, none lost\n", rounds, all.size());
  EXPECT_GT(all.size(), static_cast<size_t>(rounds));
}

// The control: what outlasts the grace is cut off, not acknowledged, and not there afterwards.
TEST(Termination, WhatOutlastsTheGraceIsNotAcknowledged) {
  TestDaemon daemon("drain_seconds: 1");
  const std::string script = "sleep_ms 20000\nname long";
  std::thread caller([&] { EXPECT_FALSE(daemon.Compile(script).durable); });
  ASSERT_TRUE(Eventually([&] { return daemon.Lookup(script).has_in_flight(); }));
  const int status = daemon.Stop(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  caller.join();
  daemon.Start();
  EXPECT_EQ(Lost(daemon, {script}), 1);
}

}  // namespace
}  // namespace kiln
