// A connection to a server of the Redis protocol, against servers that keep no promise: byte by byte, silent,
// foul.
#include "cache/shared/redis_connection.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/shared/redis_address.h"
#include "gtest/gtest.h"
#include "tests/fuzz/byte_mutator.h"

namespace kiln {
namespace {

TEST(RedisAddress, IsAHostAndAPortOrASocket) {
  EXPECT_EQ(RedisAddress::Parse("unix:/run/tier.sock")->unix_path, "/run/tier.sock");
  EXPECT_EQ(RedisAddress::Parse("tier.example:6379")->host, "tier.example");
  EXPECT_EQ(RedisAddress::Parse("tier.example:6379")->port, 6379);
  EXPECT_EQ(RedisAddress::Parse("[::1]:1")->host, "::1");
  for (const char* wrong : {"", "tier", "tier:", "tier:0", "tier:65536", "tier:port", ":6379", "[::1:6379",
                            "unix:", "unix:tier.sock"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(RedisAddress::Parse(wrong).status())) << wrong;
  }
  EXPECT_FALSE(RedisAddress::Parse(absl::StrCat("unix:/", std::string(108, 'x'))).ok());
}

// Answers the PING, then whatever comes next by `behave`.
class Server {
 public:
  explicit Server(std::function<void(int)> behave) {
    char path[] = "/tmp/kiln-redis-XXXXXX";
    directory_ = mkdtemp(path);
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, (directory_ + "/s").c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    thread_ = std::thread([this, behave = std::move(behave)] {
      const int peer = accept(listener_, nullptr, nullptr);
      char bytes[4096];
      if (peer >= 0 && read(peer, bytes, sizeof(bytes)) > 0) {
        Say(peer, "+PONG\r\n");
        if (read(peer, bytes, sizeof(bytes)) > 0) behave(peer);
      }
      close(peer);
    });
  }
  ~Server() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
    std::filesystem::remove_all(directory_);
  }
  static bool Say(int peer, const std::string& bytes) {
    return send(peer, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  RedisAddress address() const { return *RedisAddress::Parse(absl::StrCat("unix:", directory_, "/s")); }

 private:
  std::string directory_;
  int listener_ = -1;
  std::thread thread_;
};

// How a command ends, and after how long.
struct Outcome {
  absl::Status status;
  absl::Duration time;
};
Outcome Ask(const std::function<void(int)>& behave, absl::Duration limit = absl::Milliseconds(300)) {
  const Server server(behave);
  auto connection = RedisConnection::Connect(server.address(), {}, MonotonicAfter(absl::Seconds(20)));
  EXPECT_TRUE(connection.ok()) << connection.status();
  const absl::Time begin = absl::Now();
  const auto replies = (*connection)->Run({{"GET", "key"}}, MonotonicAfter(limit));
  return {replies.status(), absl::Now() - begin};
}

TEST(RedisConnection, AnswersInTime) {
  EXPECT_TRUE(Ask([](int peer) { Server::Say(peer, "$5\r\nvalue\r\n"); }, absl::Seconds(20)).status.ok());
}

// Each byte comes soon after the one before: it is the whole that has a limit.
TEST(RedisConnection, ByteByByteIsTooSlow) {
  const Outcome outcome = Ask([](int peer) {
    Server::Say(peer, "$1000\r\n");
    for (int i = 0; i < 200 && Server::Say(peer, "x"); ++i) absl::SleepFor(absl::Milliseconds(10));
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(outcome.status)) << outcome.status;
  EXPECT_LT(outcome.time, absl::Seconds(1.5));
}

TEST(RedisConnection, SilenceIsTooSlow) {
  const Outcome outcome = Ask([](int peer) {
    pollfd wait = {peer, POLLRDHUP, 0};
    poll(&wait, 1, 20'000);
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(outcome.status)) << outcome.status;
}

TEST(RedisConnection, WhoClosesIsUnavailable) {
  EXPECT_TRUE(absl::IsUnavailable(Ask([](int) {}, absl::Seconds(20)).status));
}

TEST(RedisConnection, WhatIsNoProtocolIsDataLoss) {
  for (const char* foul :
       {"HTTP/1.1 400 Bad Request\r\n", "$-7\r\n", "*1000000000\r\n", "$99999999999999999999\r\n"}) {
    const Outcome outcome = Ask([foul](int peer) { Server::Say(peer, foul); }, absl::Seconds(5));
    EXPECT_TRUE(absl::IsDataLoss(outcome.status) || absl::IsUnavailable(outcome.status))
        << foul << outcome.status;
  }
}

// Replies that are nearly right, by seeds (KILN_FULL: ten times as many).
TEST(RedisConnection, WhatIsNearlyTheProtocolIsAReplyOrOneOfItsErrors) {
  const std::string replies[] = {"+OK\r\n",
                                 "$5\r\nvalue\r\n",
                                 "$-1\r\n",
                                 ":1234\r\n",
                                 "-MOVED 1234 127.0.0.1:6379\r\n",
                                 "*3\r\n$1\r\na\r\n:12\r\n*1\r\n$-1\r\n"};
  for (const std::string& reply : replies)
    EXPECT_TRUE(Ask([&](int peer) { Server::Say(peer, reply); }, absl::Seconds(20)).status.ok()) << reply;
  const uint64_t cases = getenv("KILN_FULL") != nullptr ? 10'000 : 1'000;
  uint64_t refused = 0;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    ByteMutator mutator(seed);
    const std::string changed = mutator.Mutate(replies[seed % std::size(replies)]);
    const Outcome outcome = Ask([&](int peer) { Server::Say(peer, changed); }, absl::Seconds(20));
    refused += !outcome.status.ok();
    EXPECT_TRUE(outcome.status.ok() || absl::IsDataLoss(outcome.status) ||
                absl::IsUnavailable(outcome.status))
        << "seed " << seed << ": " << outcome.status;
  }
  EXPECT_GT(refused, cases / 4) << "they are wrong";
  EXPECT_LT(refused, cases) << "and not by much";
}

TEST(RedisConnection, NobodyThereIsUnavailable) {
  const auto connection = RedisConnection::Connect(*RedisAddress::Parse("unix:/tmp/kiln-nobody-is-here"), {},
                                                   MonotonicAfter(absl::Seconds(5)));
  EXPECT_TRUE(absl::IsUnavailable(connection.status())) << connection.status();
}

}  // namespace
}  // namespace kiln
