// kilnd from outside: one flight a key, variants, refusals, lost and hanging workers, end of life.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/protocol.h"
#include "compiler/support/zstd.h"
#include "compiler/worker/sandbox.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "server/rpc/request_limits.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

size_t JobsIn(TestDaemon& daemon, const std::string& phase) {
  grpc::ClientContext context;
  v1::JobsReply reply;
  EXPECT_TRUE(daemon.admin().Jobs(&context, {}, &reply).ok());
  return absl::c_count_if(reply.jobs(), [&](const v1::JobInfo& job) { return job.phase() == phase; });
}

TEST(Server, CompilesOnceThenHitsAndServesTheObjects) {
  TestDaemon daemon;
  EXPECT_TRUE(daemon.Lookup("kernels 3").has_miss());
  const CompileResult first = daemon.Compile("kernels 3");
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  ASSERT_TRUE(first.done);
  EXPECT_TRUE(first.durable);
  ASSERT_EQ(first.manifest.kernels_size(), 3);

  const v1::LookupReply hit = daemon.Lookup("kernels 3");
  ASSERT_TRUE(hit.has_hit());
  v1::Manifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(hit.hit().manifest().manifest()));
  EXPECT_EQ(manifest.SerializeAsString(), first.manifest.SerializeAsString());
  const v1::ObjectRef& ref = manifest.kernels(1).object();
  grpc::Status status;
  const std::string packed = daemon.Fetch(manifest, {ref.digest()}, &status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(packed.size(), ref.packed_size());
  const auto raw = ZstdDecompress(packed, ref.raw_size());
  ASSERT_TRUE(raw.ok());
  EXPECT_EQ(Sha256(*raw), ref.digest());

  const v1::StatsReply stats = daemon.Stats();
  EXPECT_EQ(stats.lookups(), 2);
  EXPECT_EQ(stats.hits(), 1);
  EXPECT_EQ(stats.misses(), 1);
  EXPECT_EQ(stats.compiles(), 1);
  EXPECT_EQ(stats.entries(), 1);
  EXPECT_EQ(stats.kernels_emitted(), 3);
  EXPECT_GT(stats.bytes(), 0);
}

TEST(Server, ServesOnlyWhatTheVariantNames) {
  TestDaemon daemon;
  const CompileResult a = daemon.Compile("name a");
  const CompileResult b = daemon.Compile("name b");
  grpc::Status status;
  daemon.Fetch(a.manifest, {b.manifest.kernels(0).object().digest()}, &status);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  v1::Manifest stranger = a.manifest;
  stranger.set_namespace_("other");
  daemon.Fetch(stranger, {a.manifest.kernels(0).object().digest()}, &status);
  EXPECT_EQ(status.error_code(), grpc::NOT_FOUND);
}

TEST(Server, NamespacesDoNotMeet) {
  TestDaemon daemon;
  ASSERT_TRUE(daemon.Compile("name a").done);
  EXPECT_TRUE(daemon.Lookup("name a", {}, "other").has_miss());
}

TEST(Server, IdenticalKernelsAreEmittedOnce) {
  TestDaemon daemon;
  ASSERT_TRUE(daemon.Compile("kernels 4\nname same").done);
  ASSERT_TRUE(daemon.Compile("kernels 4\nname same\nsleep_ms 1").done);  // another graph, the same kernels
  EXPECT_EQ(daemon.Stats().kernels_emitted(), 4);
  EXPECT_EQ(daemon.Stats().kernels_reused(), 4);
}

TEST(Server, HerdOfEightIsOneCompile) {
  TestDaemon daemon;
  std::vector<std::future<CompileResult>> herd;
  for (int i = 0; i < 8; ++i) {
    herd.push_back(std::async(std::launch::async, [&] { return daemon.Compile("kernels 5\nsleep_ms 500"); }));
  }
  std::string bytes;
  for (auto& member : herd) {
    const CompileResult result = member.get();
    ASSERT_TRUE(result.done) << result.status.error_message() << result.failed_reason;
    if (bytes.empty()) bytes = result.manifest.SerializeAsString();
    EXPECT_EQ(result.manifest.SerializeAsString(), bytes);
  }
  EXPECT_EQ(daemon.Stats().compiles(), 1);
  EXPECT_EQ(daemon.Stats().joined(), 7);
}

