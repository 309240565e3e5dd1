// Training processes at a distance from their kilnd, by mutual TLS: how many connections they make, when
// those end, what a fork does to them; and a host's processes that share an embedded daemon with an upstream.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "compiler/support/manifest_objects.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/distant_clients.h"
#include "tests/fault/small_graph.h"

namespace kiln {
namespace {

// ---- The connection --------------------------------------------------------------------------

TEST_F(DistantClient, ABurstOfCompilesIsOneHandshake) {
  Running calls(Calls("burst", "count=30"));
  EXPECT_EQ(calls.Word(), "done");
  EXPECT_EQ(wire_.accepted(), 1);
  EXPECT_EQ(farm_.Stats().compiles(), 30);
  EXPECT_EQ(calls.Word(), "closed");
  EXPECT_EQ(calls.ExitCode(), 0);
}

TEST_F(DistantClient, AConnectionThatIdlesEndsAndIsMadeAnew) {
  Running calls(Calls("burst", "count=3 idle=0.5 sleep=3"));
  EXPECT_EQ(calls.Word(), "done");
  EXPECT_EQ(wire_.open(), 1) << "for a while";
  EXPECT_TRUE(Eventually([&] { return wire_.open() == 0; }, absl::Seconds(2)));
  EXPECT_EQ(calls.Word(), "closed");
  EXPECT_EQ(wire_.accepted(), 2);
  EXPECT_EQ(calls.ExitCode(), 0);
}

// The control, and a process's last words.
TEST_F(DistantClient, WithoutAnIdleTimeEachIsAHandshakeAndTheLastReportEndsIt) {
  Running each(Calls("burst", "count=10 idle=0"));
  EXPECT_EQ(each.Word(), "done");
  EXPECT_EQ(wire_.accepted(), 10);
  EXPECT_EQ(each.Word(), "closed");
  EXPECT_EQ(each.ExitCode(), 0);
  Running last(Calls("burst", "count=1 idle=60 sleep=2"));
  EXPECT_EQ(last.Word(), "done");
  EXPECT_EQ(last.Word(), "closed");
  EXPECT_TRUE(Eventually([&] { return wire_.open() == 0; }, absl::Seconds(1))) << "while the process lives";
  EXPECT_EQ(last.ExitCode(), 0);
}

TEST_F(DistantClient, AForkedChildMakesItsOwnAndParentAndChildGoOn) {
  Running calls(Calls("fork", "", FORKED_CALLER));
  EXPECT_EQ(calls.Word(), "apart");
  // The parent's, and in each round one of the child's program.
  EXPECT_EQ(wire_.accepted(), 1 + 3);
  EXPECT_EQ(calls.Word(), "within");
  EXPECT_EQ(calls.ExitCode(), 0);
  EXPECT_EQ(farm_.Stats().compiles(), 1 + 2 * 5 * 3 + 2 + 2 * 5);
}

// ---- An embedded daemon with an upstream -----------------------------------------------------

class EmbeddedUpstream : public DistantClient {
 protected:
  EmbeddedUpstream() : DistantClient(KILN_WORKER) {}
  ~EmbeddedUpstream() override { End(SIGKILL); }

