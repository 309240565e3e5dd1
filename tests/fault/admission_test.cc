// Who gets a place of kilnd and who is refused one: callers who leave, a full queue, bytes of graphs,
// classes.
#include <algorithm>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "server/server_limits.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

size_t JobsIn(TestDaemon& daemon, const std::string& phase) {
  grpc::ClientContext context;
  v1::JobsReply reply;
  EXPECT_TRUE(daemon.admin().Jobs(&context, {}, &reply).ok());
  return absl::c_count_if(reply.jobs(), [&](const v1::JobInfo& job) { return job.phase() == phase; });
}

TEST(Server, WhatNobodyWaitsForIsStopped) {
  TestDaemon daemon;
  const CompileResult result = daemon.Compile("hang", {}, absl::Milliseconds(500));
  EXPECT_EQ(result.status.error_code(), grpc::DEADLINE_EXCEEDED);
  v1::StatusReply reply;
  EXPECT_TRUE(Eventually(
      [&] {
        grpc::ClientContext context;
        return daemon.admin().Status(&context, {}, &reply).ok() && reply.workers_busy() == 0 &&
               reply.running() == 0;
      },
      absl::Seconds(2)));
  EXPECT_EQ(daemon.Stats().worker_timeouts(), 0);
}

TEST(Server, ACallerWhoLeavesDoesNotHurtTheOthers) {
  TestDaemon daemon;
  auto impatient = std::async(std::launch::async,
                              [&] { return daemon.Compile("sleep_ms 900", {}, absl::Milliseconds(300)); });
  absl::SleepFor(absl::Milliseconds(100));
  const CompileResult patient = daemon.Compile("sleep_ms 900");
  EXPECT_TRUE(patient.done);
  EXPECT_EQ(impatient.get().status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(daemon.Stats().compiles(), 1);
}

// Control: a FlightTable whose `Leave` erases nothing that is queued keeps their places until a worker is
// free.
TEST(Server, CallersWhoLeaveTheQueueRefuseNobody) {
  TestDaemon daemon("admission { queue_max: 2 }");
  std::vector<std::thread> busy;
  for (int i = 0; i < 2; ++i) {
    busy.emplace_back(
        [&, i] { EXPECT_TRUE(daemon.Compile(absl::StrCat("sleep_ms 4000\nname busy", i)).durable); });
  }
  ASSERT_TRUE(Eventually([&] { return JobsIn(daemon, "planning") == 2; }));
  std::vector<std::thread> impatient;
  for (int i = 0; i < 2; ++i) {
    impatient.emplace_back([&, i] {
      const CompileResult result =
          daemon.Compile(absl::StrCat("name impatient", i), {}, absl::Milliseconds(500));
      EXPECT_EQ(result.status.error_code(), grpc::DEADLINE_EXCEEDED) << result.status.error_message();
    });
  }
  for (std::thread& thread : impatient) thread.join();
  ASSERT_TRUE(Eventually([&] { return JobsIn(daemon, "queued") == 0; }));
  for (int i = 0; i < 2; ++i) {
    busy.emplace_back([&, i] {
      const CompileResult result = daemon.Compile(absl::StrCat("name patient", i));
      EXPECT_TRUE(result.durable) << result.status.error_message();
    });
  }
  for (std::thread& thread : busy) thread.join();
}

TEST(Server, AFullQueueSaysSo) {
  TestDaemon daemon("admission { queue_max: 1 }");
  std::vector<std::future<CompileResult>> callers;
  for (int i = 0; i < 6; ++i) {
    callers.push_back(std::async(
        std::launch::async, [&daemon, i] { return daemon.Compile(absl::StrCat("sleep_ms 700\nname ", i)); }));
  }
  int done = 0, refused = 0;
  for (auto& caller : callers) {
    const CompileResult result = caller.get();
    done += result.done;
    refused += result.status.error_code() == grpc::RESOURCE_EXHAUSTED;
  }
  EXPECT_EQ(done, 3);
  EXPECT_EQ(refused, 3);
}

// The control is the test above: who does not wait as he is told is refused.
TEST(Server, ClientsOfAFullQueueWaitAsTheyAreToldAndAreServed) {
  TestDaemon daemon("admission { queue_max: 1 }");
  std::vector<std::future<absl::Status>> callers;
  for (int i = 0; i < 12; ++i) {
    callers.push_back(std::async(std::launch::async, [&daemon, i] {
      ClientOptions options;
      options.address = absl::StrCat("unix:", daemon.socket());
      options.name_space = "test";
      CompileRequestInput input;
      input.graph = absl::StrCat("sleep_ms 300\nname waits", i);
      input.sections = SectionsOf(input.graph);
      input.request_key = RequestKey(input.sections);
      return NewClient(options)->Get(input, /*compile=*/true).status();
    }));
  }
  for (auto& caller : callers) {
    const absl::Status status = caller.get();
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(daemon.Stats().compiles(), 12);
}

TEST(Server, ARefusalSaysWhenToComeAgain) {
  TestDaemon daemon("admission { queue_max: 1 }");
  std::vector<std::thread> busy;
  for (int i = 0; i < 3; ++i) {
    busy.emplace_back([&, i] { daemon.Compile(absl::StrCat("sleep_ms 1000\nname ", i)); });
  }
  ASSERT_TRUE(Eventually([&] { return JobsIn(daemon, "planning") == 2 && JobsIn(daemon, "queued") == 1; }));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  auto stream = daemon.compiler().Compile(&context);
  v1::CompileRequest request;
  request.mutable_header()->set_namespace_("test");
  *request.mutable_header()->mutable_sections() = SectionsOf("name late");
  request.mutable_header()->set_graph_bytes(9);
  stream->Write(request);
  v1::CompileEvent event;
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_EQ(stream->Finish().error_code(), grpc::RESOURCE_EXHAUSTED);
  for (std::thread& thread : busy) thread.join();
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto pushback = metadata.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, metadata.end());
  int milliseconds = 0;
  ASSERT_TRUE(absl::SimpleAtoi(std::string(pushback->second.data(), pushback->second.size()), &milliseconds));
  EXPECT_GE(milliseconds, 100);
  EXPECT_LE(milliseconds, 30'000);
}

// One tenant fills the queue; another gets its place all the same, and the greedy one's latest is refused.
TEST(Server, AFullQueueOfOneTenantHasAPlaceForAnother) {
  TestDaemon daemon("admission { queue_max: 10 }");
  std::vector<std::future<CompileResult>> greedy;
  for (int i = 0; i < 12; ++i) {
    greedy.push_back(std::async(std::launch::async, [&daemon, i] {
      return daemon.Compile(absl::StrCat("sleep_ms 500\nname ", i), {}, absl::Seconds(60), "greedy");
    }));
  }
  ASSERT_TRUE(Eventually([&] { return JobsIn(daemon, "planning") == 2 && JobsIn(daemon, "queued") == 10; }));
  const CompileResult modest = daemon.Compile("name modest", {}, absl::Seconds(60), "modest");
  EXPECT_TRUE(modest.done) << modest.status.error_message();
  // After those that ran and a few while its worker started, not after the nine that waited before; one is
  // refused.
  const auto is_over = [](std::future<CompileResult>& caller) {
    return caller.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  EXPECT_LE(std::count_if(greedy.begin(), greedy.end(), is_over), 2 + 4 + 1);
  int refused = 0;
  for (auto& caller : greedy) refused += caller.get().status.error_code() == grpc::RESOURCE_EXHAUSTED;
  EXPECT_EQ(refused, 1);
}

// Of a worker's two waiting compiles the one that came later goes first where the other is background. The
// controls: neither is, or an interactive caller has joined the background one.
TEST(Server, InteractiveCompilesOvertakeBackgroundOfTheirTenant) {
  struct Case {
    v1::WorkClass first, joins;
    bool overtakes;
  };
  for (const Case& one : {Case{v1::WORK_BACKGROUND, v1::WORK_BACKGROUND, true},
                          Case{v1::WORK_INTERACTIVE, v1::WORK_BACKGROUND, false},
                          Case{v1::WORK_BACKGROUND, v1::WORK_INTERACTIVE, false}}) {
    TestDaemon daemon("", {}, "", /*workers=*/1);
    absl::Mutex mutex;
    std::vector<std::string> order;
    std::vector<std::thread> callers;
    const auto ask = [&](const std::string& script, v1::WorkClass work_class) {
      callers.emplace_back([&, script, work_class] {
        const CompileResult result = daemon.Compile(HeaderOf(script, work_class), script, absl::Seconds(60));
        EXPECT_TRUE(result.done) << result.status.error_message();
        absl::MutexLock lock(&mutex);
        if (!result.joined) order.push_back(script.substr(script.find("name ")));
      });
    };
    ask("kernels 0\nsleep_ms 1500\nname busy", v1::WORK_INTERACTIVE);
    ASSERT_TRUE(Eventually([&] { return JobsIn(daemon, "planning") == 1; }));
    ask("kernels 0\nsleep_ms 700\nname first", one.first);
    ASSERT_TRUE(Eventually([&] { return JobsIn(daemon, "queued") == 1; }));
    ask("kernels 0\nsleep_ms 700\nname first", one.joins);
    ASSERT_TRUE(Eventually([&] { return daemon.Stats().joined() == 1; }));
    ask("kernels 0\nsleep_ms 700\nname second", v1::WORK_INTERACTIVE);
    ASSERT_TRUE(Eventually([&] { return JobsIn(daemon, "queued") == 2; }));
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(order, one.overtakes ? (std::vector<std::string>{"name busy", "name second", "name first"})
                                   : (std::vector<std::string>{"name busy", "name first", "name second"}));
  }
}

TEST(Server, AnUnknownClassIsTheCallersFault) {
  TestDaemon daemon;
  const CompileResult result =
      daemon.Compile(HeaderOf("name x", static_cast<v1::WorkClass>(7)), "name x", absl::Seconds(60));
  EXPECT_EQ(result.status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(result.status.error_message(), "work_class"))
      << result.status.error_message();
}

// Few graphs that are large: two fit, though there are places for many, until one goes.
TEST(Server, GraphsThatWaitAreBoundedInBytes) {
  TestDaemon daemon("admission { graph_bytes_max: 4194304 graphs_bytes_max: 20971520 }");
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::CompileRequest, v1::CompileEvent>> stream;
  };
  const auto ask = [&](const std::string& name) {
    auto call = std::make_unique<Call>();
    call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    call->stream = daemon.compiler().Compile(&call->context);
    v1::CompileRequest request;
    request.mutable_header()->set_namespace_("test");
    *request.mutable_header()->mutable_sections() = SectionsOf(name);
    request.mutable_header()->set_graph_bytes(4u << 20);
    call->stream->Write(request);
    return call;
  };
  const auto upload = [&](size_t calls) {
    return Eventually([&, calls] { return JobsIn(daemon, "uploading") == calls; });
  };
  const auto first = ask("first"), second = ask("second");
  ASSERT_TRUE(upload(2));
  const auto third = ask("third");
  v1::CompileEvent event;
  EXPECT_FALSE(third->stream->Read(&event));
  EXPECT_EQ(third->stream->Finish().error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(third->context.GetServerTrailingMetadata().contains("grpc-retry-pushback-ms"));
  first->context.TryCancel();
  ASSERT_TRUE(upload(1));
  const auto fourth = ask("fourth");
  EXPECT_TRUE(upload(2));
  second->context.TryCancel();
  fourth->context.TryCancel();
}

// Before it is unpacked, while it is, and after: whenever a caller leaves, nothing stays charged.
TEST(Server, UploadsThatAreCancelledLeaveNothingCharged) {
  TestDaemon daemon;
  const std::string padding(8u << 20, '\n');
  for (int i = 0; i < 40; ++i) {
    const std::string script = absl::StrCat("name x", i, padding);
    grpc::ClientContext context;
    const auto stream = daemon.compiler().Compile(&context);
    Send(HeaderOf(script, v1::WORK_INTERACTIVE), script, stream.get());
    absl::SleepFor(absl::Milliseconds(3 * (i % 8)));
    context.TryCancel();
    for (v1::CompileEvent event; stream->Read(&event);) {
    }
    stream->Finish().IgnoreError();
  }
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::TenantsReply reply;
    EXPECT_TRUE(daemon.admin().Tenants(&context, {}, &reply).ok());
    uint64_t charged = 0;
    for (const auto& tenant : reply.tenants()) charged += tenant.graphs_bytes();
    return charged == 0;
  }));
  EXPECT_TRUE(daemon.Compile("name after").done);
}

