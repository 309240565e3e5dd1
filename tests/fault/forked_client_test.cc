// Processes that fork after they have compiled: parent and children go on, by each way to a daemon, whatever
// they do meanwhile (forked_caller.cc).
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/fault/distant_clients.h"

namespace kiln {
namespace {

// By the wire: mutual TLS.
class ForkedClient : public DistantClient {
 protected:
  std::string Forks(const std::string& mode, const std::string& more = "") const {
    return Calls(mode, more, FORKED_CALLER);
  }
  static void IsWell(const std::string& command) {
    Running calls(command);
    calls.All();
    EXPECT_EQ(calls.ExitCode(), 0) << command;
  }
};

// ---- By each way -----------------------------------------------------------------------------

class EachWay : public ForkedClient, public testing::WithParamInterface<std::string> {
 protected:
  ~EachWay() override {
    if (GetParam() != "embedded") return;
    grpc::ClientContext context;
    v1::StatusReply reply;
    const auto channel = grpc::CreateChannel(absl::StrCat("unix:", directory_, "/run/kilnd.sock"),
                                             grpc::InsecureChannelCredentials());
    const grpc::Status status = v1::Admin::NewStub(channel)->Status(&context, {}, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (status.ok()) kill(static_cast<pid_t>(reply.pid()), SIGKILL);
  }
  std::string Way(const std::string& mode) const {
    if (GetParam() == "wire") return Forks(mode);
    const std::string daemon = GetParam() == "unix" ? absl::StrCat("address=unix:", local_.socket())
                                                    : absl::StrCat("daemon=", KILND, " run=", directory_,
                                                                   "/run store=", directory_, "/store");
    return absl::StrCat(FORKED_CALLER, " ", mode, " ", daemon, " call=", KILN_CALL);
  }

  TestDaemon local_;
};

TEST_P(EachWay, ParentAndChildGoOn) { IsWell(Way("fork")); }
TEST_P(EachWay, AGrandchildHasItsOwnProgram) { IsWell(Way("family")); }
TEST_P(EachWay, AProgramThatWasKilledIsReplaced) { IsWell(Way("killed")); }
TEST_P(EachWay, ThreadsOfAChildCallAtOnce) { IsWell(Way("threads")); }
TEST_P(EachWay, AProcessForkedBeforeTheFirstCallHasGrpcOfItsOwn) { IsWell(Way("before")); }
TEST_P(EachWay, AChildThatEndsAsMainDoesHurtsNobody) { IsWell(Way("exits")); }

INSTANTIATE_TEST_SUITE_P(Ways, EachWay, testing::Values("wire", "unix", "embedded"),
                         [](const auto& info) { return info.param; });

// ---- What the wire and the farm see ----------------------------------------------------------

TEST_F(ForkedClient, AParentsConnectionOutlivesItsChildren) {
  IsWell(Forks("exits"));
  // The parent's, and of each child one of each of its two clients' programs.
  EXPECT_EQ(wire_.accepted(), 1 + 3 * 2);
}

TEST_F(ForkedClient, AGenerationIsAConnection) {
  IsWell(Forks("family"));
  EXPECT_EQ(wire_.accepted(), 3);
  EXPECT_EQ(farm_.Stats().compiles(), 5);
}

TEST_F(ForkedClient, ACallIsCancelledInAChildAndAtTheFarm) {
  Running calls(Forks("cancel"));
  EXPECT_EQ(calls.Word(), "cancelled");
  EXPECT_TRUE(Eventually([&] { return Jobs(farm_) == 0; }, absl::Seconds(5)));
  EXPECT_EQ(calls.ExitCode(), 0);
}

TEST_F(ForkedClient, AChildThatIsKilledWithinACallLeavesNoProgramAndNoJob) {
  Running calls(Forks("orphan"));
  EXPECT_EQ(calls.Word(), "killed");
  EXPECT_TRUE(Eventually([&] { return Jobs(farm_) == 0; }, absl::Seconds(5)));
  EXPECT_EQ(calls.ExitCode(), 0);
}

TEST_F(ForkedClient, AProgramThatIsKilledWithinACallIsReplacedOnce) { IsWell(Forks("within")); }

TEST_F(ForkedClient, WithoutAProgramAChildIsToldTheWayOut) {
  IsWell(Forks("missing", "call=/nowhere/kiln-call"));
  IsWell(Forks("missing", "call="));
}

TEST_F(ForkedClient, AProgramThatIdlesEnds) {
  IsWell(Forks("idle", "idle=0.5"));
  EXPECT_EQ(wire_.accepted(), 3);
}

TEST_F(ForkedClient, AServiceThatIsAwayIsNotWaitedForAtEachGraph) {
  Running calls(Forks("away", "sleep=1 connect=1"));
  EXPECT_EQ(calls.Word(), "there");
  wire_.Refuse(true);
  wire_.Cut();
  EXPECT_EQ(calls.ExitCode(), 0);
}

TEST_F(ForkedClient, RunsOfAChildAreToldByAProgram) {
  Running calls(Forks("report"));
  EXPECT_EQ(calls.Word(), "told");
  uint64_t executed = 0;
  const v1::StatsReply stats = farm_.Stats();
  for (const v1::JobUse& use : stats.uses()) executed += use.executed();
  EXPECT_EQ(executed, 20) << "the children's, and not what the parent has not told";
  EXPECT_EQ(calls.ExitCode(), 0);
}

}  // namespace
}  // namespace kiln
