// Processes that fork after they have compiled: parent and children go on, by each way to a daemon, whatever
// they do meanwhile (forked_caller.cc).
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/src/call_messages.h"
#include "compiler/support/message_channel.h"
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

TEST_F(ForkedClient, AKilledParentsConnectionEndsThoughAChildHasIt) {
  Running calls(Forks("left"));
  const pid_t child = atoi(calls.Word().c_str());
  ASSERT_GT(child, 0);
  EXPECT_TRUE(Eventually([&] { return wire_.open() == 0; }, absl::Seconds(20))) << "kilnd asks who is there";
  EXPECT_EQ(kill(child, SIGKILL), 0) << "it was there";
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

// ---- The program itself ----------------------------------------------------------------------

class Program : public testing::Test {
 protected:
  Program() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], 0);
      execl(KILN_CALL, KILN_CALL, nullptr);
      _exit(127);
    }
    close(ends[1]);
    channel_ = std::make_unique<MessageChannel>(ends[0], 1 << 20);
  }
  int ExitCode() {
    channel_ = nullptr;
    int ended = -1;
    waitpid(pid_, &ended, 0);
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  }
  void Write(const v1::CallRequest& request) { EXPECT_TRUE(channel_->Write(request, {}).ok()); }

  pid_t pid_ = -1;
  std::unique_ptr<MessageChannel> channel_;
};

TEST_F(Program, EndsWithWhoStartedIt) { EXPECT_EQ(ExitCode(), 0); }

TEST_F(Program, TakesNoMoreThanALimit) {
  const std::string length(4, '\xff');
  ASSERT_EQ(write(channel_->fd(), length.data(), length.size()), length.size());
  v1::CallReply reply;
  EXPECT_TRUE(absl::IsUnavailable(channel_->Read(&reply, {})));
  EXPECT_EQ(ExitCode(), 1);
}

TEST_F(Program, EndsAtWhatIsNoMessage) {
  const std::string bytes("\x03\0\0\0\xff\xff\xff", 7);
  ASSERT_EQ(write(channel_->fd(), bytes.data(), bytes.size()), bytes.size());
  v1::CallReply reply;
  EXPECT_TRUE(absl::IsUnavailable(channel_->Read(&reply, {})));
  EXPECT_EQ(ExitCode(), 1);
}

TEST_F(Program, OfAnotherBuildSaysSo) {
  v1::CallRequest request;
  request.mutable_options()->set_format(kCallFormat + 1);
  Write(request);
  request.mutable_get();
  Write(request);
  v1::CallReply reply;
  ASSERT_TRUE(channel_->Read(&reply, {}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(FromMessage(reply.end())));
  EXPECT_TRUE(absl::StrContains(reply.end().message(), "another build"));
  EXPECT_EQ(ExitCode(), 0);
}

TEST(ProgramByHand, SaysWhoStartsIt) {
  Running words(absl::StrCat(KILN_CALL, " --help 2>&1 </dev/null"));
  EXPECT_TRUE(absl::StrContains(words.Word(), "not by hand"));
  EXPECT_EQ(words.ExitCode(), 2);
}

}  // namespace
}  // namespace kiln
