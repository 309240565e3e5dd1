// Daemons of which one passes on to another what it lacks: by a unix socket, or by TLS. Every daemon has a
// store and a key of its own.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/signature.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/certificates.h"
#include "tests/fault/test_daemon.h"
#include "tests/unit/temporary_directory.h"

namespace kiln {

class UpstreamDaemons : public InTemporaryDirectory {
 protected:
  // Of a daemon that signs by the key `name` and takes what those of `trusted` sign.
  std::string Signing(const std::string& name, const std::vector<std::string>& trusted,
                      const std::vector<std::string>& namespaces = {"test"}) {
    std::string text = absl::StrCat("signing { key_file: \"", directory_, "/", name, ".pem\"\n");
    for (const std::string& other : trusted) {
      absl::StatusOr<SigningKey> made = SigningKey::LoadOrMake(absl::StrCat(directory_, "/", other, ".pem"));
      EXPECT_TRUE(made.ok()) << made.status();
      absl::StrAppend(&text, "trusted { public_key: \"", absl::Base64Escape(made->public_key()), "\"");
      for (const std::string& ns : namespaces) absl::StrAppend(&text, " namespaces: \"", ns, "\"");
      absl::StrAppend(&text, " }\n");
    }
    return absl::StrCat(text, "}\n");
  }
  // The limit is a loaded machine's.
  static std::string Asks(const TestDaemon& upstream, const std::string& more = "") {
    return absl::StrCat("upstream { address: \"unix:", upstream.socket(), "\" lookup_ms_max: 10000 ", more,
                        " }\n");
  }
  std::string LocalOf(const TestDaemon& farm, const std::string& more = "") {
    return absl::StrCat(Signing("local", {"farm"}), Asks(farm, more));
  }

  static v1::UpstreamStatus StatusOf(TestDaemon& daemon) {
    grpc::ClientContext context;
    v1::StatusReply reply;
    EXPECT_TRUE(daemon.admin().Status(&context, {}, &reply).ok());
    EXPECT_TRUE(reply.has_upstream());
    return reply.upstream();
  }
  static int Jobs(TestDaemon& daemon) {
    grpc::ClientContext context;
    v1::JobsReply reply;
    EXPECT_TRUE(daemon.admin().Jobs(&context, {}, &reply).ok());
    return reply.jobs_size();
  }
  static std::set<std::string> ObjectsIn(const v1::Manifest& manifest) {
    std::set<std::string> digests;
    for (const v1::ObjectRef* object : ObjectsOf(manifest)) digests.insert(object->digest());
    return digests;
  }
};

// A farm, and a daemon of another host that speaks for its tenants there.
class UpstreamTlsDaemons : public UpstreamDaemons {
 protected:
  UpstreamTlsDaemons() {
    CertificateWish server;
    server.hosts = {"DNS:localhost", "IP:127.0.0.1"};
    server.usage = "serverAuth";
    Write("ca.crt", authority_.certificate());
    WritePair("server", authority_.Issue(server));
    for (const char* tenant : {"red", "blue", "green", "edge"}) WritePair(tenant, PairOf(tenant));
  }

  CertificatePair PairOf(const std::string& tenant) const {
    CertificateWish wish;
    wish.uris = {absl::StrCat("kiln:", tenant)};
    return authority_.Issue(wish);
  }
  // A file is replaced at once, as those do that renew certificates.
  void Write(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(directory_, "/", name);
    std::ofstream(path + ".new") << text;
    chmod((path + ".new").c_str(), 0600);
    std::filesystem::rename(path + ".new", path);
  }
  void WritePair(const std::string& name, const CertificatePair& pair) {
    Write(name + ".crt", pair.certificate);
    Write(name + ".key", pair.key);
  }
  std::string Tls(const std::string& name) const {
    return absl::StrCat("tls { certificate: \"", directory_, "/", name, ".crt\" key: \"", directory_, "/",
                        name, ".key\" authority: \"", directory_, "/ca.crt\" }\n");
  }
  std::string Listen(const std::string& tenants) const {
    return absl::StrCat("listen { tcp: \"127.0.0.1:0\"\n", Tls("server"), tenants, "}\n");
  }
  std::string Farm() {
    return absl::StrCat(Listen(R"(tenants { name: "red" identities: "kiln:red" }
                                  tenants { name: "blue" identities: "kiln:blue" }
                                  tenants { name: "green" identities: "kiln:green" }
                                  tenants { name: "edge" identities: "kiln:edge" roles: ROLE_FORWARD
                                            speaks_for: "red" speaks_for: "blue" })"),
                        Signing("farm", {}));
  }
  std::string Local(TestDaemon& farm, const std::string& certificate, const std::string& more) {
    return absl::StrCat(Listen(R"(tenants { name: "red" identities: "kiln:red" }
                                  tenants { name: "blue" identities: "kiln:blue" }
                                  tenants { name: "green" identities: "kiln:green" })"),
                        Signing("local", {"farm"}, {"red", "blue", "green"}), "upstream { address: \"",
                        AddressOf(farm), "\" lookup_ms_max: 10000 ", Tls(certificate), more, " }\n");
  }
  static std::string AddressOf(TestDaemon& daemon) {
    v1::StatusReply status;
    grpc::ClientContext context;
    EXPECT_TRUE(daemon.admin().Status(&context, {}, &status).ok());
    return status.address().substr(status.address().rfind(' ') + 1);
  }
  // The namespace of the program; empty: there is none.
  std::string CompileAs(const std::string& tenant, TestDaemon& daemon, const std::string& script) {
    const CertificatePair pair = PairOf(tenant);
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority_.certificate();
    options.pem_cert_chain = pair.certificate;
    options.pem_private_key = pair.key;
    const auto stub =
        v1::Compiler::NewStub(grpc::CreateChannel(AddressOf(daemon), grpc::SslCredentials(options)));
    grpc::ClientContext context;
    const auto stream = stub->Compile(&context);
    Send(tenant, script, stream.get());
    std::string ns;
    v1::CompileEvent event;
    while (stream->Read(&event)) {
      v1::Manifest manifest;
      if (event.done().has_manifest() && manifest.ParseFromString(event.done().manifest().manifest()))
        ns = manifest.namespace_();
    }
    EXPECT_TRUE(stream->Finish().ok());
    return ns;
  }

  TestAuthority authority_;
};

}  // namespace kiln
