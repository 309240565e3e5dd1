// kilnd from outside: one flight a key, variants, refusals that are remembered, what is served.
#include <fstream>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/zstd.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

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

}  // namespace
}  // namespace kiln
