// A daemon's signatures over restarts, and clients of before there were any.
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/protocol.h"
#include "compiler/support/signature.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

constexpr char kScript[] = "kernels 2";

class SignedEntries : public testing::Test {
 protected:
  std::string key_file() const { return daemon_.directory() + "/signing.pem"; }
  v1::KeysReply Keys() {
    grpc::ClientContext context;
    v1::KeysReply keys;
    EXPECT_TRUE(daemon_.admin().Keys(&context, {}, &keys).ok());
    return keys;
  }
  void Restart(const std::string& config) {
    EXPECT_EQ(daemon_.Stop(SIGTERM), 0);
    daemon_.Configure(config);
    daemon_.Start();
  }
  // A key in place of the one that there is.
  void NewKey(const std::string& config) {
    EXPECT_EQ(daemon_.Stop(SIGTERM), 0);
    std::filesystem::remove(key_file());
    daemon_.Configure(config);
    daemon_.Start();
  }
  bool IsHit() { return daemon_.Lookup(kScript).has_hit(); }

  TestDaemon daemon_;
};

// What the configuration says of another key; either may be empty.
std::string Signing(const std::string& trusted, const std::string& name_space,
                    const std::string& revoked = "") {
  return absl::StrCat("signing { ",
                      trusted.empty() ? ""
                                      : absl::StrCat("trusted { public_key: \"", trusted, "\" namespaces: \"",
                                                     name_space, "\" } "),
                      revoked.empty() ? "" : absl::StrCat("revoked: \"", revoked, "\" "), "}\n");
}

