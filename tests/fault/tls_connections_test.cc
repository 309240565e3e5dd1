// What connections_test.cc asks of a unix socket, by TLS: who resets calls by the thousand, and who begins a
// handshake and goes no further. Hosts are addresses of the loopback. Each has its control beside it: the
// same clients, within what may be.
#include <sys/socket.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/raw_http2.h"
#include "tests/fault/tls_tunnel.h"
#include "tests/fault/upstream_daemons.h"

namespace kiln {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kCompile[] = "/kiln.v1.Compiler/Compile";
constexpr char kHonest[] = "127.0.0.1";
constexpr seconds kLong(60);  // for what has to happen
constexpr int kAFlood = 40'000;
constexpr int kALot = 1'500;  // which may be
constexpr int kSome = 900;    // two hosts' together

// HTTP/2 within TLS.
struct TlsConnection {
  std::unique_ptr<TlsTunnel> tunnel;
  std::unique_ptr<RawConnection> http;
};

// For kilnd to read what has been sent.
constexpr milliseconds kReading(20);

class TlsConnections : public UpstreamTlsDaemons {
 protected:
  void Start(const std::string& limits = "") {
    daemon_ = std::make_unique<TestDaemon>(
        Listen(absl::StrCat(R"(tenants { name: "red" identities: "kiln:red" } )", limits)));
    address_ = AddressOf(*daemon_);
  }
  // `http` is null where the handshake is refused.
  TlsConnection Open(const std::string& host) {
    TlsConnection made{TlsTunnel::Open(host, address_, client_), nullptr};
    if (made.tunnel != nullptr) made.http = RawConnection::Of(made.tunnel->TakeDescriptor());
    if (made.http != nullptr) made.http->Send(Http2Hello());
    return made;
  }
  // Resets calls until it is cut off, `on_each` on a connection.
  bool IsCutOff(const std::string& host, int on_each) {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (std::chrono::steady_clock::now() < deadline) {
      const TlsConnection made = Open(host);
      if (made.http == nullptr || !SendResets(*made.http, 1, kCompile, on_each)) return true;
      made.http->Receive(kReading);  // calls that kilnd has not read when their connection ends were none
    }
    return false;
  }
  bool IsKeptAway(const std::string& host) const {
    return absl::StrContains(Log(), absl::StrCat("host ", host, " resets calls"));
  }
  std::string Log() const {
    std::ifstream log(daemon_->directory() + "/log");
    std::stringstream text;
    text << log.rdbuf();
    return text.str();
  }
  size_t Descriptors() const { return OpenDescriptors(daemon_->pid(), daemon_->directory()); }

  const CertificatePair client_ = PairOf("red");
  std::unique_ptr<TestDaemon> daemon_;
  std::string address_;
};

TEST_F(TlsConnections, AHostThatResetsCallsByTheThousandIsKeptAway) {
  Start();
  const TlsConnection other = Open(kHonest);
  ASSERT_NE(other.http, nullptr);
  const std::pair<const char*, int> attackers[] = {
      {"127.0.0.2", kAFlood}, {"127.0.0.3", 500}, {"127.0.0.4", 50}};
  for (const auto& [host, on_each] : attackers) {
    EXPECT_TRUE(IsCutOff(host, on_each)) << on_each << " calls on a connection";
    EXPECT_TRUE(Eventually([&] { return IsKeptAway(host); })) << host;
    // It costs nobody a handshake from now on.
    EXPECT_EQ(Open(host).http, nullptr);
    // Who does not is not.
    EXPECT_TRUE(other.http->Receive(milliseconds(0)));
    EXPECT_EQ(CompileAs("red", *daemon_, absl::StrCat("name beside_", on_each)), "red");
  }
  EXPECT_FALSE(IsKeptAway(kHonest));
}

// The control: what any host may give up.
TEST_F(TlsConnections, AHostThatGivesUpCallsStays) {
  Start();
  const TlsConnection interrupted = Open("127.0.0.2");
  ASSERT_NE(interrupted.http, nullptr);
  EXPECT_TRUE(SendResets(*interrupted.http, 1, kCompile, kALot));
  EXPECT_FALSE(interrupted.http->ClosedWithin(milliseconds(2'500)));
  EXPECT_NE(Open("127.0.0.2").http, nullptr);
  EXPECT_FALSE(IsKeptAway("127.0.0.2"));
}

// On connections that end between two looks.
TEST_F(TlsConnections, WhatHostsGiveUpIsNotAddedUp) {
  Start();
  for (int i = 0; i < 4; ++i) {
    const TlsConnection made = Open(absl::StrCat("127.0.1.", i + 1));
    ASSERT_NE(made.http, nullptr) << i;
    EXPECT_TRUE(SendResets(*made.http, 1, kCompile, kSome));
    EXPECT_TRUE(made.http->Receive(milliseconds(0)));
  }
  EXPECT_EQ(CompileAs("red", *daemon_, "name after"), "red");
  EXPECT_FALSE(absl::StrContains(Log(), "resets calls"));
}

// The start of a ClientHello's record, and what follows does not come.
constexpr char kHalfOpen[] = "\x16\x03\x01\x02\x00\x01";

TEST_F(TlsConnections, HandshakesThatDoNotGoOnEnd) {
  Start("handshake_seconds_max: 3");
  EXPECT_EQ(CompileAs("red", *daemon_, "name before"), "red");
  const size_t before = Descriptors();
  for (const size_t bytes : {0u, 3u, 6u}) {
    std::vector<std::unique_ptr<RawConnection>> silent;
    for (int i = 0; i < Count(60, 660); ++i) {
      silent.push_back(RawConnection::Of(ConnectFrom("127.0.0.2", address_)));
      silent.back()->Send(std::string(kHalfOpen, bytes));
    }
    EXPECT_EQ(CompileAs("red", *daemon_, absl::StrCat("name beside_", bytes)), "red");
    for (const auto& connection : silent) EXPECT_TRUE(connection->ClosedWithin(kLong)) << bytes;
  }
  EXPECT_TRUE(Eventually([&] { return Descriptors() <= before + 2; }, absl::Seconds(30)))
      << Descriptors() << " are open, " << before << " were";
}

TEST_F(TlsConnections, WithoutALimitHandshakesThatDoNotGoOnStay) {
  Start("handshake_seconds_max: 3600");
  const auto silent = RawConnection::Of(ConnectFrom("127.0.0.2", address_));
  silent->Send(std::string(kHalfOpen, 6));
  EXPECT_FALSE(silent->ClosedWithin(milliseconds(6'000)));
}

}  // namespace
}  // namespace kiln
