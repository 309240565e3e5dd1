// Who calls kilnd over TCP: certificates, good and bad; roles; what one tenant sees of another; certificates
// that change while kilnd serves.
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/protocol.h"
#include "compiler/support/tls_files.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/certificates.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

// A daemon by TLS with a tenant of each role, whose names are their roles'.
class IdentityTest : public testing::Test {
 protected:
  IdentityTest() {
    char path[] = "/tmp/kiln-test-XXXXXX";
    directory_ = mkdtemp(path);
    WriteFiles(authority_.certificate(), authority_.Issue(OfServer()));
  }
  ~IdentityTest() override {
    daemon_ = nullptr;
    std::filesystem::remove_all(directory_);
  }

  static CertificateWish OfServer() {
    CertificateWish wish;
    wish.hosts = {"DNS:localhost", "IP:127.0.0.1"};
    wish.usage = "serverAuth";
    return wish;
  }
  static CertificateWish Of(const std::string& uri) {
    CertificateWish wish;
    wish.uris = {uri};
    return wish;
  }

  // A file is replaced at once, as those do that renew certificates.
  void Write(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(directory_, "/", name);
    std::ofstream(path + ".new") << text;
    chmod((path + ".new").c_str(), 0600);
    std::filesystem::rename(path + ".new", path);
  }
  void WriteFiles(const std::string& authority, const CertificatePair& pair) {
    Write("ca.crt", authority);
    Write("server.crt", pair.certificate);
    Write("server.key", pair.key);
  }

  void Start(const std::string& more = "") {
    daemon_ = std::make_unique<TestDaemon>(absl::StrCat(R"(listen {
      tcp: "127.0.0.1:0"
      tls { certificate: ")",
                                                        directory_, R"(/server.crt" key: ")", directory_,
                                                        R"(/server.key"
            authority: ")",
                                                        directory_, R"(/ca.crt" reload_seconds: 1 }
      tenants { name: "read" identities: "kiln:read" roles: ROLE_READ }
      tenants { name: "compile" identities: "kiln:compile" }
      tenants { name: "admin" identities: "kiln:admin" roles: ROLE_ADMIN }
      tenants { name: "forward" identities: "kiln:forward" roles: ROLE_FORWARD speaks_for: "compile"
                speaks_for: "read" speaks_for: "admin" })",
                                                        more, "}"));
    v1::StatusReply status;
    grpc::ClientContext context;
    ASSERT_TRUE(daemon_->admin().Status(&context, {}, &status).ok());
    address_ = status.address().substr(status.address().rfind(' ') + 1);
  }
  std::string Log() const {
    std::ifstream log(daemon_->directory() + "/log");
    std::stringstream text;
    text << log.rdbuf();
    return text.str();
  }

  std::shared_ptr<grpc::Channel> Channel(const CertificatePair& pair) { return Channel(pair, authority_); }
  std::shared_ptr<grpc::Channel> Channel(const CertificatePair& pair, const TestAuthority& authority) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority.certificate();
    options.pem_cert_chain = pair.certificate;
    options.pem_private_key = pair.key;
    return Channel(grpc::SslCredentials(options));
  }
  std::shared_ptr<grpc::Channel> Channel(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address_, credentials, arguments);
  }
  std::shared_ptr<grpc::Channel> ChannelOf(const std::string& tenant) {
    return Channel(authority_.Issue(Of(absl::StrCat("kiln:", tenant))));
  }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  }
  static grpc::Status Hello(const std::shared_ptr<grpc::Channel>& channel, std::string* tenant = nullptr) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::HelloRequest request;
    request.set_protocol_min(1);
    request.set_protocol_max(1);
    v1::HelloReply reply;
    const grpc::Status status = v1::Compiler::NewStub(channel)->Hello(&context, request, &reply);
    if (tenant != nullptr) *tenant = reply.tenant();
    return status;
  }
  CompileResult Compile(const std::shared_ptr<grpc::Channel>& channel, const std::string& script);

  TestAuthority authority_;
  std::string directory_;  // of the certificates
  std::unique_ptr<TestDaemon> daemon_;
  std::string address_;
};

