// Callers who leave in the middle of a compile, many in a row. Promises: work that nobody waits for stops; no
// worker stays busy, no process stays behind, no place in the queue is lost.
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

constexpr int kWorkers = 4;
constexpr int kPlaces = 4;  // of the queue

// A compile that its caller can leave.
class Call {
 public:
  Call(TestDaemon& daemon, const std::string& script) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stream_ = daemon.compiler().Compile(&context_);
    Send("test", script, stream_.get());
  }
  // Reads events up to one of this kind.
  bool Await(v1::CompileEvent::KindCase kind) {
    v1::CompileEvent event;
    while (stream_->Read(&event)) {
      if (event.kind_case() == kind) return true;
    }
    return false;
  }
  grpc::Status Leave() {
    context_.TryCancel();
    return End();
  }
  // As kilnd ended it.
  grpc::Status End() {
    v1::CompileEvent event;
    while (stream_->Read(&event)) {
    }
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::CompileRequest, v1::CompileEvent>> stream_;
};

v1::StatusReply StatusOf(TestDaemon& daemon) {
  grpc::ClientContext context;
  v1::StatusReply reply;
  EXPECT_TRUE(daemon.admin().Status(&context, {}, &reply).ok());
  return reply;
}

bool Idle(TestDaemon& daemon, pid_t zygote) {
  const v1::StatusReply status = StatusOf(daemon);
  const std::vector<ProcessFacts> workers = MembersOf(zygote);
  return status.workers_busy() == 0 && status.running() == 0 && status.queued() == 0 &&
         workers.size() == kWorkers &&
         absl::c_all_of(workers, [](const ProcessFacts& worker) { return worker.state != 'Z'; });
}

void LeaveInTheMiddle(TestDaemon& daemon, int i) {
  std::minstd_rand random(static_cast<uint32_t>(i + 1));
  const bool emitting = i % 2 == 0;
  while (true) {
    Call call(daemon, absl::StrCat(emitting ? "emit hang" : "hang", "\nname left ", i));
    if (call.Await(emitting ? v1::CompileEvent::kPlanned : v1::CompileEvent::kQueued)) {
      absl::SleepFor(absl::Milliseconds(random() % 30));
      EXPECT_EQ(call.Leave().error_code(), grpc::CANCELLED);
      return;
    }
    // Those who left a moment ago may still have their places.
    ASSERT_EQ(call.End().error_code(), grpc::RESOURCE_EXHAUSTED);
    absl::SleepFor(absl::Milliseconds(20));
  }
}

grpc::Status Ask(TestDaemon& daemon, absl::Duration limit) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(limit));
  v1::StatusReply reply;
  return daemon.admin().Status(&context, {}, &reply);
}

// kilnd has two threads for what people ask.
TEST(Cancellation, WhatPeopleAskedEndsWithThem) {
  TestDaemon daemon("", {}, "", /*workers=*/1);
  const CompileResult shown = daemon.Compile("name shown\nkernels 3");
  ASSERT_TRUE(shown.done);
  std::thread busy([&] { daemon.Compile("hang", {}, absl::Seconds(12)); });
  const absl::Cleanup join = [&] { busy.join(); };
  ASSERT_TRUE(Eventually([&] {
    v1::StatusReply reply;
    grpc::ClientContext context;
    return daemon.admin().Status(&context, {}, &reply).ok() && reply.workers_busy() == 1;
  }));
  std::vector<std::thread> people;
  for (int i = 0; i < 2; ++i) {
    people.emplace_back([&] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(4));
      v1::ShowRequest request;
      request.set_key_prefix(absl::BytesToHexString(shown.manifest.compile_key()));
      request.set_listings(true);
      v1::ShowReply reply;
      EXPECT_EQ(daemon.admin().Show(&context, request, &reply).error_code(), grpc::DEADLINE_EXCEEDED);
    });
  }
  absl::SleepFor(absl::Seconds(1));
  // The control: they wait for the worker, and hold both threads.
  EXPECT_EQ(Ask(daemon, absl::Seconds(1)).error_code(), grpc::DEADLINE_EXCEEDED);
  for (std::thread& person : people) person.join();
  EXPECT_EQ(Ask(daemon, absl::Seconds(4)).error_code(), grpc::OK) << "the worker is busy for longer";
}

TEST(Cancellation, LeavesNoWorkNoProcessAndNoPlaceBehind) {
  const int calls = Count(100, 1'000);
  TestDaemon daemon(absl::StrCat("admission { queue_max: ", kPlaces, " }"), {}, "", kWorkers);
  const pid_t zygote = ChildrenOf(daemon.pid()).at(0);
  ASSERT_TRUE(Eventually([&] { return Idle(daemon, zygote); }));
  std::atomic<int> next{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < kWorkers; ++t) {
    callers.emplace_back([&] {
      for (int i = next++; i < calls; i = next++) LeaveInTheMiddle(daemon, i);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(Eventually([&] { return Idle(daemon, zygote); }));
  EXPECT_EQ(daemon.Stats().worker_timeouts(), 0) << "at the deadline, not with their callers";
  EXPECT_EQ(daemon.Stats().worker_crashes(), 0);

  // Every place is free: as many as there are places are taken, and one more is not.
  std::vector<std::unique_ptr<Call>> placed;
  for (int i = 0; i < kWorkers + kPlaces; ++i) {
    placed.push_back(std::make_unique<Call>(daemon, absl::StrCat("hang\nname placed ", i)));
    ASSERT_TRUE(placed.back()->Await(v1::CompileEvent::kQueued)) << i;
    if (i < kWorkers) {
      ASSERT_TRUE(Eventually([&] { return StatusOf(daemon).workers_busy() == uint32_t(i) + 1; }));
    }
  }
  EXPECT_EQ(daemon.Compile("name one too many").status.error_code(), grpc::RESOURCE_EXHAUSTED);
  // The control: who does not leave keeps his worker.
  EXPECT_FALSE(Eventually([&] { return Idle(daemon, zygote); }, absl::Seconds(1)));
  for (const std::unique_ptr<Call>& call : placed) call->Leave();
  EXPECT_TRUE(Eventually([&] { return Idle(daemon, zygote); }));
  EXPECT_TRUE(daemon.Compile("name after").durable);

  const int status = daemon.Stop(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(Eventually([&] { return MembersOf(zygote).empty(); })) << "orphans";
}

}  // namespace
}  // namespace kiln
