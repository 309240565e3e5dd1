// What a connection takes: how many there are, how long one may say nothing, idle and live, what it may send.
// Each limit has a control beside it, where the same clients take what they want.
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/raw_http2.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kCompile[] = "/kiln.v1.Compiler/Compile";
constexpr milliseconds kLong(20'000);  // for what has to happen
constexpr milliseconds kShort(2'500);  // for what must not: more than twice a limit of one second

size_t Descriptors(const TestDaemon& daemon) {
  size_t count = 0;
  DIR* const directory = opendir(absl::StrCat("/proc/", daemon.pid(), "/fd").c_str());
  if (directory == nullptr) return 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// Resident, since the start or since MemoryPeakFromHere.
size_t MemoryPeak(const TestDaemon& daemon) {
  std::ifstream status(absl::StrCat("/proc/", daemon.pid(), "/status"));
  size_t kilobytes = 0;
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") status >> kilobytes;
  }
  return kilobytes << 10;
}

void MemoryPeakFromHere(const TestDaemon& daemon) {
  std::ofstream(absl::StrCat("/proc/", daemon.pid(), "/clear_refs")) << "5";
}

std::vector<std::unique_ptr<RawConnection>> Open(const TestDaemon& daemon, int count,
                                                 const std::string& says) {
  std::vector<std::unique_ptr<RawConnection>> connections;
  for (int i = 0; i < count; ++i) {
    connections.push_back(RawConnection::Open(daemon.socket()));
    EXPECT_NE(connections.back(), nullptr);
    if (connections.back() != nullptr) connections.back()->Send(says);
  }
  return connections;
}

// gRPC's limits of calls and headers hold for who has said that he knows them.
std::unique_ptr<RawConnection> OpenAndAgree(const TestDaemon& daemon) {
  std::unique_ptr<RawConnection> connection = std::move(Open(daemon, 1, Http2Hello())[0]);
  EXPECT_TRUE(connection->Receive(seconds(5)));
  connection->Send(Http2Bytes(Http2Type::kSettings, kHttp2Ack, 0, ""));
  return connection;
}

int StillOpen(const std::vector<std::unique_ptr<RawConnection>>& connections) {
  int open = 0;
  for (const auto& connection : connections) open += connection->Receive(milliseconds(0));
  return open;
}

// A Lookup as a client makes it that tries again three times.
grpc::Status HonestLookup(TestDaemon& daemon) {
  grpc::Status status;
  for (int attempt = 0; attempt < 4; ++attempt) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + seconds(30));
    v1::LookupRequest request;
    request.set_namespace_("test");
    request.set_request_key(std::string(32, 'k'));
    v1::LookupReply reply;
    status = daemon.compiler().Lookup(&context, request, &reply);
    if (status.ok()) break;
  }
  return status;
}

// ---- Who says nothing ------------------------------------------------------------------------

TEST(Connections, WhoDoesNotBeginIsClosed) {
  TestDaemon daemon("listen { handshake_seconds_max: 1 }");
  const size_t before = Descriptors(daemon);
  // Nothing, half of the preface, and all of it without settings; others are served meanwhile.
  for (const size_t bytes : {0u, 10u, 24u}) {
    const auto silent = Open(daemon, Count(67, 667), Http2Hello().substr(0, bytes));
    EXPECT_TRUE(HonestLookup(daemon).ok());
    for (const auto& connection : silent) {
      EXPECT_TRUE(connection->ClosedWithin(kLong)) << bytes;
    }
  }
  // A byte at a time, each well within the limit.
  auto slow = Open(daemon, Count(67, 667), "");
  for (const char byte : Http2Hello() + Http2Hello()) {
    std::erase_if(slow, [byte](const auto& connection) {
      return !connection->Send(std::string(1, byte)) || !connection->Receive(milliseconds(0));
    });
    if (slow.empty()) break;
    absl::SleepFor(absl::Milliseconds(200));
  }
  EXPECT_EQ(slow.size(), 0u);
  EXPECT_TRUE(HonestLookup(daemon).ok());
  EXPECT_TRUE(Eventually([&] { return Descriptors(daemon) <= before; })) << Descriptors(daemon) - before;
}