// ---- Certificates ----------------------------------------------------------------------------

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

// ---- Roles -----------------------------------------------------------------------------------

constexpr char kReflection[] = "ServerReflection.ServerReflectionInfo";

// Any RPC, with an empty message.
grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& rpc,
                 const std::string& on_behalf_of = "") {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  if (!on_behalf_of.empty()) context.AddMetadata(kOnBehalfOfMetadata, on_behalf_of);
  grpc::CompletionQueue queue;
  std::string path = absl::StrCat(rpc == kReflection ? "/grpc.reflection.v1." : "/kiln.v1.", rpc);
  path[path.rfind('.')] = '/';
  const auto call = stub.PrepareCall(&context, path, &queue);
  const auto wait = [&] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  if (wait()) {
    const grpc::Slice nothing;
    call->WriteLast(grpc::ByteBuffer(&nothing, 1), {}, nullptr);
    wait();
    grpc::ByteBuffer answer;
    do {
      call->Read(&answer, nullptr);
    } while (wait());
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  wait();
  return status;
}

// What each role may ask, told a second time: the table of server/auth is not asked.
struct Asked {
  std::string rpc;
  bool read, compile, admin, forward, for_others;
};

std::vector<Asked> AllThatIsAsked() {
  std::vector<Asked> all = {
      {"Compiler.Hello", true, true, true, true, true},
      {"Compiler.Lookup", true, true, false, false, true},
      {"Compiler.FetchObjects", true, true, false, false, true},
      {"Compiler.ReportUse", true, true, false, false, true},
      {"Compiler.Compile", false, true, false, false, true},
      {"Compiler.Attach", false, true, false, false, true},
  };
  const auto* compiler = v1::CompileRequest::descriptor()->file()->FindServiceByName("Compiler");
  EXPECT_EQ(all.size(), compiler->method_count()) << "a new RPC is a new row";
  all.push_back({kReflection, true, true, true, true, true});
  // What kilnctl asks is for administrators, whatever it is.
  const auto* others = v1::StatusRequest::descriptor()->file();
  for (int s = 0; s < others->service_count(); ++s) {
    const auto* service = others->service(s);
    for (int i = 0; i < service->method_count(); ++i) {
      all.push_back(
          {absl::StrCat(service->name(), ".", service->method(i)->name()), false, false, true, false, false});
    }
  }
  return all;
}

TEST_F(IdentityTest, EachRoleMayAskWhatTheTableSays) {
  const std::vector<Asked> asked = AllThatIsAsked();
  Start();
  const auto reader = ChannelOf("read"), compiler = ChannelOf("compile"), admin = ChannelOf("admin"),
             forwarder = ChannelOf("forward");
  int allowed = 0, refused = 0;
  const auto expect = [&](const grpc::Status& status, bool may, const std::string& what) {
    EXPECT_EQ(status.error_code() == grpc::PERMISSION_DENIED, !may) << what << ": " << status.error_message();
    EXPECT_NE(status.error_code(), grpc::UNAUTHENTICATED) << what;
    EXPECT_NE(status.error_code(), grpc::UNAVAILABLE) << what << ": " << status.error_message();
    EXPECT_NE(status.error_code(), grpc::UNIMPLEMENTED) << what;
    if (!may) {
      EXPECT_TRUE(absl::StrContains(status.error_message(), " needs role ")) << status.error_message();
    }
    ++(may ? allowed : refused);
  };
  for (const Asked& each : asked) {
    const std::string& rpc = each.rpc;
    expect(Ask(reader, rpc), each.read, rpc + " by read");
    expect(Ask(compiler, rpc), each.compile, rpc + " by compile");
    expect(Ask(admin, rpc), each.admin, rpc + " by admin");
    expect(Ask(forwarder, rpc), each.forward, rpc + " by forward");
    expect(Ask(forwarder, rpc, "compile"), each.for_others, rpc + " by forward for compile");
    // Nobody is an administrator by somebody else's word.
    expect(Ask(forwarder, rpc, "admin"), false, rpc + " by forward for admin");
  }
  // Hello and reflection; three to read, two to compile; the rest kilnctl's.
  EXPECT_EQ(allowed, 2 * 5 + 3 * 3 + 2 * 2 + (asked.size() - 7));
  EXPECT_EQ(refused, asked.size() * 6 - allowed);
}

TEST_F(IdentityTest, WhoSpeaksForATenantIsServedAsItIs) {
  Start();
  std::string tenant;
  grpc::ClientContext context;
  context.AddMetadata(kOnBehalfOfMetadata, "compile");
  v1::HelloRequest request;
  request.set_protocol_min(1);
  request.set_protocol_max(1);
  v1::HelloReply reply;
  EXPECT_TRUE(v1::Compiler::NewStub(ChannelOf("forward"))->Hello(&context, request, &reply).ok());
  EXPECT_EQ(reply.tenant(), "compile");
  // For a reader it may read.
  EXPECT_EQ(Ask(ChannelOf("forward"), "Compiler.Compile", "read").error_code(), grpc::PERMISSION_DENIED);
  for (const auto& [who, whom] : {std::pair{"forward", "nobody"}, std::pair{"compile", "read"}}) {
    const grpc::Status status = Ask(ChannelOf(who), "Compiler.Lookup", whom);
    EXPECT_EQ(status.error_code(), grpc::PERMISSION_DENIED) << who;
    EXPECT_TRUE(absl::StrContains(status.error_message(), "does not speak for")) << status.error_message();
  }
}

// ---- What is another's -----------------------------------------------------------------------

CompileResult IdentityTest::Compile(const std::shared_ptr<grpc::Channel>& channel,
                                    const std::string& script) {
  CompileResult result;
  const auto stub = v1::Compiler::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = stub->Compile(&context);
  Send("default", script, stream.get());
  v1::CompileEvent event;
  while (stream->Read(&event)) {
    if (event.has_queued()) result.job_id = event.queued().job_id();
    if (event.has_done() && event.done().has_manifest()) {
      result.done = result.manifest.ParseFromString(event.done().manifest().manifest());
    }
  }
  result.status = stream->Finish();
  return result;
}

TEST_F(IdentityTest, WhatIsAnothersIsNotFound) {
  Start(R"(tenants { name: "other" identities: "kiln:other" })");
  const auto own = ChannelOf("compile"), other = ChannelOf("other");
  const CompileResult compiled = Compile(own, "kernels 1\nname mine");
  ASSERT_TRUE(compiled.done) << compiled.status.error_message();
  EXPECT_EQ(compiled.manifest.namespace_(), "compile") << "whatever the request says";
  const auto fetch = [&](const std::shared_ptr<grpc::Channel>& channel, const std::string& digest) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::FetchObjectsRequest request;
    request.set_namespace_("compile");
    request.set_compile_key(compiled.manifest.compile_key());
    request.set_variant_id(compiled.manifest.variant_id());
    request.add_digests(digest);
    const auto reader = v1::Compiler::NewStub(channel)->FetchObjects(&context, request);
    v1::ObjectChunk chunk;
    while (reader->Read(&chunk)) {
    }
    return reader->Finish().error_code();
  };
  const std::string digest = compiled.manifest.kernels(0).object().digest();
  EXPECT_EQ(fetch(own, digest), grpc::OK);
  EXPECT_EQ(fetch(other, digest), grpc::NOT_FOUND);
  // What is there and what is not look alike.
  for (int guess = 0; guess < 300; ++guess) {
    EXPECT_EQ(fetch(other, Sha256(absl::StrCat(guess))), grpc::NOT_FOUND);
  }

  const auto lookup = [&](const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::LookupRequest request;
    request.set_namespace_("compile");
    request.set_request_key(RequestKey(SectionsOf("kernels 1\nname mine")));
    v1::LookupReply reply;
    EXPECT_TRUE(v1::Compiler::NewStub(channel)->Lookup(&context, request, &reply).ok());
    return reply.kind_case();
  };
  EXPECT_EQ(lookup(own), v1::LookupReply::kHit);
  EXPECT_EQ(lookup(other), v1::LookupReply::kMiss);
}

