#include "tests/fault/tls_daemon.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace kiln {

IdentityTest::IdentityTest() {
  char path[] = "/tmp/kiln-test-XXXXXX";
  directory_ = mkdtemp(path);
  WriteFiles(authority_.certificate(), authority_.Issue(OfServer()));
}

IdentityTest::~IdentityTest() {
  daemon_ = nullptr;
  std::filesystem::remove_all(directory_);
}

CertificateWish IdentityTest::OfServer() {
  CertificateWish wish;
  wish.hosts = {"DNS:localhost", "IP:127.0.0.1"};
  wish.usage = "serverAuth";
  return wish;
}

CertificateWish IdentityTest::Of(const std::string& uri) {
  CertificateWish wish;
  wish.uris = {uri};
  return wish;
}

void IdentityTest::Write(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(directory_, "/", name);
  std::ofstream(path + ".new") << text;
  chmod((path + ".new").c_str(), 0600);
  std::filesystem::rename(path + ".new", path);
}

void IdentityTest::WriteFiles(const std::string& authority, const CertificatePair& pair) {
  Write("ca.crt", authority);
  Write("server.crt", pair.certificate);
  Write("server.key", pair.key);
}

void IdentityTest::Start(const std::string& more) {
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

std::string IdentityTest::Log() const {
  std::ifstream log(daemon_->directory() + "/log");
  std::stringstream text;
  text << log.rdbuf();
  return text.str();
}

std::shared_ptr<grpc::Channel> IdentityTest::Channel(const CertificatePair& pair) {
  return Channel(pair, authority_);
}

std::shared_ptr<grpc::Channel> IdentityTest::Channel(const CertificatePair& pair,
                                                     const TestAuthority& authority) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = authority.certificate();
  options.pem_cert_chain = pair.certificate;
  options.pem_private_key = pair.key;
  return Channel(grpc::SslCredentials(options));
}

std::shared_ptr<grpc::Channel> IdentityTest::Channel(
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address_, credentials, arguments);
}

std::shared_ptr<grpc::Channel> IdentityTest::ChannelOf(const std::string& tenant) {
  return Channel(authority_.Issue(Of(absl::StrCat("kiln:", tenant))));
}

void IdentityTest::SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
}

grpc::Status IdentityTest::Hello(const std::shared_ptr<grpc::Channel>& channel, std::string* tenant) {
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
}  // namespace kiln