TEST(Connections, WithoutALimitWhoDoesNotBeginStays) {
  TestDaemon daemon("listen { handshake_seconds_max: 3600 }");
  EXPECT_FALSE(Open(daemon, 1, "PRI")[0]->ClosedWithin(kShort));
}

TEST(Connections, IdleOnesAreClosedAndCallsAreNotIdle) {
  TestDaemon daemon("listen { idle_seconds_max: 1 }");
  const auto idle = Open(daemon, 5, Http2Hello());
  const auto calls = Open(daemon, 1, Http2Hello() + Http2Call(1, kCompile));
  for (const auto& connection : idle) EXPECT_TRUE(connection->ClosedWithin(kLong));
  EXPECT_FALSE(calls[0]->ClosedWithin(kShort));
  // The test's own client was cut off as well, and goes on.
  EXPECT_TRUE(HonestLookup(daemon).ok());
}

TEST(Connections, WithoutALimitIdleOnesStay) {
  TestDaemon daemon("listen { idle_seconds_max: 3600 }");
  EXPECT_FALSE(Open(daemon, 1, Http2Hello())[0]->ClosedWithin(kShort));
}

TEST(Connections, OldOnesAreClosedWithTheirCalls) {
  TestDaemon daemon("listen { age_seconds_max: 1 age_grace_seconds_max: 1 }");
  EXPECT_TRUE(Open(daemon, 1, Http2Hello() + Http2Call(1, kCompile))[0]->ClosedWithin(kLong));
  // A client that calls all the time sees nothing of it.
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(HonestLookup(daemon).ok()) << i;
    absl::SleepFor(absl::Milliseconds(50));
  }
}

TEST(Connections, WithoutALimitOldOnesStay) {
  TestDaemon daemon("listen { age_seconds_max: 3600 }");
  EXPECT_FALSE(Open(daemon, 1, Http2Hello() + Http2Call(1, kCompile))[0]->ClosedWithin(kShort));
}

// ---- How many --------------------------------------------------------------------------------

TEST(Connections, ThereAreNotMoreThanMayBe) {
  TestDaemon daemon("listen { connections_max: 20 }");
  const size_t before = Descriptors(daemon);
  auto connections = Open(daemon, 60, Http2Hello());
  // One is the test's client, which goes on.
  EXPECT_TRUE(Eventually([&] { return StillOpen(connections) == 19; })) << StillOpen(connections);
  EXPECT_LE(Descriptors(daemon), before + 20);
  EXPECT_TRUE(HonestLookup(daemon).ok());
  // Places become free.
  connections.clear();
  EXPECT_TRUE(Eventually([&] { return Descriptors(daemon) <= before; }));
  EXPECT_TRUE(Eventually([&] { return !Open(daemon, 1, Http2Hello())[0]->ClosedWithin(milliseconds(500)); }));
}

TEST(Connections, WithoutALimitAllStay) {
  TestDaemon daemon;
  const auto connections = Open(daemon, 60, Http2Hello());
  absl::SleepFor(absl::FromChrono(kShort));
  EXPECT_EQ(StillOpen(connections), 60);
}

// How many of so many that come together have an answer within a second.
int AnsweredAtOnce(const TestDaemon& daemon, int count) {
  const auto connections = Open(daemon, count, Http2Hello());
  const auto end = std::chrono::steady_clock::now() + seconds(1);
  int answered = 0;
  for (const auto& connection : connections) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    Http2Frame frame;
    EXPECT_TRUE(connection->Receive(std::max(left, milliseconds(0))));
    answered += connection->Next(&frame) ? 1 : 0;
  }
  EXPECT_TRUE(Eventually([&] { return StillOpen(connections) == count; }));
  return answered;
}