TEST_F(IdentityTest, AnothersJobIsNotFound) {
  Start(R"(tenants { name: "other" identities: "kiln:other" })");
  const auto own = ChannelOf("compile"), other = ChannelOf("other");
  // A job that runs until it is told to end, and who may join it.
  grpc::ClientContext context;
  auto stream = v1::Compiler::NewStub(own)->Compile(&context);
  Send("default", "sleep_ms 60000\nname long", stream.get());
  v1::CompileEvent event;
  ASSERT_TRUE(stream->Read(&event));
  ASSERT_TRUE(event.has_queued());
  const auto attach = [&](const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext attached;
    SetDeadline(attached);
    v1::AttachRequest request;
    request.set_namespace_("compile");
    request.set_job_id(event.queued().job_id());
    const auto reader = v1::Compiler::NewStub(channel)->Attach(&attached, request);
    v1::CompileEvent joined;
    const bool first = reader->Read(&joined);
    if (first) attached.TryCancel();
    const grpc::Status status = reader->Finish();
    return first ? grpc::OK : status.error_code();
  };
  EXPECT_EQ(attach(own), grpc::OK);
  EXPECT_EQ(attach(other), grpc::NOT_FOUND);
  context.TryCancel();
  while (stream->Read(&event)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
}

// ---- Certificates that change ----------------------------------------------------------------

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

// ---- The client ------------------------------------------------------------------------------

class TlsClientTest : public IdentityTest {
 protected:
  ClientOptions OptionsWith(const CertificatePair& pair) {
    Write("client.crt", pair.certificate);
    Write("client.key", pair.key);
    ClientOptions options;
    options.address = address_;
    options.tls_authority = directory_ + "/ca.crt";
    options.tls_certificate = directory_ + "/client.crt";
    options.tls_key = directory_ + "/client.key";
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
  options.tls_authority = directory_ + "/none.crt";
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
  std::thread control([&] {
    const auto stub = v1::Compiler::NewStub(ChannelOf("compile"));
    grpc::ClientContext context;
    SetDeadline(context);
    auto stream = stub->Compile(&context);
    Send("default", script, stream.get());
    v1::CompileEvent event;
    while (stream->Read(&event)) {
    }
    without = stream->Finish();
  });
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

// ---- Files and limits ------------------------------------------------------------------------

TEST_F(IdentityTest, FilesThatAreNotGoodAreNamed) {
  const CertificatePair good = authority_.Issue(OfServer()), other = authority_.Issue(OfServer());
  const auto read = [&] {
    const std::string folder = directory_ + "/";
    return ReadTlsPems({folder + "server.crt", folder + "server.key", folder + "ca.crt"},
                       {"certificate", "key", "authority"});
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
      {"certificate: .*/server.crt is longer", [&] { Write("server.crt", std::string((1 << 20) + 1, 'x')); }},
      {"authority: .*/ca.crt is no file",
       [&] {
         std::filesystem::remove(directory_ + "/ca.crt");
         std::filesystem::create_directory(directory_ + "/ca.crt");
       }},
  };
  for (const auto& each : cases) {
    WriteFiles(authority_.certificate(), good);
    EXPECT_TRUE(read().ok()) << read().status();
    each.spoil();
    const absl::Status status = read().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << each.says;
    EXPECT_TRUE(std::regex_search(std::string(status.message()), std::regex(each.says))) << status;
  }
}

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
