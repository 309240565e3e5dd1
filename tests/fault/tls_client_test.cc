// Clients of kilnd by TLS: their files, why there is no connection, and a peer that is dead.
#include <signal.h>

#include <regex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/certificates.h"
#include "tests/fault/cut_proxy.h"
#include "tests/fault/test_daemon.h"
#include "tests/fault/tls_daemon.h"

namespace kiln {
namespace {

class TlsClientTest : public IdentityTest {
 protected:
  ClientOptions OptionsWith(const CertificatePair& pair) {
    Write("client.crt", pair.certificate);
    Write("client.key", pair.key);
    ClientOptions options;
    options.address = address_;
    options.tls.authority = directory_ + "/ca.crt";
    options.tls.certificate = directory_ + "/client.crt";
    options.tls.key = directory_ + "/client.key";
    options.connect_seconds = 20;
    return options;
  }
  ClientOptions OptionsOf(const std::string& tenant) {
    return OptionsWith(authority_.Issue(Of(absl::StrCat("kiln:", tenant))));
  }
  static absl::StatusOr<CompiledArtifact> Get(const ClientOptions& options, const std::string& script) {
    CompileRequestInput input;
    input.graph = script;
    input.sections = SectionsOf(script);
    input.request_key = RequestKey(input.sections);
    return NewClient(options)->Get(input, /*compile=*/true);
  }
};

TEST_F(TlsClientTest, CompilesAndReadsItsFilesAnew) {
  Start();
  const ClientOptions options = OptionsOf("compile");
  const auto compiled = Get(options, "kernels 2");
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(compiled->objects.size(), 2u);
  EXPECT_EQ(compiled->manifest.namespace_(), "compile");
  OptionsOf("read");  // the same files
  const auto refused = Get(options, "kernels 3");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(
      absl::StrContains(refused.status().message(), "needs role compile, which tenant \"read\" lacks"))
      << refused.status();
}

TEST_F(TlsClientTest, SaysWhyThereIsNoConnection) {
  Start();
  CertificateWish expired = Of("kiln:compile");
  expired.ends_seconds = -1;
  const TestAuthority other;
  for (const auto& [pair, says] :
       {std::pair{authority_.Issue(expired), "do not take each other's certificates: .*KILN_TLS_CERT"},
        std::pair{other.Issue(Of("kiln:compile")), "do not take each other's certificates: .*KILN_TLS_CERT"},
        std::pair{authority_.Issue(Of("kiln:root")), "kiln:root is no tenant's"}}) {
    const absl::Time start = absl::Now();
    const absl::Status status = Get(OptionsWith(pair), "kernels 1").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
    EXPECT_TRUE(std::regex_search(std::string(status.message()), std::regex(says))) << status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(15)) << "before the time for a connection is over";
  }
  ClientOptions options = OptionsOf("compile");
  options.tls.authority = directory_ + "/none.crt";
  const absl::Status unreadable = Get(options, "kernels 1").status();
  EXPECT_EQ(unreadable.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::regex_search(std::string(unreadable.message()),
                                std::regex("KILN_TLS_CA: .*/none.crt cannot be read")))
      << unreadable;
  options = OptionsOf("compile");
  options.connect_seconds = 1;
  daemon_ = nullptr;
  EXPECT_EQ(Get(options, "kernels 1").status().code(), absl::StatusCode::kUnavailable);
}

// A connection that ends at once is no word on certificates, until the next ones do, too.
TEST_F(TlsClientTest, AConnectionThatEndsIsTriedAgain) {
  Start();
  CutProxy wire(address_);
  ClientOptions options = OptionsOf("compile");
  options.address = wire.address();
  wire.Refuse(true);
  std::thread returns([&] {
    EXPECT_TRUE(Eventually([&] { return wire.accepted() > 0; }));
    wire.Refuse(false);
  });
  EXPECT_TRUE(Get(options, "kernels 1").ok());
  returns.join();
}

TEST_F(TlsClientTest, WithoutTlsNothingIsSaidOfCertificates) {
  Start();
  ClientOptions options;
  options.address = address_;
  options.connect_seconds = 4;
  const absl::Status status = Get(options, "kernels 1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(std::regex_search(std::string(status.message()),
                                std::regex("no kilnd answers at .*; where it takes mutual TLS alone, set "
                                           "KILN_TLS_CA, KILN_TLS_CERT and KILN_TLS_KEY")))
      << status;
}

// kilnd is stopped, so that its host answers and it does not. The control is a caller that does not ask.
TEST_F(TlsClientTest, ADeadPeerIsFoundWhileItIsWaitedFor) {
  Start();
  ClientOptions options = OptionsOf("compile");
  options.compile_seconds = 120;
  options.connect_seconds = 1;
  const std::string script = "sleep_ms 90000\nname long";
  std::thread stops([&] {
    const bool runs = Eventually([&] {
      v1::JobsReply jobs;
      grpc::ClientContext context;
      return daemon_->admin().Jobs(&context, {}, &jobs).ok() && jobs.jobs_size() == 1 &&
             jobs.jobs(0).waiters() == 2;
    });
    EXPECT_TRUE(runs);
    kill(daemon_->pid(), SIGSTOP);
  });
  grpc::Status without;
  std::thread control([&] { without = Compile(ChannelOf("compile"), script).status; });
  const absl::Time start = absl::Now();
  const absl::Status status = Get(options, script).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(45))
      << "15 s, connections that come to nothing, and a loaded machine";
  stops.join();
  control.join();
  EXPECT_EQ(without.error_code(), grpc::DEADLINE_EXCEEDED);
  kill(daemon_->pid(), SIGCONT);
}

}  // namespace
}  // namespace kiln