TEST(Connections, ThoseOfOneUserByTheHundredWaitForTheirTurn) {
  TestDaemon daemon;
  EXPECT_EQ(AnsweredAtOnce(daemon, 200), 200);
  const int answered = AnsweredAtOnce(daemon, 800);
  EXPECT_GE(answered, 100);
  EXPECT_LE(answered, 600);
  EXPECT_TRUE(HonestLookup(daemon).ok());
}

TEST(Connections, CallsOnOneAreBounded) {
  for (const bool bounded : {true, false}) {
    TestDaemon daemon(absl::StrCat("listen { streams_max: ", bounded ? 10 : 1000, " }"));
    const auto connection = OpenAndAgree(daemon);
    for (uint32_t stream = 1; stream < 100; stream += 2) connection->Send(Http2Call(stream, kCompile));
    EXPECT_EQ(connection->ClosedWithin(bounded ? kLong : kShort), bounded);
    EXPECT_TRUE(HonestLookup(daemon).ok());
  }
}

// ---- What it sends ---------------------------------------------------------------------------

TEST(Connections, WhoPingsTooOftenIsClosed) {
  TestDaemon daemon;
  const std::string ping = Http2Bytes(Http2Type::kPing, 0, 0, "12345678");
  const auto often = std::move(Open(daemon, 1, Http2Hello())[0]);
  const auto once = std::move(Open(daemon, 1, Http2Hello() + ping)[0]);
  for (int i = 0; i < 10; ++i) often->Send(ping);
  EXPECT_TRUE(often->ClosedWithin(kLong));
  EXPECT_FALSE(once->ClosedWithin(milliseconds(500)));
}

// Whether a call with a header of so many bytes ends in so long; gRPC may close the connection with it.
bool CallEnds(RawConnection& connection, uint32_t stream, size_t header_bytes, milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  EXPECT_TRUE(connection.Send(Http2Call(stream, kCompile, std::string(header_bytes, 'x'))));
  while (std::chrono::steady_clock::now() < deadline) {
    const bool open = connection.Receive(milliseconds(50));
    for (Http2Frame frame; connection.Next(&frame);) {
      const bool ends = frame.type == Http2Type::kReset || (frame.flags & kHttp2EndStream) != 0;
      if (ends && frame.stream == stream) return true;
    }
    EXPECT_TRUE(open);
    if (!open) return false;
  }
  return false;
}

