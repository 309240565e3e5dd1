// Who makes a process's calls: the client of the process that used gRPC first, or a program; and what travels
// between a forked process and its program.
#include "client/src/forked_client.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "client/src/call_messages.h"
#include "client/src/grpc_owner.h"
#include "client/src/this_process.h"
#include "compiler/support/message_channel.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

// Seen by a process and its children.
struct Counts {
  std::atomic<int> gets, reports, ends;
};

Counts& SharedCounts() {
  static auto* counts =
      new (mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Counts{};
  return *counts;
}

// Takes the place of the client that uses gRPC.
class CountedClient final : public Client {
 public:
  ~CountedClient() override { ++SharedCounts().ends; }
  absl::StatusOr<CompiledArtifact> Get(const CompileRequestInput&, bool, Cancellation*) override {
    ++SharedCounts().gets;
    return CompiledArtifact();
  }
  std::string address() const override { return "unix:/of/the/client"; }
  void ReportUse(absl::Duration) override { ++SharedCounts().reports; }
};

template <typename Work>
int InChild(Work work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int ended = -1;
  waitpid(child, &ended, 0);
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
}

class ForkedClientTest : public testing::Test {
 protected:
  ForkedClientTest() {
    options_.address = "unix:/run/kilnd.sock";
    options_.call_binary = "/nowhere/kiln-call";
    client_ = NewForkedClient(options_, std::make_unique<CountedClient>());
    SharedCounts().gets = SharedCounts().reports = SharedCounts().ends = 0;
  }
  absl::Status Get() { return client_->Get({}, /*compile=*/true, nullptr).status(); }

  ClientOptions options_;
  std::unique_ptr<Client> client_;
};

// In a process of its own each: whose gRPC it is is said once a process.
TEST_F(ForkedClientTest, WithoutACallAChildIsAProcessAsAnyOther) {
  EXPECT_EQ(InChild([&] { return !Get().ok() || SharedCounts().gets != 1; }), 0);
  EXPECT_EQ(InChild([&] {
              client_ = nullptr;
              return SharedCounts().ends != 1;
            }),
            0);
}

TEST_F(ForkedClientTest, AfterACallAChildTouchesNothingOfTheClient) {
  EXPECT_EQ(InChild([&] {
              if (!Get().ok() || SharedCounts().gets != 1) return 1;
              const int child = InChild([&] {
                const absl::Status told = Get();
                client_->ReportUse(absl::Seconds(1));
                const bool named = client_->address() == options_.address;
                client_ = nullptr;
                return !absl::IsFailedPrecondition(told) || !absl::StrContains(told.message(), "kiln-call") ||
                       !named;
              });
              if (child != 0 || SharedCounts().gets != 1 || SharedCounts().ends != 0) return 2;
              // And the process itself goes on.
              client_->ReportUse(absl::Seconds(1));
              if (!Get().ok() || SharedCounts().gets != 2 || SharedCounts().reports != 1) return 3;
              client_ = nullptr;
              return SharedCounts().ends == 1 ? 0 : 4;
            }),
            0);
}

// Children of a process whose other threads lock absl's mutexes all the time: how many ended as `work` says,
// until one did not.
template <typename Work>
int ChildrenBesideLockingThreads(int children, Work work) {
  std::atomic<bool> end{false};
  absl::Mutex outer, inner;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!end) {
        absl::MutexLock lock(&outer);
        absl::MutexLock within(&inner);
      }
    });
  }
  int good = 0;
  const auto limited = [&] {
    alarm(10);
    return work();
  };
  while (good < children && InChild(limited) == 0) ++good;
  end = true;
  for (std::thread& thread : threads) thread.join();
  return good;
}

TEST_F(ForkedClientTest, AChildWaitsForNoLockThatAThreadOfItsParentHad) {
  EXPECT_EQ(InChild([&] {
              if (!Get().ok()) return 1;
              const int good = ChildrenBesideLockingThreads(100, [&] {
                absl::Mutex mutex;
                const absl::MutexLock lock(&mutex);  // as the runtime's
                return absl::IsFailedPrecondition(Get()) ? 0 : 1;
              });
              return good == 100 ? 0 : 2;
            }),
            0);
}

#ifndef __SANITIZE_THREAD__  // whose absl::Mutex is another (compiler/support/tsan_mutex.cc)
// The control.
TEST_F(ForkedClientTest, AChildThatSearchesForDeadlocksWaits) {
  const int good = ChildrenBesideLockingThreads(2000, [] {
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kReport);
    alarm(1);
    absl::Mutex mutex;
    const absl::MutexLock lock(&mutex);
    return 0;
  });
  EXPECT_LT(good, 2000);
}
#endif

