// Replies of which one bit was flipped on the way from the daemon to libkiln. Promise: whatever bit it is,
// the client has the artifact that was compiled, or an error; nothing of a damaged reply stays in its memory.
// A thousand replies to look-ups and as many objects, ten thousand with --full; fewer compiles.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/protocol.h"
#include "compiler/support/zstd.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/test_daemon.h"
#include "tests/fault/wire_call.h"

namespace kiln {
namespace {

constexpr char kHello[] = "/kiln.v1.Compiler/Hello";
constexpr char kLookup[] = "/kiln.v1.Compiler/Lookup";
constexpr char kCompile[] = "/kiln.v1.Compiler/Compile";
constexpr char kFetch[] = "/kiln.v1.Compiler/FetchObjects";

// What the daemon says, by method, as bytes.
using Replies = std::map<std::string, std::vector<std::string>>;

// Flips a bit of one of a method's replies; none where there is no such method.
struct Flip {
  std::string method;
  size_t reply = 0;
  size_t bit = 0;
};

// A daemon that says what it was given, whoever asks, and damages it as it is told.
class Replayer final : public grpc::CallbackGenericService {
 public:
  explicit Replayer(const std::string& directory) : address_(absl::StrCat("unix:", directory, "/replay")) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
  }
  ~Replayer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& address() const { return address_; }
  void Say(Replies replies) {
    absl::MutexLock lock(&mutex_);
    replies_ = std::move(replies);
  }
  void Damage(const Flip& flip) {
    absl::MutexLock lock(&mutex_);
    flip_ = flip;
  }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    return new Call(*this, context->method());
  }

 private:
  // Answers after the client's first message; of objects, those that were asked for.
  class Call final : public grpc::ServerGenericBidiReactor {
   public:
    Call(Replayer& replayer, std::string method) : replayer_(replayer), method_(std::move(method)) {
      StartRead(&request_);
    }
    void OnReadDone(bool ok) override {
      if (ok) left_ = replayer_.RepliesTo(method_, BytesOf(request_));
      Next();
    }
    void OnWriteDone(bool) override { Next(); }
    void OnDone() override { delete this; }

   private:
    void Next() {
      if (at_ == left_.size()) return Finish(grpc::Status::OK);
      const grpc::Slice slice(left_[at_++]);
      reply_ = grpc::ByteBuffer(&slice, 1);
      StartWrite(&reply_);
    }
    Replayer& replayer_;
    const std::string method_;
    grpc::ByteBuffer request_, reply_;
    std::vector<std::string> left_;
    size_t at_ = 0;
  };

  std::vector<std::string> RepliesTo(const std::string& method, const std::string& request) {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> replies;
    v1::FetchObjectsRequest fetch;
    if (method == kFetch) fetch.ParseFromString(request);
    for (size_t i = 0; i < replies_[method].size(); ++i) {
      std::string bytes = replies_[method][i];
      v1::ObjectChunk chunk;
      if (method == kFetch && chunk.ParseFromString(bytes)) {
        bool wanted = false;
        for (const std::string& digest : fetch.digests()) wanted = wanted || digest == chunk.digest();
        if (!wanted) continue;
      }
      if (flip_.method == method && flip_.reply == i)
        bytes[flip_.bit / 8] ^= static_cast<char>(1 << (flip_.bit % 8));
      replies.push_back(std::move(bytes));
    }
    return replies;
  }

  const std::string address_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  Replies replies_ ABSL_GUARDED_BY(mutex_);
  Flip flip_ ABSL_GUARDED_BY(mutex_);
};

enum class Verdict { kSame, kRefused, kWrong };