TEST(Connections, ACallWithLargeHeadersIsRefused) {
  TestDaemon daemon;
  const auto connection = OpenAndAgree(daemon);
  EXPECT_FALSE(CallEnds(*connection, 1, 4'000, kShort));
  EXPECT_TRUE(CallEnds(*connection, 3, 12'000, kLong));
}

// ---- Calls that are reset --------------------------------------------------------------------

// Another process of the test's user, which says how it went. No gRPC there: the process is a fork.
class OtherProcess {
 public:
  explicit OtherProcess(const std::function<bool()>& body) : pid_(fork()) {
    if (pid_ == 0) _exit(body() ? 0 : 1);
  }
  ~OtherProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  bool Succeeds() {
    int status = -1;
    return waitpid(std::exchange(pid_, -1), &status, 0) > 0 && status == 0;
  }

 private:
  pid_t pid_;
};

constexpr int kAFlood = 40'000;  // of resets
constexpr int kALot = 1'500;     // which may be

// Resets calls until it is cut off, and then comes again; `on_each`: calls on one connection.
bool IsKeptAwayWhenItResets(const std::string& socket, int on_each) {
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  bool closed = false;
  while (!closed && std::chrono::steady_clock::now() < deadline) {
    const auto connection = RawConnection::Open(socket);
    closed = connection == nullptr || !connection->Send(Http2Hello()) ||
             !SendResets(*connection, 1, kCompile, on_each);
  }
  const auto again = RawConnection::Open(socket);
  return closed && again != nullptr && again->ClosedWithin(seconds(5));
}

TEST(Connections, WhoResetsCallsByTheThousandIsKeptAway) {
  TestDaemon daemon;
  for (const int on_each : {kAFlood, 500, 50}) {
    const auto other = std::move(Open(daemon, 1, Http2Hello())[0]);
    OtherProcess attacker([&] { return IsKeptAwayWhenItResets(daemon.socket(), on_each); });
    EXPECT_TRUE(attacker.Succeeds()) << on_each << " calls on a connection";
    // Who does not is not.
    EXPECT_TRUE(other->Receive(milliseconds(0)));
    EXPECT_TRUE(HonestLookup(daemon).ok());
  }
}

// Interrupted by the hundred, and deadlines that pass.
TEST(Connections, WhoGivesUpCallsStays) {
  TestDaemon daemon;
  const auto interrupted = std::move(Open(daemon, 1, Http2Hello())[0]);
  EXPECT_TRUE(SendResets(*interrupted, 1, kCompile, kALot));
  for (int i = 0; i < 40; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + milliseconds(5));
    v1::CompileEvent event;
    const auto stream = daemon.compiler().Compile(&context);
    EXPECT_FALSE(stream->Read(&event));
    EXPECT_EQ(stream->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  }
  EXPECT_FALSE(interrupted->ClosedWithin(kShort));
  EXPECT_FALSE(Open(daemon, 1, Http2Hello())[0]->ClosedWithin(milliseconds(500)));
}

TEST(Connections, AnsweredCallsAreNoResets) {
  TestDaemon daemon;
  v1::LookupRequest request;
  request.set_namespace_("test");
  request.set_request_key(std::string(32, 'k'));
  for (int i = 0; i < 5'000; ++i) {
    grpc::ClientContext context;
    v1::LookupReply reply;
    // A connection that is closed would be an error: nobody tries again.
    ASSERT_EQ(daemon.compiler().Lookup(&context, request, &reply).error_code(), grpc::OK) << i;
  }
  // Nor are those that are refused.
  for (int i = 0; i < 2'500; ++i) {
    grpc::ClientContext context;
    v1::LookupReply reply;
    ASSERT_EQ(daemon.compiler().Lookup(&context, {}, &reply).error_code(), grpc::INVALID_ARGUMENT) << i;
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsBytes = false;  // the sanitizer's own would be counted
#else
constexpr bool kCountsBytes = true;
#endif

TEST(Connections, ResetsLeaveNothingBehind) {
  if (!kCountsBytes) GTEST_SKIP() << "not under a sanitizer";
  TestDaemon daemon;
  EXPECT_TRUE(HonestLookup(daemon).ok());
  MemoryPeakFromHere(daemon);
  const size_t before = MemoryPeak(daemon);
  for (int i = 0; i < Count(10, 100); ++i) {
    // Each as many as it may.
    OtherProcess other([&] {
      const auto connection = RawConnection::Open(daemon.socket());
      return connection->Send(Http2Hello()) && SendResets(*connection, 1, kCompile, kALot);
    });
    for (int lookup = 0; lookup < 20; ++lookup) EXPECT_TRUE(HonestLookup(daemon).ok()) << lookup;
    EXPECT_TRUE(other.Succeeds());
  }
  EXPECT_LE(MemoryPeak(daemon), before + (128u << 20));  // what gRPC reads ahead of one such burst, or two
}

// ---- Memory ----------------------------------------------------------------------------------

// How much the daemon grows by senders of one large message after the other, and whether others were served.
size_t GrowthBySenders(TestDaemon& daemon) {
  EXPECT_TRUE(HonestLookup(daemon).ok());
  MemoryPeakFromHere(daemon);
  const size_t before = MemoryPeak(daemon);
  const auto end = std::chrono::steady_clock::now() + seconds(Count(6, 60));
  std::vector<std::thread> senders;
  for (int i = 0; i < 8; ++i) {
    senders.emplace_back([&] {
      while (std::chrono::steady_clock::now() < end) {
        const auto connection = std::move(Open(daemon, 1, Http2Hello())[0]);
        SendLargeMessage(*connection, 1, kCompile, static_cast<size_t>(Count(64, 256)) << 20, end);
        absl::SleepFor(absl::Milliseconds(50));  // not what is asked here: connections by the hundred
      }
    });
  }
  const absl::Cleanup join = [&] {
    for (std::thread& sender : senders) sender.join();
  };
  for (int i = 0; i < Count(100, 1000) || std::chrono::steady_clock::now() < end; ++i) {
    const grpc::Status status = HonestLookup(daemon);
    EXPECT_TRUE(status.ok()) << i << ": " << status.error_message();
    absl::SleepFor(absl::Milliseconds(20));
  }
  return MemoryPeak(daemon) - before;
}

TEST(Connections, LargeMessagesAreBoundedInMemory) {
  if (!kCountsBytes) GTEST_SKIP() << "not under a sanitizer";
  constexpr size_t kCap = 48u << 20;
  TestDaemon daemon(absl::StrCat("listen { memory_bytes: ", kCap, " }"));
  EXPECT_LE(GrowthBySenders(daemon), kCap + (64u << 20));
}

TEST(Connections, WithoutALimitLargeMessagesAreNot) {
  TestDaemon daemon("listen { memory_bytes: 8000000000 }");
  EXPECT_GT(GrowthBySenders(daemon), 200u << 20);
}

// ---- Health ----------------------------------------------------------------------------------

// What gRPC's health service says, as its message's bytes: the first field is 1 for SERVING, 2 for
// NOT_SERVING.
std::string HealthOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(20));
  const std::string request =
      service.empty() ? "" : absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
  const grpc::Slice slice(request);
  const grpc::ByteBuffer message(&slice, 1);
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", message, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag;
  bool ok;
  queue.Next(&tag, &ok);
  grpc::Slice bytes;
  if (!status.ok() || !reply.DumpToSingleSlice(&bytes).ok()) return status.error_message();
  return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
}

constexpr char kServing[] = "\x08\x01", kNotServing[] = "\x08\x02";

std::shared_ptr<grpc::Channel> ChannelTo(const TestDaemon& daemon) {
  return grpc::CreateChannel(absl::StrCat("unix:", daemon.socket()), grpc::InsecureChannelCredentials());
}

TEST(Connections, HealthIsToldToWhoAsks) {
  TestDaemon daemon;
  const auto channel = ChannelTo(daemon);
  EXPECT_EQ(HealthOf(channel, ""), kServing);
  EXPECT_EQ(HealthOf(channel, "kiln.v1.Compiler"), kServing);
  EXPECT_NE(HealthOf(channel, "nobody.v1"), kServing);
}

// From SIGTERM on nobody new is to come, though what runs is finished. Who is drained by hand serves hits.
TEST(Connections, HealthIsNotServingWhileTheDaemonEndsAndServingWhileItIsDrained) {
  TestDaemon daemon;
  const auto channel = ChannelTo(daemon);
  const auto caller =  // until all was seen
      std::async(std::launch::async, [&] { return daemon.Compile("sleep_ms 60000"); });
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::JobsReply reply;
    // One that only waits for its place is refused by the drain.
    return daemon.admin().Jobs(&context, {}, &reply).ok() && reply.jobs_size() == 1 &&
           reply.jobs(0).phase() == "planning";
  }));
  {
    grpc::ClientContext context;
    v1::DrainReply reply;
    ASSERT_TRUE(daemon.admin().Drain(&context, {}, &reply).ok());
    ASSERT_TRUE(reply.drained());
  }
  for (const char* service : {"", "kiln.v1.Compiler"}) EXPECT_EQ(HealthOf(channel, service), kServing);
  ASSERT_EQ(kill(daemon.pid(), SIGTERM), 0);
  for (const char* service : {"", "kiln.v1.Compiler"})
    EXPECT_TRUE(Eventually([&] { return HealthOf(channel, service) == kNotServing; })) << service;
  daemon.Stop(SIGKILL);
}

}  // namespace
}  // namespace kiln