TEST(Server, AttachRejoinsAJob) {
  TestDaemon daemon;
  auto compile = std::async(std::launch::async, [&] { return daemon.Compile("sleep_ms 800"); });
  std::string job;
  ASSERT_TRUE(Eventually([&] {
    const v1::LookupReply reply = daemon.Lookup("sleep_ms 800");
    job = reply.in_flight().job_id();
    return reply.has_in_flight();
  }));
  EXPECT_EQ(daemon.Attach(job, {}, "other").status.error_code(), grpc::NOT_FOUND);
  const CompileResult attached = daemon.Attach(job);
  EXPECT_TRUE(attached.done);
  EXPECT_TRUE(attached.joined);
  EXPECT_TRUE(compile.get().done);
  EXPECT_EQ(daemon.Stats().compiles(), 1);
  EXPECT_EQ(daemon.Attach(job).status.error_code(), grpc::NOT_FOUND);
}

TEST(Server, VariantsAreChosenByGuards) {
  TestDaemon daemon;
  const CompileResult low = daemon.Compile("guarded", {5});
  const CompileResult high = daemon.Compile("guarded", {250});
  ASSERT_TRUE(low.done);
  ASSERT_TRUE(high.done);
  EXPECT_NE(low.manifest.variant_id(), high.manifest.variant_id());
  EXPECT_EQ(low.manifest.compile_key(), high.manifest.compile_key());
  v1::Manifest found;
  ASSERT_TRUE(found.ParseFromString(daemon.Lookup("guarded", {299}).hit().manifest().manifest()));
  EXPECT_EQ(found.variant_id(), high.manifest.variant_id());
  EXPECT_TRUE(daemon.Lookup("guarded", {300}).has_miss());
  EXPECT_EQ(daemon.Stats().compiles(), 2);
}

TEST(Server, SizesThatTheGraphForbidsAreTheCallersAloneAndNotKept) {
  TestDaemon daemon;
  const CompileResult wrong = daemon.Compile("guarded", {-5});
  EXPECT_EQ(wrong.failed_code, grpc::INVALID_ARGUMENT) << wrong.failed_reason;
  EXPECT_NE(wrong.failed_reason.find("sizes of this call"), std::string::npos);
  EXPECT_TRUE(daemon.Compile("guarded", {5}).done);
}

TEST(Server, AWaiterWhoseSizesDoNotFitCompilesItsOwn) {
  TestDaemon daemon;
  const std::string script = "guarded\nsleep_ms 400";
  std::vector<std::future<CompileResult>> callers;
  for (int64_t hint : {5, 250, 251, 6}) {
    callers.push_back(
        std::async(std::launch::async, [&daemon, &script, hint] { return daemon.Compile(script, {hint}); }));
  }
  std::vector<std::string> variants;
  for (auto& caller : callers) {
    const CompileResult result = caller.get();
    ASSERT_TRUE(result.done) << result.failed_reason << result.status.error_message();
    variants.push_back(result.manifest.variant_id());
  }
  EXPECT_EQ(variants[0], variants[3]);
  EXPECT_EQ(variants[1], variants[2]);
  EXPECT_NE(variants[0], variants[1]);
  EXPECT_EQ(daemon.Stats().compiles(), 2);
}

TEST(Server, SixteenVariantsAndTheNextTakesTheOldestsPlace) {
  TestDaemon daemon;
  for (int64_t i = 0; i < 16; ++i) ASSERT_TRUE(daemon.Compile("guarded", {i * 100}).done) << i;
  EXPECT_EQ(daemon.Stats().entries(), 16);
  ASSERT_TRUE(daemon.Compile("guarded", {1600}).done);
  EXPECT_EQ(daemon.Stats().entries(), 16);
  EXPECT_TRUE(daemon.Lookup("guarded", {1600}).has_hit());
  int hits = 0;
  for (int64_t i = 0; i < 16; ++i) hits += daemon.Lookup("guarded", {i * 100}).has_hit();
  EXPECT_EQ(hits, 15);
}