class FlippedReplies : public testing::Test {
 protected:
  FlippedReplies() : replayer_(daemon_.directory()) {
    input_.graph = script_;
    input_.sections = SectionsOf(script_);
    input_.request_key = RequestKey(input_.sections);
    input_.want_loop_ir = true;
    const CompileResult made = daemon_.Compile(script_);
    EXPECT_TRUE(made.durable) << made.failed_reason;
    manifest_ = made.manifest;
    grpc::ClientContext context;
    v1::HelloRequest hello;
    hello.set_protocol_min(1);
    hello.set_protocol_max(kSigningProtocol);
    EXPECT_TRUE(daemon_.compiler().Hello(&context, hello, &hello_).ok());
    replies_[kHello].push_back(hello_.SerializeAsString());
    replies_[kLookup].push_back(daemon_.Lookup(script_).SerializeAsString());
    for (const v1::CompileEvent& event : made.events) replies_[kCompile].push_back(event.SerializeAsString());
    for (const v1::ManifestKernel& kernel : manifest_.kernels()) {
      for (const v1::ObjectRef* object : {&kernel.object(), &kernel.loop_ir()}) AddObject(*object);
    }
    replayer_.Say(replies_);
    right_ = Get(*NewClient(Options()), /*compile=*/false);
    EXPECT_TRUE(right_.ok()) << right_.status();
  }

  void AddObject(const v1::ObjectRef& object) {
    grpc::Status status;
    v1::ObjectChunk chunk;
    chunk.set_digest(object.digest());
    chunk.set_data(daemon_.Fetch(manifest_, {object.digest()}, &status));
    chunk.set_last(true);
    EXPECT_TRUE(status.ok()) << status.error_message();
    replies_[kFetch].push_back(chunk.SerializeAsString());
  }

  ClientOptions Options() const {
    ClientOptions options;
    options.address = replayer_.address();
    options.name_space = "test";
    options.compile_seconds = 20;
    return options;
  }

  absl::StatusOr<CompiledArtifact> Get(Client& client, bool compile) { return client.Get(input_, compile); }

  bool IsRight(const CompiledArtifact& artifact) const {
    if (SerializeDeterministic(artifact.manifest) != SerializeDeterministic(right_->manifest)) return false;
    if (artifact.objects.size() != right_->objects.size()) return false;
    for (const auto& [digest, bytes] : right_->objects) {
      const auto found = artifact.objects.find(digest);
      if (found == artifact.objects.end() || *found->second != *bytes) return false;
    }
    return true;
  }

  Verdict VerdictOf(Client& client, bool compile) {
    const absl::StatusOr<CompiledArtifact> got = Get(client, compile);
    if (!got.ok()) return Verdict::kRefused;
    return IsRight(*got) ? Verdict::kSame : Verdict::kWrong;
  }

  // A bit of what the client is to believe: of the manifest's bytes or an object's.
  static bool IsPayload(const std::string& method, const std::string& reply, size_t bit) {
    std::string payload;
    if (method == kFetch) {
      v1::ObjectChunk chunk;
      chunk.ParseFromString(reply);
      payload = chunk.data();
    } else if (method == kCompile) {
      v1::CompileEvent event;
      event.ParseFromString(reply);
      payload = event.done().manifest().manifest();
    } else {
      v1::LookupReply found;
      found.ParseFromString(reply);
      payload = found.hit().manifest().manifest();
    }
    const size_t at = payload.empty() ? std::string::npos : reply.find(payload);
    return at != std::string::npos && bit / 8 >= at && bit / 8 < at + payload.size();
  }

  void FlipMany(const std::string& method);
  Replies WithAnotherObject();

  // Kernels of some kilobytes that do not compress away.
  static std::string Noise() {
    std::string noise;
    for (int i = 0; i < 16; ++i) noise += ToHex(Sha256(absl::StrCat(i)));
    return noise;
  }

  const std::string script_ = absl::StrCat("kernels 3\nname ", Noise());
  TestDaemon daemon_;
  Replayer replayer_;
  Replies replies_;
  CompileRequestInput input_;
  v1::HelloReply hello_;
  v1::Manifest manifest_;
  absl::StatusOr<CompiledArtifact> right_;
};

