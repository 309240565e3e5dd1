// By TLS: a compile that takes long is not taken for a peer that is gone, and a peer whose packets are lost
// is found out in 15 seconds, at both ends.
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/channel/channel.h"
#include "compiler/graph/key.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/cut_proxy.h"
#include "tests/fault/lateness.h"
#include "tests/fault/upstream_daemons.h"

namespace kiln {
namespace {

constexpr absl::Duration kFoundWithin = absl::Seconds(15);
constexpr absl::Duration kLatenessMax = absl::Seconds(5);
// As many pings of a client as end its connection at a server that counts them.
constexpr absl::Duration kSlow = absl::Seconds(38);

class DistantSilence : public UpstreamTlsDaemons {
 protected:
  TlsFiles Files() const {
    return {absl::StrCat(directory_, "/red.crt"), absl::StrCat(directory_, "/red.key"),
            absl::StrCat(directory_, "/ca.crt")};
  }
  std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address) const {
    const auto channel = NewChannel(address, Files(), TlsVariables(), -1);
    EXPECT_TRUE(channel.ok()) << channel.status();
    return *channel;
  }
};

// A server that takes no ping for minutes, and one strike.
class StrictServer {
 public:
  StrictServer(const std::string& authority, const CertificatePair& pair) {
    grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    tls.pem_root_certs = authority;
    tls.pem_key_cert_pairs.push_back({pair.key, pair.certificate});
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(tls), &port_);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 1);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }
  ~StrictServer() { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  class SlowHello final : public v1::Compiler::Service {
    grpc::Status Hello(grpc::ServerContext* context, const v1::HelloRequest*, v1::HelloReply*) override {
      const MonotonicTime end = MonotonicAfter(kSlow);
      while (MonotonicNow() < end && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(100));
      return grpc::Status::OK;
    }
  };
  SlowHello service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// The control, at the same time: the same client's connection to a server that counts its pings ends.
TEST_F(DistantSilence, ASlowCompileIsNoDeadPeer) {
  CertificateWish wish;
  wish.hosts = {"IP:127.0.0.1"};
  wish.usage = "serverAuth";
  const StrictServer strict(authority_.certificate(), authority_.Issue(wish));
  grpc::Status counted;
  std::thread control([&] {
    grpc::ClientContext context;
    v1::HelloReply reply;
    counted = v1::Compiler::NewStub(ChannelTo(strict.address()))->Hello(&context, {}, &reply);
  });
  TestDaemon farm(Farm());
  CutProxy wire(AddressOf(farm));
  ClientOptions options;
  options.address = wire.address();
  options.tls.certificate = Files().certificate;
  options.tls.key = Files().key;
  options.tls.authority = Files().authority;
  options.compile_seconds = 120;
  CompileRequestInput input;
  input.graph = absl::StrCat("name slow\nsleep_ms ", absl::ToInt64Milliseconds(kSlow));
  input.sections = SectionsOf(input.graph);
  input.request_key = RequestKey(input.sections);
  const auto got = NewClient(options)->Get(input, /*compile=*/true);
  control.join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(got->recovered.empty()) << got->recovered[0];
  EXPECT_EQ(wire.accepted(), 1);
  EXPECT_EQ(farm.Stats().compiles(), 1);
  std::ifstream log(farm.directory() + "/log");
  std::stringstream text;
  text << log.rdbuf();
  EXPECT_FALSE(absl::StrContains(text.str(), "too_many_pings")) << text.str();
  EXPECT_EQ(counted.error_code(), grpc::UNAVAILABLE) << counted.error_message();
  EXPECT_TRUE(absl::StrContains(counted.error_message(), "Too many pings") ||
              absl::StrContains(counted.error_message(), "too_many_pings"))
      << counted.error_message();
}

// ---- Packets that are lost --------------------------------------------------------------------

bool Filter(const std::string& rules) {
  FILE* const nft = popen("nft -f - 2>/dev/null", "w");
  if (nft == nullptr) return false;
  fwrite(rules.data(), 1, rules.size(), nft);
  return pclose(nft) == 0;
}

// A network of this process and its children; once.
bool HasNetwork() {
  static const bool has = unshare(CLONE_NEWNET) == 0 && system("ip link set lo up 2>/dev/null") == 0 &&
                          Filter("table inet lost {}\n");
  return has;
}

// From now on nothing passes, either way, and nobody is told.
void LoseAllOf(const std::string& address) {
  const std::string port = address.substr(address.rfind(':') + 1);
  EXPECT_TRUE(
      Filter(absl::StrCat("table inet lost {\nchain in {\ntype filter hook input priority 0;\ntcp dport ",
                          port, " drop\ntcp sport ", port, " drop\n}\n}\n")));
}

TEST_F(DistantSilence, LostPacketsAreFoundOutAtBothEnds) {
  if (!HasNetwork())
    GTEST_SKIP() << "no network namespace with nftables here (root, apt-get install nftables)";
  TestDaemon farm(Farm());
  const std::string address = AddressOf(farm);
  const auto connections = [&] {
    grpc::ClientContext call;
    v1::TenantsReply tenants;
    EXPECT_TRUE(farm.admin().Tenants(&call, {}, &tenants).ok());
    return tenants.connections();
  };
  const uint64_t others = connections();
  const auto stub = v1::Compiler::NewStub(ChannelTo(address));
  grpc::ClientContext context;
  const auto stream = stub->Compile(&context);
  Send("red", "name long\nsleep_ms 90000", stream.get());
  ASSERT_TRUE(Eventually([&] { return Jobs(farm) == 1 && connections() == others + 1; }));
  Lateness lateness;
  LoseAllOf(address);
  const MonotonicTime begin = MonotonicNow();
  absl::Duration by_client, by_daemon;
  std::thread daemons([&] {
    EXPECT_TRUE(Eventually([&] { return connections() == others; }, absl::Seconds(60)));
    by_daemon = absl::FromChrono(MonotonicNow() - begin);
  });
  v1::CompileEvent event;
  while (stream->Read(&event)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  by_client = absl::FromChrono(MonotonicNow() - begin);
  daemons.join();
  const std::vector<absl::Duration>& naps = lateness.End();
  const absl::Duration worst =
      naps.empty() ? absl::ZeroDuration() : *std::max_element(naps.begin(), naps.end());
  const absl::Duration late = std::min(worst, kLatenessMax);
  EXPECT_LE(by_client, kFoundWithin + late);
  EXPECT_LE(by_daemon, kFoundWithin + late);
  // It is no drop that ends them at once.
  EXPECT_GT(by_client, absl::Seconds(1));
  EXPECT_GT(by_daemon, absl::Seconds(1));
}

TEST_F(DistantSilence, WithoutPingsLostPacketsAreWaitedFor) {
  if (!HasNetwork())
    GTEST_SKIP() << "no network namespace with nftables here (root, apt-get install nftables)";
  TestDaemon farm(Farm());
  const std::string address = AddressOf(farm);
  const CertificatePair pair = PairOf("red");
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = authority_.certificate();
  options.pem_cert_chain = pair.certificate;
  options.pem_private_key = pair.key;
  const auto stub = v1::Compiler::NewStub(grpc::CreateChannel(address, grpc::SslCredentials(options)));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(25));
  const auto stream = stub->Compile(&context);
  Send("red", "name long\nsleep_ms 90000", stream.get());
  ASSERT_TRUE(Eventually([&] { return Jobs(farm) == 1; }));
  LoseAllOf(address);
  v1::CompileEvent event;
  while (stream->Read(&event)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
}

}  // namespace
}  // namespace kiln
