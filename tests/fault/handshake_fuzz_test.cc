// Handshakes that are nearly right: mutations of a ClientHello of TLS, and of HTTP/2's preface with the first
// settings, as gRPC says them, to kilnd by TCP and by its unix socket. Promises: the process stays, honest
// callers are answered, and no descriptor is left.
// KILN_FULL: ten times as many. KILN_SEED: where to start.
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/upstream_daemons.h"
#include "tests/fuzz/byte_mutator.h"

namespace kiln {
namespace {

constexpr int kThreads = 4;

int ConnectTcp(const std::string& address) {
  const int peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(atoi(address.substr(address.rfind(':') + 1).c_str())));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(peer, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  return peer;
}

int ConnectUnix(const std::string& path) {
  const int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  strncpy(to.sun_path, path.c_str(), sizeof(to.sun_path) - 1);
  EXPECT_EQ(connect(peer, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  return peer;
}

// What a client of gRPC says first, without an answer.
std::string Recorded(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  EXPECT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&at), size), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size), 0);
  const auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", ntohs(at.sin_port)), credentials);
  channel->GetState(/*try_to_connect=*/true);
  const int peer = accept(listener, nullptr, nullptr);
  std::string bytes;
  char block[4096];
  pollfd wait = {peer, POLLIN, 0};
  // Until it waits for us.
  while (poll(&wait, 1, bytes.empty() ? 10'000 : 300) == 1) {
    const ssize_t got = read(peer, block, sizeof(block));
    if (got <= 0) break;
    bytes.append(block, static_cast<size_t>(got));
  }
  close(peer);
  close(listener);
  return bytes;
}

class HandshakeFuzz : public UpstreamTlsDaemons {
 protected:
  // Says it, and leaves at once, or after the daemon has answered or ended it.
  void Say(int peer, const std::string& bytes, bool waits) {
    if (send(peer, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0 && waits) {
      shutdown(peer, SHUT_WR);
      char block[4096];
      pollfd wait = {peer, POLLIN, 0};
      while (poll(&wait, 1, 2'000) == 1 && read(peer, block, sizeof(block)) > 0) {
      }
    }
    close(peer);
  }
  // All `cases` of them, on a few threads.
  void Campaign(const std::string& bytes, int cases, const std::function<int()>& connect) {
    ASSERT_GT(bytes.size(), 20u);
    uint64_t first = 1;
    const char* const seed = getenv("KILN_SEED");
    ASSERT_TRUE(seed == nullptr || absl::SimpleAtoi(seed, &first));
    std::atomic<int> next{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = next++; i < cases; i = next++) {
          ByteMutator mutator(first + static_cast<uint64_t>(i));
          const std::string changed = mutator.Mutate(bytes);
          Say(connect(), changed, mutator.Pick(2) == 0);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void ExpectAnswers() {
    v1::HelloRequest request;
    request.set_protocol_min(1);
    request.set_protocol_max(1);
    v1::HelloReply reply;
    grpc::ClientContext by_socket, by_tls;
    EXPECT_TRUE(farm_.compiler().Hello(&by_socket, request, &reply).ok());
    EXPECT_EQ(CompileAs("red", farm_, "name honest"), "red");
    EXPECT_EQ(farm_.Wait(absl::ZeroDuration()), -1) << "the process is there";
  }

  TestDaemon farm_{Farm()};
};

TEST_F(HandshakeFuzz, NothingEndsTheDaemonAndNothingStays) {
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = authority_.certificate();
  const std::string hello = Recorded(grpc::SslCredentials(tls));
  const std::string preface = Recorded(grpc::InsecureChannelCredentials());
  ASSERT_EQ(hello.substr(0, 2), std::string("\x16\x03")) << "a record of TLS's handshake";
  ASSERT_EQ(preface.substr(0, 14), "PRI * HTTP/2.0");
  ExpectAnswers();
  const std::string address = AddressOf(farm_), unix_socket = farm_.socket();
  const pid_t pid = farm_.pid();
  const auto open = [&] { return OpenDescriptors(pid, farm_.directory()); };
  const size_t before = open();
  const int each = Count(250, 2'500);  // of four kinds
  for (const std::string& bytes : {hello, preface}) {
    Campaign(bytes, each, [&] { return ConnectTcp(address); });
    Campaign(bytes, each, [&] { return ConnectUnix(unix_socket); });
  }
  ExpectAnswers();
  EXPECT_EQ(farm_.pid(), pid);
  EXPECT_TRUE(Eventually([&] { return open() <= before + 2; }, absl::Seconds(30)))
      << open() << " descriptors are open, " << before << " were";
}

// The control of the last: who keeps connections is seen.
TEST_F(HandshakeFuzz, ConnectionsThatStayAreSeen) {
  const size_t before = OpenDescriptors(farm_.pid(), farm_.directory());
  std::vector<int> kept;
  for (int i = 0; i < 8; ++i) kept.push_back(ConnectTcp(AddressOf(farm_)));
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors(farm_.pid(), farm_.directory()) >= before + 8; }));
  for (const int peer : kept) close(peer);
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors(farm_.pid(), farm_.directory()) <= before + 2; }));
}

}  // namespace
}  // namespace kiln
