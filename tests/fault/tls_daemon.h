// A daemon by TLS with a tenant of each role, whose names are their roles', and channels of callers with
// certificates of its authority or another.
//
// Ownership: the fixture owns the daemon, its authority and the directory of their files, which go with it.
// Threads: as of the test; Channel and Hello may be called by several.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/certificates.h"
#include "tests/fault/test_daemon.h"

namespace kiln {

class IdentityTest : public testing::Test {
 protected:
  IdentityTest();
  ~IdentityTest() override;

  static CertificateWish OfServer();
  static CertificateWish Of(const std::string& uri);

  // A file is replaced at once, as those do that renew certificates.
  void Write(const std::string& name, const std::string& text);
  void WriteFiles(const std::string& authority, const CertificatePair& pair);

  // `more`: of the configuration's listen section.
  void Start(const std::string& more = "");
  std::string Log() const;

  std::shared_ptr<grpc::Channel> Channel(const CertificatePair& pair);
  std::shared_ptr<grpc::Channel> Channel(const CertificatePair& pair, const TestAuthority& authority);
  std::shared_ptr<grpc::Channel> Channel(const std::shared_ptr<grpc::ChannelCredentials>& credentials);
  std::shared_ptr<grpc::Channel> ChannelOf(const std::string& tenant);

  static void SetDeadline(grpc::ClientContext& context);
  static grpc::Status Hello(const std::shared_ptr<grpc::Channel>& channel, std::string* tenant = nullptr);
  static CompileResult Compile(const std::shared_ptr<grpc::Channel>& channel, const std::string& script);

  TestAuthority authority_;
  std::string directory_;  // of the certificates
  std::unique_ptr<TestDaemon> daemon_;
  std::string address_;
};

}  // namespace kiln