void FlippedReplies::FlipMany(const std::string& method) {
  const bool compile = method == kCompile;
  if (compile) {
    v1::LookupReply miss;
    miss.mutable_miss();
    replies_[kLookup] = {miss.SerializeAsString()};
    replayer_.Say(replies_);
  }
  const std::vector<std::string>& replies = replies_[method];
  size_t bits = 0;
  for (const std::string& reply : replies) bits += 8 * reply.size();
  std::mt19937_64 random(20261128);
  // The client asks twice for a compile, with a pause.
  const int cases = compile ? Count(100, 2'500) : Count(1'000, 10'000);
  int payloads = 0, refused = 0, same = 0;
  for (int i = 0; i < cases; ++i) {
    Flip flip{method, 0, random() % bits};
    for (; flip.bit >= 8 * replies[flip.reply].size(); ++flip.reply)
      flip.bit -= 8 * replies[flip.reply].size();
    const auto where = [&] { return absl::StrCat(method, " reply ", flip.reply, " bit ", flip.bit); };
    const std::unique_ptr<Client> client = NewClient(Options());
    replayer_.Damage(flip);
    const Verdict verdict = VerdictOf(*client, compile);
    EXPECT_NE(verdict, Verdict::kWrong) << where();
    (verdict == Verdict::kRefused ? refused : same)++;
    if (IsPayload(method, replies[flip.reply], flip.bit)) {
      ++payloads;
      // A few bits of a packed object say nothing: it unpacks to what it was.
      EXPECT_TRUE(verdict == Verdict::kRefused || method == kFetch) << where();
    }
    replayer_.Damage({});
    EXPECT_EQ(VerdictOf(*client, compile), Verdict::kSame) << "after " << where();
  }
  std::printf("%s: of %d damaged replies %d were refused, %d said the same all the same; %d payloads\n",
              method.c_str(), cases, refused, same, payloads);
  EXPECT_GT(payloads, cases / 2);
  EXPECT_GT(refused, cases * 9 / 10);
}

// What the daemon said, but for one object and all digests of it.
Replies FlippedReplies::WithAnotherObject() {
  const v1::ObjectRef& object = manifest_.kernels(0).object();
  grpc::Status status;
  absl::StatusOr<std::string> raw =
      ZstdDecompress(daemon_.Fetch(manifest_, {object.digest()}, &status), object.raw_size());
  EXPECT_TRUE(raw.ok()) << raw.status();
  (*raw)[raw->size() / 2] ^= 1;
  v1::ObjectChunk chunk;
  chunk.set_digest(Sha256(*raw));
  chunk.set_data(ZstdCompress(*raw));
  chunk.set_last(true);
  v1::Manifest manifest = manifest_;
  manifest.mutable_kernels(0)->mutable_object()->set_digest(chunk.digest());
  manifest.mutable_kernels(0)->mutable_object()->set_packed_size(chunk.data().size());
  v1::LookupReply lookup;
  EXPECT_TRUE(lookup.ParseFromString(replies_[kLookup][0]));
  v1::SignedManifest& signed_manifest = *lookup.mutable_hit()->mutable_manifest();
  signed_manifest.set_manifest(SerializeDeterministic(manifest));
  signed_manifest.set_digest(Sha256(signed_manifest.manifest()));
  Replies replies = replies_;
  replies[kLookup] = {lookup.SerializeAsString()};
  replies[kFetch].push_back(chunk.SerializeAsString());
  return replies;
}

TEST_F(FlippedReplies, OfALookupAreRefused) { FlipMany(kLookup); }
TEST_F(FlippedReplies, OfACompileAreRefused) { FlipMany(kCompile); }
TEST_F(FlippedReplies, OfObjectsAreRefused) { FlipMany(kFetch); }

// A daemon in between that makes digests fit, for manifests and objects: nothing is taken. The control, which
// is also what an older daemon is given: where it says that it signs nothing, it is all taken, and seen by
// the same check.
TEST_F(FlippedReplies, WithDigestsMadeToFitAreRefused) {
  int taken = 0;
  for (const uint32_t protocol : {kSigningProtocol, kSigningProtocol - 1}) {
    const bool signs = protocol >= kSigningProtocol;
    hello_.set_protocol(protocol);
    replies_[kHello] = {hello_.SerializeAsString()};
    std::mt19937_64 random(20261128);
    for (int i = 0; i < 100; ++i) {
      v1::LookupReply lookup;
      ASSERT_TRUE(lookup.ParseFromString(replies_[kLookup][0]));
      v1::SignedManifest& signed_manifest = *lookup.mutable_hit()->mutable_manifest();
      std::string& bytes = *signed_manifest.mutable_manifest();
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << (random() % 8));
      signed_manifest.set_digest(Sha256(bytes));
      Replies replies = replies_;
      replies[kLookup] = {lookup.SerializeAsString()};
      replayer_.Say(replies);
      const Verdict verdict = VerdictOf(*NewClient(Options()), /*compile=*/false);
      if (signs) {
        EXPECT_EQ(verdict, Verdict::kRefused);
      } else {
        taken += verdict == Verdict::kWrong;
      }
    }
    replayer_.Say(WithAnotherObject());
    EXPECT_EQ(VerdictOf(*NewClient(Options()), /*compile=*/false),
              signs ? Verdict::kRefused : Verdict::kWrong)
        << "of an object";
  }
  EXPECT_GT(taken, 0) << "of manifests";
}