TEST(GrpcOwnerTest, IsOfTheFirstAndOfNoChild) {
  EXPECT_FALSE(IsGrpcOfParent());
  const uint64_t here = ThisProcess();
  EXPECT_EQ(InChild([&] {
              if (ThisProcess() == here || !OwnGrpc() || !OwnGrpc() || IsGrpcOfParent()) return 1;
              return InChild([&] {
                if (!IsGrpcOfParent() || OwnGrpc()) return 1;
                return InChild([&] { return IsGrpcOfParent() && !OwnGrpc() ? 0 : 1; });
              });
            }),
            0);
  EXPECT_EQ(ThisProcess(), here);
}

TEST(CallMessagesTest, OptionsArriveWhole) {
  ClientOptions options;
  options.address = "farm.example:7711";
  options.upstream = "other.example:7711";
  options.tls.authority = "/ca\xff";  // a path need not be UTF-8
  options.tls.certificate = "/crt";
  options.tls.key = "/key";
  options.daemon_binary = "/bin/kilnd";
  options.runtime_dir = "/run";
  options.store_dir = "/store";
  options.name_space = "red";
  options.job = "night";
  options.trusted_keys = {std::string("\0\xff", 2), "b"};
  options.background = true;
  options.connect_seconds = 1.5;
  options.compile_seconds = 2.5;
  options.idle_seconds = 3.5;
  options.cuda_libraries = {"/lt", "/dnn", "/cuda"};
  v1::CallOptions message;
  ASSERT_TRUE(message.ParseFromString(ToMessage(options).SerializeAsString()));
  const absl::StatusOr<ClientOptions> got = FromMessage(message);
  ASSERT_TRUE(got.ok()) << got.status();
  // One that is not named here is not in the message either.
  EXPECT_EQ(ToMessage(*got).SerializeAsString(), message.SerializeAsString());
  EXPECT_EQ(got->tls.authority, options.tls.authority);
  EXPECT_EQ(got->trusted_keys, options.trusted_keys);
  EXPECT_TRUE(got->background);
  EXPECT_EQ(got->idle_seconds, 3.5);
  EXPECT_EQ(got->cuda_libraries.driver, "/cuda");
  message.set_format(kCallFormat + 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(FromMessage(message).status()));
}

TEST(CallMessagesTest, AnErrorKeepsItsPayloads) {
  absl::Status status = absl::UnavailableError("away \xff");
  status.SetPayload("kiln/answered", absl::Cord());
  status.SetPayload("kiln/pushback", absl::Cord("100"));
  v1::CallReply::End message;
  ASSERT_TRUE(message.ParseFromString(ToMessage(status).SerializeAsString()));
  EXPECT_EQ(FromMessage(message), status);
  EXPECT_EQ(FromMessage(ToMessage(absl::OkStatus())), absl::OkStatus());
}

TEST(CallMessagesTest, InputAndArtifactArriveWhole) {
  CompileRequestInput input;
  input.graph = std::string("\0g", 2);
  input.sections.set_options("o");
  input.request_key = "k";
  input.hints.add_values(7);
  input.notes.set_title("t");
  input.want_loop_ir = input.want_debug = true;
  input.gang.set_size(4);
  const CompileRequestInput there = FromMessage(ToMessage(input, /*compile=*/true));
  EXPECT_EQ(ToMessage(there, true).SerializeAsString(), ToMessage(input, true).SerializeAsString());
  EXPECT_TRUE(there.want_debug && there.want_loop_ir);
  EXPECT_EQ(there.gang.size(), 4);
  CompiledArtifact artifact;
  artifact.manifest.set_request_key("k");
  artifact.hit = artifact.joined = true;
  artifact.not_kept = "full";
  artifact.recovered = {"a", "b"};
  artifact.refused = {"c"};
  artifact.uploaded_bytes = 1;
  artifact.fetched_objects = 2;
  artifact.connect_seconds = 3;
  artifact.lookup_seconds = 4;
  artifact.compile_seconds = 5;
  artifact.fetch_seconds = 6;
  CompiledArtifact back;
  FromMessage(ToMessage(artifact), &back);
  EXPECT_EQ(ToMessage(back).SerializeAsString(), ToMessage(artifact).SerializeAsString());
  EXPECT_EQ(back.refused, artifact.refused);
  EXPECT_EQ(back.fetch_seconds, 6);
}

TEST(MessageChannelTest, HasALimitAndDoesNotEndItsProcess) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  v1::CallReply reply;
  reply.mutable_object()->set_contents(std::string(1000, 'x'));
  const size_t size = reply.ByteSizeLong();
  MessageChannel writes(ends[0], size);
  EXPECT_TRUE(writes.Write(reply, {}).ok());
  v1::CallReply got;
  {
    MessageChannel reads(ends[1], size - 1);
    EXPECT_TRUE(absl::IsDataLoss(reads.Read(&got, {}))) << "longer than the reader takes";
  }
  EXPECT_TRUE(absl::IsUnavailable(writes.Write(reply, {}))) << "nobody reads, and no signal comes";
  reply.mutable_object()->set_contents(std::string(1001, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(writes.Write(reply, {})));
}

}  // namespace
}  // namespace kiln