TEST_F(SignedEntries, TheKeyIsMadeOnceAndKept) {
  struct stat facts;
  ASSERT_EQ(stat(key_file().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  const v1::KeysReply keys = Keys();
  ASSERT_TRUE(daemon_.Compile(kScript).durable);
  const v1::SignedManifest manifest = daemon_.Lookup(kScript).hit().manifest();
  EXPECT_EQ(manifest.key_id(), keys.own().id());
  EXPECT_EQ(manifest.namespace_(), "test");
  Restart("");
  EXPECT_EQ(Keys().own().id(), keys.own().id());
  EXPECT_TRUE(IsHit());
  EXPECT_EQ(daemon_.Stats().refused_signatures(), 0);
  EXPECT_EQ(daemon_.Lookup(kScript).hit().manifest().signature(), manifest.signature());
}

// With its key another daemon's, what it has is nobody's: misses, taken out, and recompiled.
TEST_F(SignedEntries, OfAnotherKeyAreCompiledAnew) {
  ASSERT_TRUE(daemon_.Compile(kScript).durable);
  NewKey("");
  EXPECT_FALSE(IsHit());
  EXPECT_EQ(daemon_.Stats().refused_signatures(), 1);
  const CompileResult made = daemon_.Compile(kScript);
  EXPECT_TRUE(made.durable) << made.failed_reason;
  EXPECT_EQ(daemon_.Stats().compiles(), 1);
  EXPECT_EQ(daemon_.Stats().kernels_reused(), 0) << "nor are its kernels";
  EXPECT_TRUE(IsHit());
}

// The control of the above: nobody looks.
TEST_F(SignedEntries, AreServedWhoeverSignedThemWhereNobodyVerifies) {
  ASSERT_TRUE(daemon_.Compile(kScript).durable);
  NewKey("store { dangerously_no_verify: true }\n");
  EXPECT_TRUE(IsHit());
}

TEST_F(SignedEntries, OfARotatedKeyAreHitsUntilItIsRevoked) {
  ASSERT_TRUE(daemon_.Compile(kScript).durable);
  const v1::KeysReply before = Keys();
  NewKey(Signing(before.own().public_key(), "test"));
  const v1::KeysReply after = Keys();
  EXPECT_NE(after.own().id(), before.own().id());
  ASSERT_EQ(after.trusted_size(), 1);
  EXPECT_EQ(after.trusted(0).id(), before.own().id());
  EXPECT_TRUE(IsHit());

  ClientOptions options;
  options.address = "unix:" + daemon_.socket();
  options.name_space = "test";
  CompileRequestInput input;
  input.request_key = RequestKey(SectionsOf(kScript));
  EXPECT_TRUE(NewClient(options)->Get(input, /*compile=*/false).ok()) << "clients are told that it counts";

  Restart(Signing(before.own().public_key(), "another"));
  EXPECT_FALSE(IsHit()) << "of a namespace that it may not sign for";
  ASSERT_TRUE(daemon_.Compile(kScript).durable) << "anew, by the own key";

  Restart(Signing(before.own().public_key(), "test", /*revoked=*/before.own().id()));
  EXPECT_TRUE(IsHit()) << "what the own key has signed since";
  EXPECT_EQ(Keys().revoked(0), before.own().id());
  EXPECT_EQ(Keys().trusted_size(), 0);
}

// Though nobody asks for them: by the scrubber, or at once by `kilnctl verify --repair`.
TEST_F(SignedEntries, OfARevokedKeyArePurged) {
  ASSERT_TRUE(daemon_.Compile(kScript).durable);
  const v1::KeysReply before = Keys();
  NewKey(Signing("", "", /*revoked=*/before.own().id()));
  v1::VerifyRequest request;
  request.set_repair(true);
  grpc::ClientContext context;
  v1::VerifyReply verified;
  ASSERT_TRUE(daemon_.admin().Verify(&context, request, &verified).ok());
  EXPECT_EQ(verified.corrupt(), 3) << "the manifest and the records of two kernels";
  EXPECT_EQ(daemon_.Stats().refused_signatures(), 3);
  EXPECT_EQ(daemon_.Stats().entries(), 0);
}

TEST_F(SignedEntries, ADaemonWithAKeyThatOthersMayReadDoesNotStart) {
  EXPECT_EQ(daemon_.Stop(SIGTERM), 0);
  const std::string command =
      absl::StrCat(KILND, " --config ", daemon_.directory(), "/config.textproto --socket ", daemon_.socket(),
                   " --store ", daemon_.directory(), "/store --worker-binary /bin/true 2>&1");
  std::filesystem::permissions(key_file(), std::filesystem::perms(0640));
  FILE* const kilnd = popen(command.c_str(), "r");
  ASSERT_NE(kilnd, nullptr);
  std::string said(4096, '\0');
  said.resize(fread(said.data(), 1, said.size(), kilnd));
  EXPECT_NE(pclose(kilnd), 0);
  EXPECT_NE(said.find(key_file()), std::string::npos) << said;
  EXPECT_NE(said.find("chmod 600"), std::string::npos) << said;
  // The control.
  std::filesystem::permissions(key_file(), std::filesystem::perms(0600));
  daemon_.Start();
}

// What a client of protocol 1 sends, byte by byte: it says no Hello, and knows digests alone.
TEST_F(SignedEntries, AClientOfBeforeIsServed) {
  ASSERT_TRUE(daemon_.Compile(kScript).durable);
  const std::string key = RequestKey(SectionsOf(kScript));
  const std::string request = absl::StrCat("\x0a\x04test\x12\x20", key, absl::string_view("\x1a\x00", 2));
  const auto channel = grpc::CreateChannel("unix:" + daemon_.socket(), grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.AddMetadata(kProtocolMetadata, "1-1");
  grpc::CompletionQueue answers;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer message(&slice, 1);
  const auto call = stub.PrepareUnaryCall(&context, "/kiln.v1.Compiler/Lookup", message, &answers);
  call->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(answers.Next(&tag, &ok));
  ASSERT_TRUE(status.ok()) << status.error_message();
  v1::LookupReply reply;
  ASSERT_TRUE(grpc::SerializationTraits<v1::LookupReply>::Deserialize(&answer, &reply).ok());
  ASSERT_TRUE(reply.has_hit());
  EXPECT_EQ(Sha256(reply.hit().manifest().manifest()), reply.hit().manifest().digest());
}

}  // namespace
}  // namespace kiln