  std::string Place(const std::string& name) const {
    return absl::StrCat(" daemon=", KILND, " run=", directory_, "/", name, " store=", directory_, "/", name,
                        "-store");
  }
  std::string Asks(const std::string& place) const {
    return absl::StrCat(CALLER, " graph upstream=", wire_.address(), Files(), Place(place));
  }
  // The embedded daemon of a place.
  std::shared_ptr<grpc::Channel> Reach(const std::string& place) const {
    return grpc::CreateChannel(absl::StrCat("unix:", directory_, "/", place, "/kilnd.sock"),
                               grpc::InsecureChannelCredentials());
  }
  v1::StatusReply StatusAt(const std::string& place) {
    grpc::ClientContext context;
    v1::StatusReply reply;
    const grpc::Status status = v1::Admin::NewStub(Reach(place))->Status(&context, {}, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (reply.pid() != 0) daemons_.push_back(static_cast<pid_t>(reply.pid()));
    return reply;
  }
  v1::StatsReply StatsAt(const std::string& place) {
    grpc::ClientContext context;
    v1::StatsReply reply;
    EXPECT_TRUE(v1::Admin::NewStub(Reach(place))->Stats(&context, {}, &reply).ok());
    return reply;
  }
  void End(int signal_number) {
    for (const pid_t pid : daemons_) {
      if (kill(pid, signal_number) != 0) continue;
      EXPECT_TRUE(Eventually([pid] { return kill(pid, 0) != 0; }));
    }
    daemons_.clear();
  }
  std::string Doctor(const std::string& place, const std::string& upstream) {
    Running doctor(absl::StrCat("KILN_DAEMON=", KILND, " KILN_RUNTIME_DIR=", directory_, "/", place,
                                " KILN_STORE=", directory_, "/", place, "-store KILN_UPSTREAM=", upstream,
                                " KILN_TLS_CA=", directory_, "/ca.crt KILN_TLS_CERT=", directory_,
                                "/red.crt KILN_TLS_KEY=", directory_, "/red.key ", KILNCTL, " doctor"));
    return doctor.All();
  }

  std::vector<pid_t> daemons_;
};

TEST_F(EmbeddedUpstream, EightProcessesAreOneConnectionOneUploadAndOneFetch) {
  std::vector<std::unique_ptr<Running>> ranks;
  for (int i = 0; i < 8; ++i) ranks.push_back(std::make_unique<Running>(Asks("host")));
  for (const std::unique_ptr<Running>& rank : ranks) {
    EXPECT_NE(rank->Word(), "");
    EXPECT_EQ(rank->ExitCode(), 0);
  }
  const v1::StatusReply status = StatusAt("host");
  EXPECT_TRUE(status.upstream().connected()) << status.upstream().message();
  EXPECT_EQ(status.upstream().forwarded(), 1);
  EXPECT_EQ(StatsAt("host").compiles(), 0);
  EXPECT_EQ(wire_.accepted(), 1);
  EXPECT_EQ(farm_.Stats().compiles(), 1);
  EXPECT_EQ(farm_.Stats().graphs_uploaded(), 1);
  // Each object once.
  grpc::ClientContext context;
  v1::LookupRequest request;
  request.set_request_key(InputOfGraph().request_key);
  v1::LookupReply found;
  ASSERT_TRUE(v1::Compiler::NewStub(Reach("host"))->Lookup(&context, request, &found).ok());
  v1::Manifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(found.hit().manifest().manifest()));
  EXPECT_EQ(manifest.namespace_(), "red") << "its certificate's tenant";
  EXPECT_EQ(farm_.Stats().fetched_objects(), ObjectsIn(manifest).size());
  // People see it.
  EXPECT_THAT(Doctor("host", wire_.address()), testing::ContainsRegex("upstream +ok +" + wire_.address()));
}

// The control: each by itself.
TEST_F(EmbeddedUpstream, WithoutOneEachHostCompiles) {
  for (const char* place : {"one", "two"}) {
    Running alone(absl::StrCat(CALLER, " graph", Place(place)));
    EXPECT_EQ(alone.Word(), "compiled");
    EXPECT_EQ(alone.ExitCode(), 0);
    EXPECT_FALSE(StatusAt(place).has_upstream());
    EXPECT_TRUE(absl::StrContains(Doctor(place, "farm.example:7711"), "asks nobody"));
  }
  EXPECT_EQ(farm_.Stats().compiles(), 0);
  EXPECT_EQ(wire_.accepted(), 0);
}

// What it knew of the farm it knows after a start, and what it had from there is served.
TEST_F(EmbeddedUpstream, AFarmThatIsAwayAtAStartIsKnownFromBefore) {
  EXPECT_EQ(Running(Asks("host")).Word(), "compiled");
  EXPECT_EQ(StatusAt("host").upstream().forwarded(), 1);
  End(SIGTERM);
  wire_.Refuse(true);
  wire_.Cut();
  Running again(Asks("host"));
  EXPECT_EQ(again.Word(), "hit");
  EXPECT_EQ(again.ExitCode(), 0);
  EXPECT_FALSE(StatusAt("host").upstream().connected());
  EXPECT_EQ(farm_.Stats().compiles(), 1);
}

// What is known of the farm says whose signatures count, so it lies where the own key does. The control is
// the test above.
TEST_F(EmbeddedUpstream, AStoreBringsNoTrustAlong) {
  EXPECT_EQ(Running(Asks("host")).Word(), "compiled");
  EXPECT_EQ(StatusAt("host").upstream().forwarded(), 1);
  End(SIGTERM);
  std::vector<std::filesystem::path> known;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
    if (absl::StartsWith(entry.path().filename().string(), "upstream-")) known.push_back(entry.path());
  }
  ASSERT_EQ(known.size(), 1u);
  EXPECT_EQ(known[0].parent_path(), directory_ + "/host-store.keys");
  std::filesystem::rename(known[0], directory_ + "/host-store/" + known[0].filename().string());
  wire_.Refuse(true);
  wire_.Cut();
  EXPECT_EQ(Running(Asks("host")).Word(), "compiled");
  EXPECT_FALSE(StatusAt("host").has_upstream());
}

TEST_F(EmbeddedUpstream, WhereTheFarmWasNeverReachedTheHostCompilesByItself) {
  wire_.Refuse(true);
  Running alone(Asks("host"));
  EXPECT_EQ(alone.Word(), "compiled");
  EXPECT_EQ(alone.ExitCode(), 0);
  EXPECT_FALSE(StatusAt("host").has_upstream());
  EXPECT_TRUE(absl::StrContains(Doctor("host", wire_.address()), "asks nobody"));
}

}  // namespace
}  // namespace kiln
