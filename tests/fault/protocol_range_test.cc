// Which versions of the protocol kilnd and its clients say that they speak.
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/key.h"
#include "compiler/support/protocol.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

TEST(Server, AClientOfAnotherProtocolIsTold) {
  TestDaemon daemon;
  std::string answered;  // the range that the daemon says
  const auto ask = [&](const std::string& range) {
    grpc::ClientContext context;
    if (!range.empty()) context.AddMetadata(kProtocolMetadata, range);
    v1::LookupRequest request;
    request.set_request_key(RequestKey(SectionsOf("name a")));
    v1::LookupReply reply;
    const grpc::Status status = daemon.compiler().Lookup(&context, request, &reply);
    const auto& metadata = context.GetServerInitialMetadata();
    const auto said = metadata.find(kProtocolMetadata);
    answered = said == metadata.end() ? "" : std::string(said->second.data(), said->second.size());
    return status;
  };
  for (const std::string& range : {std::string(), ToText(kProtocol)}) {
    EXPECT_TRUE(ask(range).ok()) << range;
    EXPECT_EQ(answered, "") << "nothing that he has not said";
  }
  EXPECT_TRUE(ask("0-4294967295").ok());
  EXPECT_EQ(answered, ToText(kProtocol));
  const std::string newer = ToText({kProtocol.max + 1, kProtocol.max + 2});
  for (const std::string& range : {newer, ToText({0, kProtocol.min - 1})}) {
    const grpc::Status refused = ask(range);
    EXPECT_EQ(refused.error_code(), grpc::FAILED_PRECONDITION);
    for (const std::string& part : {range, ToText(kProtocol)}) {
      EXPECT_TRUE(absl::StrContains(refused.error_message(), part)) << refused.error_message();
    }
  }
  for (const char* nonsense : {"1", "2-1", "-", "1-", "one-two", "1-4294967296", "1-1-1"}) {
    EXPECT_EQ(ask(nonsense).error_code(), grpc::INVALID_ARGUMENT) << nonsense;
  }
  // Streams as well.
  grpc::ClientContext compile, attach, fetch;
  for (grpc::ClientContext* context : {&compile, &attach, &fetch}) {
    context->AddMetadata(kProtocolMetadata, newer);
  }
  EXPECT_EQ(daemon.compiler().Compile(&compile)->Finish().error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(daemon.compiler().Attach(&attach, {})->Finish().error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(daemon.compiler().FetchObjects(&fetch, {})->Finish().error_code(), grpc::FAILED_PRECONDITION);
}

// A service that notes what clients say of their protocol, and has nothing.
class Listener final : public v1::Compiler::Service {
 public:
  grpc::Status Hello(grpc::ServerContext*, const v1::HelloRequest*, v1::HelloReply*) override {
    return grpc::Status::OK;
  }
  grpc::Status Lookup(grpc::ServerContext* context, const v1::LookupRequest*,
                      v1::LookupReply* reply) override {
    const auto said = context->client_metadata().find(kProtocolMetadata);
    if (said != context->client_metadata().end()) said_.assign(said->second.data(), said->second.size());
    reply->mutable_miss();
    return grpc::Status::OK;
  }
  const std::string& said() const { return said_; }

 private:
  std::string said_;
};

TEST(Server, TheClientSaysWhatItSpeaks) {
  char directory[] = "/tmp/kiln-protocol-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  ClientOptions options;
  options.address = absl::StrCat("unix:", directory, "/socket");
  Listener listener;
  const std::unique_ptr<grpc::Server> server =
      grpc::ServerBuilder()
          .AddListeningPort(options.address, grpc::InsecureServerCredentials())
          .RegisterService(&listener)
          .BuildAndStart();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(NewClient(options)->Get({}, /*compile=*/false).status().code(), absl::StatusCode::kNotFound);
  server->Shutdown();
  EXPECT_EQ(listener.said(), ToText(kProtocol));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kiln
