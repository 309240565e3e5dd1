// Who is served by which certificate: good and bad ones, files of them, and certificates that change while
// kilnd serves.
#include "tests/fault/certificates.h"

#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/tls_files.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/test_daemon.h"
#include "tests/fault/tls_daemon.h"

namespace kiln {
namespace {

TEST_F(IdentityTest, WhoIsServedByWhichCertificate) {
  Start();
  CertificateWish expired = Of("kiln:read"), early = Of("kiln:read"), mail = Of("kiln:read"), nameless,
                  two = Of("kiln:read"), twice = Of("kiln:read"), named;
  expired.begins_seconds = -7200, expired.ends_seconds = -3600;
  early.begins_seconds = 3600, early.ends_seconds = 7200;
  mail.usage = "emailProtection";
  two.uris.push_back("kiln:compile");
  twice.uris.push_back("https://elsewhere.example");
  named.common_name = "kiln:read";
  named.hosts = {"DNS:read"};
  const TestAuthority other;
  const struct {
    const char* what;
    CertificatePair pair;
    grpc::StatusCode code;
    const char* says;  // the refusal; or the tenant
  } cases[] = {
      {"no certificate", {}, grpc::UNAVAILABLE, ""},
      {"signed by itself", SelfSigned(Of("kiln:read")), grpc::UNAVAILABLE, ""},
      {"another authority's", other.Issue(Of("kiln:read")), grpc::UNAVAILABLE, ""},
      {"expired", authority_.Issue(expired), grpc::UNAVAILABLE, ""},
      {"not yet valid", authority_.Issue(early), grpc::UNAVAILABLE, ""},
      {"for another use", authority_.Issue(mail), grpc::UNAVAILABLE, ""},
      {"a server's", authority_.Issue(OfServer()), grpc::UNAVAILABLE, ""},
      {"without a SAN", authority_.Issue(nameless), grpc::UNAUTHENTICATED, "has no SAN URI"},
      {"the URI as its common name", authority_.Issue(named), grpc::UNAUTHENTICATED, "has no SAN URI"},
      {"nobody's URI", authority_.Issue(Of("kiln:root")), grpc::UNAUTHENTICATED, "kiln:root is no tenant's"},
      {"two tenants' URIs", authority_.Issue(two), grpc::UNAUTHENTICATED, "of more than one identity"},
      {"a tenant's", authority_.Issue(Of("kiln:read")), grpc::OK, "read"},
      {"another tenant's", authority_.Issue(Of("kiln:compile")), grpc::OK, "compile"},
      {"a tenant's with a URI of elsewhere", authority_.Issue(twice), grpc::OK, "read"},
  };
  for (const auto& each : cases) {
    std::string tenant;
    const grpc::Status status = Hello(Channel(each.pair), &tenant);
    EXPECT_EQ(status.error_code(), each.code) << each.what << ": " << status.error_message();
    EXPECT_TRUE(absl::StrContains(each.code == grpc::OK ? tenant : status.error_message(), each.says))
        << each.what << ": " << status.error_message() << tenant;
  }
}

// Chains, and what OpenSSL refuses of a certificate whose issuer is the right one.
TEST_F(IdentityTest, AChainIsAsGoodAsEachOfItsCertificates) {
  Start();
  CertificateWish middle;
  middle.common_name = "in between";
  middle.usage = "";
  middle.constraints = "critical,CA:TRUE";
  CertificateWish ended = middle, last = middle, unused = Of("kiln:read"), unknown = Of("kiln:read");
  ended.begins_seconds = -7200, ended.ends_seconds = -3600;
  last.constraints = "critical,CA:TRUE,pathlen:0";
  unused.key_usage = "critical,keyCertSign";
  unknown.unknown_critical = true;
  const CertificatePair good = authority_.Issue(middle), good_too = authority_.Issue(middle),
                        old = authority_.Issue(ended), a_leaf = authority_.Issue(Of("kiln:compile")),
                        end = authority_.Issue(last), beyond = IssuedBy(end, middle);
  const auto behind = [](CertificatePair pair, const std::string& chain) {
    pair.certificate += chain;
    return pair;
  };
  CertificatePair tampered = authority_.Issue(Of("kiln:read"));
  tampered.certificate = Tampered(tampered.certificate);
  const struct {
    const char* what;
    CertificatePair pair;
    bool served;
  } cases[] = {
      {"by one in between", behind(IssuedBy(good, Of("kiln:read")), good.certificate), true},
      {"without the one in between", IssuedBy(good, Of("kiln:read")), false},
      {"behind another's chain", behind(IssuedBy(good, Of("kiln:read")), good_too.certificate), false},
      {"by one in between that has ended", behind(IssuedBy(old, Of("kiln:read")), old.certificate), false},
      {"by a caller's", behind(IssuedBy(a_leaf, Of("kiln:read")), a_leaf.certificate), false},
      {"by one that may sign no other authority",
       behind(IssuedBy(beyond, Of("kiln:read")), beyond.certificate + end.certificate), false},
      {"with a changed signature", tampered, false},
      {"for keys that may not do that", authority_.Issue(unused), false},
      {"with what nobody knows and everybody has to", authority_.Issue(unknown), false},
  };
  for (const auto& each : cases) {
    std::string tenant;
    const grpc::Status status = Hello(Channel(each.pair), &tenant);
    EXPECT_EQ(status.error_code(), each.served ? grpc::OK : grpc::UNAVAILABLE)
        << each.what << ": " << status.error_message();
    EXPECT_EQ(tenant, each.served ? "read" : "") << each.what;
  }
}

TEST_F(IdentityTest, WithoutTlsNobodyIsServed) {
  Start();
  EXPECT_EQ(Hello(Channel(grpc::InsecureChannelCredentials())).error_code(), grpc::UNAVAILABLE);
}

// What protects the client: kilnd's certificate has to be its authority's, a server's, and of that host.
TEST_F(IdentityTest, ADaemonIsBelievedByItsCertificate) {
  const TestAuthority other;
  CertificateWish elsewhere = OfServer();
  elsewhere.hosts = {"DNS:elsewhere.example"};
  const struct {
    const char* what;
    CertificatePair pair;
    bool believed;
  } cases[] = {{"another authority's", other.Issue(OfServer()), false},
               {"another host's", authority_.Issue(elsewhere), false},
               {"a caller's", authority_.Issue(Of("kiln:read")), false},
               {"its own", authority_.Issue(OfServer()), true}};
  for (const auto& each : cases) {
    WriteFiles(authority_.certificate(), each.pair);
    Start();
    EXPECT_EQ(Hello(ChannelOf("read")).error_code(), each.believed ? grpc::OK : grpc::UNAVAILABLE)
        << each.what;
  }
}

TEST_F(IdentityTest, CertificatesChangeUnderLoadAndNoCallFails) {
  const TestAuthority next;
  // Callers trust both authorities, and kilnd trusts both for a while, as one does who changes them.
  const std::string both = authority_.certificate() + next.certificate();
  WriteFiles(both, authority_.Issue(OfServer()));
  Start();
  const auto trusting_both = [&](const TestAuthority& issuer) {
    grpc::SslCredentialsOptions options;
    const CertificatePair pair = issuer.Issue(Of("kiln:read"));
    options.pem_root_certs = both;
    options.pem_cert_chain = pair.certificate;
    options.pem_private_key = pair.key;
    return Channel(grpc::SslCredentials(options));
  };
  std::atomic<bool> stop{false};
  std::atomic<int> calls{0}, failed{0};
  const auto load = [&](const TestAuthority& issuer, bool connects_anew) {
    auto channel = trusting_both(issuer);
    while (!stop) {
      if (connects_anew) channel = trusting_both(issuer);
      const grpc::Status status = Hello(channel);
      failed += !status.ok();
      EXPECT_TRUE(status.ok()) << status.error_message();
      ++calls;
    }
  };
  std::vector<std::thread> threads;
  const TestAuthority& first = authority_;
  for (const TestAuthority* issuer : {&first, &next}) {
    for (const bool connects_anew : {false, true})
      threads.emplace_back(load, std::cref(*issuer), connects_anew);
  }
  const auto uses = [&](const TestAuthority& issuer) {
    return Hello(Channel(issuer.Issue(Of("kiln:read")), issuer)).ok();
  };
  EXPECT_TRUE(uses(authority_));
  EXPECT_FALSE(uses(next)) << "the control: kilnd's certificate is the other authority's";
  for (int round = 0; round < 3; ++round) {
    for (const TestAuthority* issuer : {&next, &first}) {
      const CertificatePair pair = issuer->Issue(OfServer());
      Write("server.crt", pair.certificate);
      absl::SleepFor(
          absl::Milliseconds(round * 700));  // half of it is there, at times for longer than a look
      Write("server.key", pair.key);
      EXPECT_TRUE(Eventually([&] { return uses(*issuer); }, absl::Seconds(30)));
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_GT(calls, 100);
}

TEST_F(IdentityTest, HalfAPairLeavesTheOneBefore) {
  Start();
  const TestAuthority next;
  const CertificatePair pair = next.Issue(OfServer());
  const auto uses = [&](const TestAuthority& issuer) {
    return Hello(Channel(authority_.Issue(Of("kiln:read")), issuer)).ok();
  };
  Write("server.crt", pair.certificate);
  ASSERT_TRUE(Eventually([&] { return uses(authority_) && absl::StrContains(Log(), "stays in use"); },
                         absl::Seconds(30)));
  EXPECT_TRUE(absl::StrContains(Log(), "is not the key of the certificate")) << Log();
  EXPECT_TRUE(uses(authority_));
  Write("server.key", "-----BEGIN nonsense");
  EXPECT_TRUE(Eventually([&] { return uses(authority_) && absl::StrContains(Log(), "holds no private key"); },
                         absl::Seconds(30)));
  EXPECT_FALSE(uses(next));
  Write("server.key", pair.key);
  EXPECT_TRUE(Eventually([&] { return uses(next); }, absl::Seconds(30)));
  EXPECT_FALSE(uses(authority_)) << "the control: it is another certificate";
}

TEST_F(IdentityTest, AnAuthorityThatIsTakenOutIsNotBelieved) {
  const TestAuthority next;
  WriteFiles(authority_.certificate() + next.certificate(), authority_.Issue(OfServer()));
  Start();
  const auto served = [&](const TestAuthority& issuer) {
    return Hello(Channel(issuer.Issue(Of("kiln:read")), authority_)).ok();
  };
  EXPECT_TRUE(served(authority_));
  EXPECT_TRUE(served(next));
  Write("ca.crt", authority_.certificate());
  EXPECT_TRUE(Eventually([&] { return !served(next); }, absl::Seconds(30)));
  EXPECT_TRUE(served(authority_));
}

TEST_F(IdentityTest, FilesThatAreNotGoodAreNamed) {
  const CertificatePair good = authority_.Issue(OfServer()), other = authority_.Issue(OfServer());
  const auto read = [&] {
    const std::string folder = directory_ + "/";
    return ReadTlsPems({folder + "server.crt", folder + "server.key", folder + "ca.crt"},
                       {"certificate", "key", "authority"});
  };
  const auto padded = [](std::string text, size_t bytes) {
    text.resize(bytes, '\n');
    return text;
  };
  const struct {
    const char* says;
    std::function<void()> spoil;
  } cases[] = {
      {"certificate: .*/server.crt holds no certificate", [&] { Write("server.crt", "nothing"); }},
      {"authority: .*/ca.crt holds no certificate", [&] { Write("ca.crt", ""); }},
      {"key: .*/server.key holds no private key", [&] { Write("server.key", good.certificate); }},
      {"key: .*/server.key is not the key of the certificate", [&] { Write("server.key", other.key); }},
      {"key: .*/server.key may be read by others",
       [&] { chmod((directory_ + "/server.key").c_str(), 0640); }},
      {"key: .*/server.key cannot be read: No such file",
       [&] { std::filesystem::remove(directory_ + "/server.key"); }},
      {"certificate: .*/server.crt is longer",
       [&] { Write("server.crt", padded(good.certificate, kTlsFileBytesMax + 1)); }},
      {"authority: .*/ca.crt is no file",
       [&] {
         std::filesystem::remove(directory_ + "/ca.crt");
         std::filesystem::create_directory(directory_ + "/ca.crt");
       }},
  };
  WriteFiles(authority_.certificate(), good);
  Write("server.crt", padded(good.certificate, kTlsFileBytesMax));
  EXPECT_TRUE(read().ok()) << read().status();
  for (const auto& each : cases) {
    WriteFiles(authority_.certificate(), good);
    EXPECT_TRUE(read().ok()) << read().status();
    each.spoil();
    const absl::Status status = read().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << each.says;
    EXPECT_TRUE(std::regex_search(std::string(status.message()), std::regex(each.says))) << status;
  }
}

}  // namespace
}  // namespace kiln