TEST(Server, LastingRefusalsAreRememberedAndOthersAreNot) {
  TestDaemon daemon;
  for (int i = 0; i < 2; ++i) {
    const CompileResult result = daemon.Compile("refuse 12 unsupported: aten.foo.default at node 3");
    EXPECT_TRUE(result.status.ok());
    EXPECT_EQ(result.failed_code, 12);
    EXPECT_EQ(result.failed_reason, "unsupported: aten.foo.default at node 3");
  }
  EXPECT_EQ(daemon.Stats().compiles(), 1);
  EXPECT_EQ(daemon.Lookup("refuse 12 unsupported: aten.foo.default at node 3").failed().code(), 12);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(daemon.Compile("refuse 13 a bug").failed_code, 13);
  EXPECT_EQ(daemon.Stats().compiles(), 3);
}

TEST(Server, AWorkerKilledFromOutsideCostsNothing) {
  TestDaemon daemon;
  auto compile = std::async(std::launch::async, [&] { return daemon.Compile("sleep_ms 700\nkernels 3"); });
  absl::SleepFor(absl::Milliseconds(300));
  for (pid_t pid : daemon.Workers()) kill(pid, SIGKILL);
  EXPECT_TRUE(compile.get().done);
  EXPECT_GE(daemon.Stats().worker_crashes(), 1);
  EXPECT_TRUE(Eventually([&] { return daemon.Workers().size() == 2; })) << "replaced";
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

// A store above its budget, and no memory for entries: what is compiled reaches the client all the same.
TEST(Server, WhatTheStoreRefusesReachesTheClient) {
  TestDaemon daemon("store { budget_bytes: 1048576 memory_bytes: 1 }");
  std::ofstream(daemon.directory() + "/store/db/filler") << std::string(2u << 20, 'f');
  ASSERT_TRUE(Eventually([&] { return daemon.Stats().bytes() > 2u << 20; }));
  ClientOptions options;
  options.address = absl::StrCat("unix:", daemon.socket());
  options.name_space = "test";
  CompileRequestInput input;
  input.graph = "kernels 3\nname refused";
  input.sections = SectionsOf(input.graph);
  input.request_key = RequestKey(input.sections);
  for (const bool hit : {false, true}) {
    const auto artifact = NewClient(options)->Get(input, /*compile=*/true);
    ASSERT_TRUE(artifact.ok()) << artifact.status();
    EXPECT_EQ(artifact->objects.size(), 3u);
    EXPECT_EQ(artifact->hit, hit);
    EXPECT_EQ(artifact->not_kept.empty(), hit);
  }
  EXPECT_EQ(daemon.Stats().compiles(), 1);
  EXPECT_EQ(daemon.Stats().entries(), 0);
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

v1::CompileHeader HeaderOf(const std::string& script, v1::WorkClass work_class) {
  v1::CompileHeader header;
  header.set_namespace_("test");
  *header.mutable_sections() = SectionsOf(script);
  header.set_graph_bytes(script.size());
  header.set_work_class(work_class);
  return header;
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

// What a newer client says beside what this daemon knows is of no limit, and is not kept.
TEST(Server, UnknownFieldsAreToleratedAndDropped) {
  TestDaemon daemon;
  const std::string script = "name x\nsleep_ms 1500";
  v1::CompileHeader header = HeaderOf(script, v1::WORK_INTERACTIVE);
  for (google::protobuf::Message* part : std::initializer_list<google::protobuf::Message*>{
           &header, header.mutable_sections(), header.mutable_notes(), header.mutable_hints()}) {
    part->GetReflection()->MutableUnknownFields(part)->AddLengthDelimited(900, std::string(1u << 20, 'u'));
  }
  ASSERT_GT(header.ByteSizeLong(), 4u << 20) << "the control: they travel";
  std::thread caller([&] {
    const CompileResult result = daemon.Compile(header, script, absl::Seconds(60));
    EXPECT_TRUE(result.done) << result.status.error_message();
  });
  uint64_t kept = 0;
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::JobsReply reply;
    EXPECT_TRUE(daemon.admin().Jobs(&context, {}, &reply).ok());
    for (const v1::JobInfo& job : reply.jobs()) kept = job.graph_bytes();
    return kept > 0;
  }));
  EXPECT_LT(kept, 64u << 10);
  caller.join();
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

TEST(Server, TheSandboxHolds) {
  TestDaemon daemon;
  const CompileResult result = daemon.Compile(absl::StrCat("probe ", daemon.pid()));
  ASSERT_TRUE(result.done) << result.failed_reason;
  for (const v1::Step& step : result.manifest.program().steps()) {
    EXPECT_FALSE(step.has_call()) << "not denied: " << step.call().target();
  }
}

TEST(Server, LiesAboutTheUploadAreRefused) {
  TestDaemon daemon;
  const auto send = [&](const std::string& claimed, const std::string& chunk, uint64_t bytes) {
    grpc::ClientContext context;
    auto stream = daemon.compiler().Compile(&context);
    v1::CompileRequest request;
    request.mutable_header()->set_namespace_("test");
    *request.mutable_header()->mutable_sections() = SectionsOf(claimed);
    request.mutable_header()->set_graph_bytes(bytes);
    stream->Write(request);
    request.set_graph_chunk(chunk);
    stream->Write(request);
    stream->WritesDone();
    v1::CompileEvent event;
    while (stream->Read(&event)) {
    }
    return stream->Finish().error_code();
  };
  EXPECT_EQ(send("name a", ZstdCompress("name b"), 6), grpc::INVALID_ARGUMENT);  // another graph
  EXPECT_EQ(send("name a", "no zstd", 6), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(send("name a", ZstdCompress(std::string(1 << 20, 'x')), 6), grpc::INVALID_ARGUMENT);  // a bomb
  EXPECT_EQ(send("name a", ZstdCompress("name a"), (64u << 20) + 1), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(send("name a", ZstdCompress("name a"), 0), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(daemon.Stats().compiles(), 0);
}

v1::CompileHeader HeaderOf(const std::string& script) {
  v1::CompileHeader header;
  header.set_namespace_("test");
  *header.mutable_sections() = SectionsOf(script);
  header.set_graph_bytes(script.size());
  return header;
}

TEST(Server, NobodyWritesAnothersLineInTheLog) {
  TestDaemon daemon;
  const std::string script = "refuse 12 no such operator";
  v1::CompileHeader header = HeaderOf(script);
  header.mutable_notes()->set_title("Model\n2026-01-01T00:00:00.000 1 info forged \x1b[2J");
  EXPECT_EQ(daemon.Compile(header, script, absl::Seconds(10)).failed_code, 12);
  std::ifstream log(daemon.directory() + "/log");
  bool told = false;
  for (std::string line; std::getline(log, line);) {
    told = told || absl::StrContains(line, "Model\\n2026-01-01T00:00:00.000 1 info forged \\x1b[2J");
    EXPECT_FALSE(absl::StartsWith(line, "2026-01-01")) << line;
    EXPECT_FALSE(absl::StrContains(line, "\x1b")) << line;
  }
  EXPECT_TRUE(told);
}

using CompileStream = grpc::ClientReaderWriter<v1::CompileRequest, v1::CompileEvent>;

// How a call that its client leaves alone ends; OK where it has not ended after so long.
grpc::StatusCode EndWithin(absl::Duration limit, grpc::ClientContext* context,
                           const std::function<grpc::Status()>& finish) {
  std::future<grpc::Status> ended = std::async(std::launch::async, finish);
  const bool over = ended.wait_for(absl::ToChronoMilliseconds(limit)) == std::future_status::ready;
  if (!over) context->TryCancel();
  const grpc::Status status = ended.get();
  return over ? status.error_code() : grpc::StatusCode::OK;
}

grpc::StatusCode EndOfSilentUpload(TestDaemon& daemon, bool header, absl::Duration limit) {
  grpc::ClientContext context;
  std::unique_ptr<CompileStream> stream = daemon.compiler().Compile(&context);
  v1::CompileRequest request;
  *request.mutable_header() = HeaderOf("name silent");
  if (header) stream->Write(request);
  return EndWithin(limit, &context, [&] {
    v1::CompileEvent event;
    while (stream->Read(&event)) {
    }
    return stream->Finish();
  });
}

TEST(Server, AClientThatFallsSilentInAnUploadIsCutOff) {
  TestDaemon daemon("admission { silent_seconds_max: 1 }");
  for (const bool header : {false, true}) {
    EXPECT_EQ(EndOfSilentUpload(daemon, header, absl::Seconds(10)), grpc::CANCELLED) << header;
  }
  // One that is slow and not silent is served.
  grpc::ClientContext context;
  std::unique_ptr<CompileStream> stream = daemon.compiler().Compile(&context);
  v1::CompileRequest request;
  *request.mutable_header() = HeaderOf("name slow");
  stream->Write(request);
  for (const char byte : ZstdCompress("name slow")) {
    absl::SleepFor(absl::Milliseconds(150));
    request.set_graph_chunk(std::string(1, byte));
    EXPECT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  v1::CompileEvent event;
  bool durable = false;
  while (stream->Read(&event)) durable = durable || event.done().durable();
  EXPECT_TRUE(stream->Finish().ok() && durable);
  // The daemon's own work is nobody's silence.
  EXPECT_TRUE(daemon.Compile("sleep_ms 2500").durable);
  EXPECT_TRUE(Eventually([&] { return daemon.Lookup("name slow").has_hit(); }));
}

TEST(Server, AClientThatTakesNothingIsCutOff) {
  TestDaemon daemon("admission { silent_seconds_max: 1 }");
  std::string noise = "name ";
  for (uint64_t i = 0; noise.size() < 1'000'000; ++i) noise += ToHex(Sha256(absl::StrCat(i)));
  const CompileResult made = daemon.Compile(noise);
  ASSERT_TRUE(made.durable) << made.failed_reason;
  grpc::ClientContext context;
  v1::FetchObjectsRequest request;
  request.set_namespace_(made.manifest.namespace_());
  request.set_compile_key(made.manifest.compile_key());
  request.set_variant_id(made.manifest.variant_id());
  // More than the transport takes for a client that does not read.
  for (int i = 0; i < 1000; ++i) request.add_digests(made.manifest.kernels(0).loop_ir().digest());
  auto reader = daemon.compiler().FetchObjects(&context, request);
  absl::SleepFor(absl::Seconds(3));
  v1::ObjectChunk chunk;
  while (reader->Read(&chunk)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
}

// The control: without the limit such a call goes on.
TEST(Server, WithoutALimitSilenceHoldsACall) {
  TestDaemon daemon("admission { silent_seconds_max: 3600 }");
  EXPECT_EQ(EndOfSilentUpload(daemon, true, absl::Seconds(3)), grpc::OK);
}

TEST(Server, SectionsBeyondTheirLimitsAreNamed) {
  TestDaemon daemon;
  const auto with = [&](std::string* (v1::RequestSections::*field)(), size_t bytes) {
    v1::CompileHeader header = HeaderOf("name limits");
    *(header.mutable_sections()->*field)() = std::string(bytes, 'x');
    return daemon.Compile(header, "name limits", absl::Seconds(10)).status;
  };
  const std::pair<std::string* (v1::RequestSections::*)(), const char*> fields[] = {
      {&v1::RequestSections::mutable_options, "options"},
      {&v1::RequestSections::mutable_target, "target"},
      {&v1::RequestSections::mutable_numerics, "numerics"},
      {&v1::RequestSections::mutable_facts, "facts"},
      {&v1::RequestSections::mutable_environment, "environment"}};
  for (const auto& [field, name] : fields) {
    const size_t limit = std::string(name) == "facts" ? kFactsBytesMax : kSectionBytesMax;
    const grpc::Status refused = with(field, limit + 1);
    EXPECT_EQ(refused.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_TRUE(absl::StrContains(refused.error_message(), absl::StrCat("sections.", name)))
        << refused.error_message();
    EXPECT_TRUE(with(field, limit).ok()) << name;
  }
}

TEST(Server, AClientOfAnotherProtocolIsTold) {
  TestDaemon daemon;
  std::string answered;  // the range that the daemon says
  const auto ask = [&](const std::string& range) {
    grpc::ClientContext context;
    if (!range.empty()) context.AddMetadata(kProtocolMetadata, range);
    v1::LookupRequest request;
    request.set_request_key(RequestKey(SectionsOf("name a")));
    v1::LookupReply reply;
    const grpc::Status status = daemon.compiler().Lookup(&context, request, &reply);
    const auto& metadata = context.GetServerInitialMetadata();
    const auto said = metadata.find(kProtocolMetadata);
    answered = said == metadata.end() ? "" : std::string(said->second.data(), said->second.size());
    return status;
  };
  for (const std::string& range : {std::string(), ToText(kProtocol), std::string("0-4294967295")}) {
    EXPECT_TRUE(ask(range).ok()) << range;
    EXPECT_EQ(answered, ToText(kProtocol));
  }
  const std::string newer = ToText({kProtocol.max + 1, kProtocol.max + 2});
  for (const std::string& range : {newer, ToText({0, kProtocol.min - 1})}) {
    const grpc::Status refused = ask(range);
    EXPECT_EQ(refused.error_code(), grpc::FAILED_PRECONDITION);
    for (const std::string& part : {range, ToText(kProtocol)}) {
      EXPECT_TRUE(absl::StrContains(refused.error_message(), part)) << refused.error_message();
    }
  }
  for (const char* nonsense : {"1", "2-1", "-", "1-", "one-two", "1-4294967296", "1-1-1"}) {
    EXPECT_EQ(ask(nonsense).error_code(), grpc::INVALID_ARGUMENT) << nonsense;
  }
  // Streams as well.
  grpc::ClientContext compile, attach, fetch;
  for (grpc::ClientContext* context : {&compile, &attach, &fetch}) {
    context->AddMetadata(kProtocolMetadata, newer);
  }
  EXPECT_EQ(daemon.compiler().Compile(&compile)->Finish().error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(daemon.compiler().Attach(&attach, {})->Finish().error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(daemon.compiler().FetchObjects(&fetch, {})->Finish().error_code(), grpc::FAILED_PRECONDITION);
}

// A service that notes what clients say of their protocol, and has nothing.
class Listener final : public v1::Compiler::Service {
 public:
  grpc::Status Hello(grpc::ServerContext*, const v1::HelloRequest*, v1::HelloReply*) override {
    return grpc::Status::OK;
  }
  grpc::Status Lookup(grpc::ServerContext* context, const v1::LookupRequest*,
                      v1::LookupReply* reply) override {
    const auto said = context->client_metadata().find(kProtocolMetadata);
    if (said != context->client_metadata().end()) said_.assign(said->second.data(), said->second.size());
    reply->mutable_miss();
    return grpc::Status::OK;
  }
  const std::string& said() const { return said_; }

 private:
  std::string said_;
};

TEST(Server, TheClientSaysWhatItSpeaks) {
  char directory[] = "/tmp/kiln-protocol-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  ClientOptions options;
  options.address = absl::StrCat("unix:", directory, "/socket");
  Listener listener;
  const std::unique_ptr<grpc::Server> server =
      grpc::ServerBuilder()
          .AddListeningPort(options.address, grpc::InsecureServerCredentials())
          .RegisterService(&listener)
          .BuildAndStart();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(NewClient(options)->Get({}, /*compile=*/false).status().code(), absl::StatusCode::kNotFound);
  server->Shutdown();
  EXPECT_EQ(listener.said(), ToText(kProtocol));
  std::filesystem::remove_all(directory);
}

TEST(Server, TooManyNotesAreLeftOutAndTheGraphIsCompiled) {
  TestDaemon daemon;
  v1::CompileHeader header = HeaderOf("name noted");
  header.mutable_notes()->set_title("Model forward");
  header.mutable_notes()->add_guards("a guard");
  for (int i = 0; i < 100'000; ++i) header.mutable_notes()->add_node_names("node");
  EXPECT_TRUE(daemon.Compile(header, "name noted", absl::Seconds(10)).durable);
  grpc::ClientContext context;
  v1::ShowRequest request;
  v1::ListReply list;
  ASSERT_TRUE(daemon.admin().List(&context, {}, &list).ok());
  ASSERT_EQ(list.entries_size(), 1);
  request.set_key_prefix(ToHex(list.entries(0).compile_key()));
  grpc::ClientContext again;
  v1::ShowReply shown;
  ASSERT_TRUE(daemon.admin().Show(&again, request, &shown).ok());
  ASSERT_EQ(shown.entries_size(), 1);
  const v1::GraphNotes& kept = shown.entries(0).notes();
  EXPECT_EQ(kept.title(), "Model forward");
  EXPECT_EQ(kept.guards_size(), 1);
  EXPECT_EQ(kept.node_names_size(), 0);

  for (int i = 0; i < 2'000'000; ++i) header.mutable_notes()->add_node_names("node");
  EXPECT_EQ(daemon.Compile(header, "name noted", absl::Seconds(10)).status.error_code(),
            grpc::RESOURCE_EXHAUSTED)
      << "a message of more than 6 MiB";
}

TEST(Server, ADebugCompileSendsItsStagesAndLeavesTheSameBytes) {
  TestDaemon daemon;
  const CompileResult plain = daemon.Compile("kernels 2");
  const std::map<std::string, std::string> files = daemon.DebugCompile("kernels 2");
  EXPECT_EQ(files.count("00_graph.txt"), 1);
  EXPECT_EQ(files.count("kernels/kernel_1.listing.txt"), 1);
  EXPECT_EQ(files.size(), 3) << "names that leave the directory are dropped";
  EXPECT_EQ(daemon.Stats().compiles(), 2) << "what is stored is compiled all the same";
  v1::Manifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(daemon.Lookup("kernels 2").hit().manifest().manifest()));
  EXPECT_EQ(manifest.SerializeAsString(), plain.manifest.SerializeAsString());
}

TEST(Server, EntriesOutliveTheDaemon) {
  TestDaemon daemon;
  ASSERT_TRUE(daemon.Compile("name lasting").durable);
  daemon.Stop(SIGKILL);
  daemon.Start();
  EXPECT_TRUE(daemon.Lookup("name lasting").has_hit());
}

TEST(Server, TermDrainsAndExitsZero) {
  TestDaemon daemon;
  auto compile = std::async(std::launch::async, [&] { return daemon.Compile("sleep_ms 1000"); });
  ASSERT_TRUE(Eventually([&] { return daemon.Lookup("sleep_ms 1000").has_in_flight(); }));
  kill(daemon.pid(), SIGTERM);
  const CompileResult result = compile.get();
  EXPECT_TRUE(result.durable) << result.status.error_message();
  const int status = daemon.Wait(absl::Seconds(10));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Server, WorkersGoWithTheDaemon) {
  TestDaemon daemon;
  ASSERT_TRUE(Eventually([&] { return daemon.Workers().size() == 2; }));
  const std::vector<pid_t> workers = daemon.Workers();
  daemon.Stop(SIGKILL);
  for (pid_t pid : workers) {
    EXPECT_TRUE(Eventually([&] {
      // Gone, or a zombie that nobody here can reap.
      std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
      std::string number, name, state;
      return !(file >> number >> name >> state) || state == "Z";
    })) << pid;
  }
}

TEST(Server, IdleExits) {
  TestDaemon daemon("", {"--idle-exit-seconds", "1"});
  const int status = daemon.Wait(absl::Seconds(10));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_NE(access(daemon.socket().c_str(), F_OK), 0);
}

TEST(Server, TheSocketIsPrivate) {
  TestDaemon daemon;
  struct stat facts;
  ASSERT_EQ(stat(daemon.socket().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600);
  ASSERT_EQ(stat((daemon.directory() + "/run").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700);
}

}  // namespace
}  // namespace kiln
