// What each role may ask of kilnd, and what one tenant sees of another.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/protocol.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/test_daemon.h"
#include "tests/fault/tls_daemon.h"

namespace kiln {
namespace {

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

}  // namespace
}  // namespace kiln