// A lie about a hit costs a compile, of which the caller is told; where that is a lie too, he has no program.
TEST_F(FlippedReplies, ARefusedHitIsCompiledAnew) {
  replayer_.Say(WithAnotherObject());
  const absl::StatusOr<CompiledArtifact> got = Get(*NewClient(Options()), /*compile=*/true);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(IsRight(*got));
  EXPECT_FALSE(got->hit);
  ASSERT_EQ(got->refused.size(), 1u);
  EXPECT_NE(got->refused[0].find("signature"), std::string::npos) << got->refused[0];

  Replies replies = WithAnotherObject();
  v1::LookupReply lie;
  ASSERT_TRUE(lie.ParseFromString(replies[kLookup][0]));
  v1::CompileEvent done;
  *done.mutable_done()->mutable_manifest() = lie.hit().manifest();
  replies[kCompile] = {done.SerializeAsString()};
  replayer_.Say(replies);
  const absl::StatusOr<CompiledArtifact> twice = Get(*NewClient(Options()), /*compile=*/true);
  EXPECT_EQ(twice.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(twice.status().message().find("signature"), absl::string_view::npos) << twice.status();
}

// Of before there were digests.
TEST_F(FlippedReplies, AnOlderDaemonThatSendsNoDigestIsServed) {
  hello_ = v1::HelloReply();
  hello_.set_protocol(1);
  v1::LookupReply lookup;
  ASSERT_TRUE(lookup.ParseFromString(replies_[kLookup][0]));
  v1::SignedManifest bare;
  bare.set_manifest(lookup.hit().manifest().manifest());
  *lookup.mutable_hit()->mutable_manifest() = bare;
  replies_[kHello] = {hello_.SerializeAsString()};
  replies_[kLookup] = {lookup.SerializeAsString()};
  replayer_.Say(replies_);
  EXPECT_EQ(VerdictOf(*NewClient(Options()), /*compile=*/false), Verdict::kSame);

  // The control: of a daemon that could have signed it is refused.
  hello_.set_protocol(kSigningProtocol);
  replies_[kHello] = {hello_.SerializeAsString()};
  replayer_.Say(replies_);
  EXPECT_EQ(VerdictOf(*NewClient(Options()), /*compile=*/false), Verdict::kRefused);
}

}  // namespace
}  // namespace kiln