// Each keeps half a MiB of hints while it waits, and there is room for 16 MiB of one tenant's.
TEST(Server, HintsOfThoseWhoWaitAreBoundedInBytes) {
  TestDaemon daemon(absl::StrCat("admission { graph_bytes_max: 1048576 graphs_bytes_max: ", 12u << 20, " }"));
  const std::string script = "name x\nsleep_ms 6000";
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<CompileStream> stream;
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 40; ++i) {
    Call& call = *calls.emplace_back(std::make_unique<Call>());
    call.context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    call.stream = daemon.compiler().Compile(&call.context);
    v1::CompileHeader header = HeaderOf(script, v1::WORK_INTERACTIVE);
    header.mutable_hints()->mutable_values()->Resize(static_cast<int>(kHintsMax), 1);
    Send(header, script, call.stream.get());
  }
  int refused = 0, served = 0;
  for (const auto& call : calls) {
    bool done = false;
    for (v1::CompileEvent event; call->stream->Read(&event);) done = done || event.has_done();
    const bool exhausted = call->stream->Finish().error_code() == grpc::RESOURCE_EXHAUSTED;
    EXPECT_EQ(exhausted, call->context.GetServerTrailingMetadata().contains("grpc-retry-pushback-ms"));
    served += done;
    refused += exhausted;
  }
  EXPECT_GE(served, 10);
  EXPECT_GE(refused, 5);
}

}  // namespace
}  // namespace kiln
