// Connections by TLS that take what is others': without a handshake, and too many of one host.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/tls_daemon.h"

namespace kiln {
namespace {

// How long kilnd leaves a TCP connection open that says nothing, or `text`, and no more.
absl::Duration OpenFor(const std::string& address, const std::string& text) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  EXPECT_EQ(connect(descriptor, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
  const absl::Time start = absl::Now();
  send(descriptor, text.data(), text.size(), MSG_NOSIGNAL);
  pollfd wait = {descriptor, POLLRDHUP, 0};
  poll(&wait, 1, 30'000);
  close(descriptor);
  return absl::Now() - start;
}

TEST_F(IdentityTest, WhoDoesNotShakeHandsIsCutOff) {
  Start("handshake_seconds_max: 1");
  EXPECT_LT(OpenFor(address_, ""), absl::Seconds(10));
  EXPECT_LT(OpenFor(address_, std::string("\x16\x03\x01", 3)), absl::Seconds(10))
      << "the start of a ClientHello";
  Start("handshake_seconds_max: 12");  // the control
  EXPECT_GT(OpenFor(address_, ""), absl::Seconds(10));
}

// The control is the daemon that lets a tenant have them all.
TEST_F(IdentityTest, OneHostDoesNotTakeAllConnections) {
  for (const int of_one : {5, 8}) {
    Start(absl::StrCat("connections_max: 8 tenant_connections_max: ", of_one));
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    int served = 0;
    for (int i = 0; i < 10; ++i) {
      channels.push_back(ChannelOf("read"));
      served += Hello(channels.back()).ok();
    }
    EXPECT_EQ(served, of_one);
    EXPECT_GE(daemon_->Stats().lookups(), 0) << "kilnd's own user is served";
  }
}

}  // namespace
}  // namespace kiln
