// Bundles between daemons: what a job used warms an empty one; what is flipped, cut or signed by a stranger
// changes nothing; a bundle of one namespace serves another, and those who read it.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/kilnctl.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

using Output = KilnctlOutput;

Output Ctl(const TestDaemon& daemon, const std::string& words) {
  return RunKilnctl(KILNCTL, daemon.socket(), words);
}

std::string ReadFile(const std::string& path) {
  std::stringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

v1::KeysReply::Key KeyOf(TestDaemon& daemon) {
  grpc::ClientContext context;
  v1::KeysReply keys;
  EXPECT_TRUE(daemon.admin().Keys(&context, {}, &keys).ok());
  return keys.own();
}

// The configuration of a daemon that takes what `other` has signed for a namespace.
std::string Trusting(TestDaemon& other, const std::string& name_space, const std::string& more = "") {
  return absl::StrCat("signing { trusted { public_key: \"", KeyOf(other).public_key(), "\" namespaces: \"",
                      name_space, "\" } ", more, " }\n");
}

// As a job's process does: looks, then compiles what is missing.
bool Use(TestDaemon& daemon, const std::string& script, const std::string& job,
         const std::string& ns = "test") {
  v1::LookupRequest look;
  look.set_namespace_(ns);
  look.set_request_key(RequestKey(SectionsOf(script)));
  look.set_job(job);
  grpc::ClientContext context;
  v1::LookupReply found;
  EXPECT_TRUE(daemon.compiler().Lookup(&context, look, &found).ok());
  if (found.has_hit()) return true;
  v1::CompileHeader header;
  header.set_namespace_(ns);
  header.set_job(job);
  *header.mutable_sections() = SectionsOf(script);
  header.set_graph_bytes(script.size());
  return daemon.Compile(header, script, absl::Seconds(60)).durable;
}

// `bytes` by the wire, without kilnctl.
grpc::Status Import(TestDaemon& daemon, const std::string& bytes, v1::ImportReply* reply, bool pin = false,
                    size_t chunk_bytes = kChunkBytesMax) {
  auto stub = v1::Bundles::NewStub(
      grpc::CreateChannel("unix:" + daemon.socket(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  auto writer = stub->Import(&context, reply);
  v1::ImportRequest request;
  request.mutable_header()->set_bytes(bytes.size());
  request.mutable_header()->set_pin(pin);
  writer->Write(request);
  for (size_t at = 0; at < bytes.size(); at += chunk_bytes) {
    request.set_chunk(bytes.substr(at, chunk_bytes));
    if (!writer->Write(request)) break;
  }
  writer->WritesDone();
  return writer->Finish();
}

class Bundle : public testing::Test {
 protected:
  // A bundle of what the job used at `from`.
  std::string Export(const TestDaemon& from, const std::string& words) {
    const Output output = Ctl(from, absl::StrCat("export ", words, " -o ", file()));
    EXPECT_EQ(output.code, 0) << output.text;
    return ReadFile(file());
  }
  std::string file() const { return from_.directory() + "/bundle"; }
  static uint64_t Objects(TestDaemon& daemon) { return daemon.Stats().objects(); }

  TestDaemon from_;
};

TEST_F(Bundle, OfAJobWarmsAnEmptyDaemon) {
  const std::vector<std::string> scripts = {"kernels 2\nname a", "kernels 3\nname b", "kernels 1\nname c"};
  for (const std::string& script : scripts) ASSERT_TRUE(Use(from_, script, "first"));
  ASSERT_TRUE(Use(from_, "kernels 1\nname of another job", "other"));
  // It compiled nothing, and used all the same.
  for (const std::string& script : scripts) ASSERT_TRUE(Use(from_, script, "nightly"));
  ASSERT_EQ(from_.Stats().compiles(), 4u);
  Export(from_, "nightly");

  TestDaemon to(Trusting(from_, "test"));
  const Output imported = Ctl(to, "import " + file());
  EXPECT_EQ(imported.code, 0) << imported.text;
  EXPECT_TRUE(absl::StrContains(imported.text, "job nightly")) << imported.text;
  for (const std::string& script : scripts) EXPECT_TRUE(Use(to, script, "nightly"));
  EXPECT_EQ(to.Stats().compiles(), 0u);
  EXPECT_EQ(to.Stats().hits(), 3u);
  EXPECT_EQ(to.Stats().entries(), 3u) << "the other job's is not in it";
  // Their objects are there, and a client takes them by the signature that they have.
  ClientOptions options;
  options.address = "unix:" + to.socket();
  options.name_space = "test";
  CompileRequestInput input;
  input.request_key = RequestKey(SectionsOf(scripts[1]));
  EXPECT_TRUE(NewClient(options)->Get(input, /*compile=*/false).ok());
  EXPECT_EQ(Ctl(to, "verify").code, 0);

  const Output again = Ctl(to, "import --json " + file());
  EXPECT_TRUE(absl::StrContains(again.text, "\"programs\": 0")) << again.text;
  EXPECT_TRUE(absl::StrContains(again.text, "\"programs\": 3")) << again.text;
}

TEST_F(Bundle, OfKeysAndWhatCannotBeExported) {
  const CompileResult a = from_.Compile("name a");
  ASSERT_TRUE(from_.Compile("name b").durable);
  const std::string key = ToHex(a.manifest.compile_key());
  Export(from_, key.substr(0, 12));
  TestDaemon to(Trusting(from_, "test"));
  EXPECT_EQ(Ctl(to, "import " + file()).code, 0);
  EXPECT_TRUE(to.Lookup("name a").has_hit());
  EXPECT_TRUE(to.Lookup("name b").has_miss());

  const std::string other = from_.directory() + "/none";
  const Output nobody = Ctl(from_, "export no-such-job -o " + other);
  EXPECT_EQ(nobody.code, 1);
  EXPECT_TRUE(absl::StrContains(nobody.text, "no-such-job")) << nobody.text;
  EXPECT_FALSE(std::filesystem::exists(other));
  EXPECT_EQ(Ctl(from_, "export nightly").code, 2) << "without a file";
  ASSERT_TRUE(Use(from_, "name a", "same", "red"));
  ASSERT_TRUE(Use(from_, "name a", "same", "blue"));
  const Output whose = Ctl(from_, "export same -o " + other);
  EXPECT_EQ(whose.code, 1);
  EXPECT_TRUE(absl::StrContains(whose.text, "blue, red")) << whose.text;
  EXPECT_EQ(Ctl(from_, "export same --tenant red -o " + other).code, 0);
  // What has gone since is told, by text and by exit code.
  ASSERT_TRUE(Use(from_, "name b", "same", "red"));
  v1::Manifest gone;
  ASSERT_TRUE(gone.ParseFromString(from_.Lookup("name b", {}, "red").hit().manifest().manifest()));
  ASSERT_EQ(Ctl(from_, "rm " + ToHex(gone.compile_key())).code, 0);
  const Output partial = Ctl(from_, "export same --tenant red -o " + other);
  EXPECT_EQ(partial.code, 1);
  EXPECT_TRUE(absl::StrContains(partial.text, "1 of the job's programs are not in it")) << partial.text;
}

TEST_F(Bundle, WarmPinsUntilItIsUnpinned) {
  ASSERT_TRUE(Use(from_, "kernels 2", "nightly"));
  Export(from_, "nightly");
  TestDaemon to(Trusting(from_, "test"));
  const Output warm = Ctl(to, "warm " + file());
  EXPECT_EQ(warm.code, 0) << warm.text;
  EXPECT_TRUE(absl::StrContains(warm.text, "1 program pinned")) << warm.text;
  ASSERT_TRUE(to.Compile("name by itself").durable);
  EXPECT_EQ(Ctl(to, "evict --to-bytes 0").code, 0);
  EXPECT_TRUE(to.Lookup("name by itself").has_miss()) << "the control";
  EXPECT_TRUE(to.Lookup("kernels 2").has_hit());
  const std::string key = ToHex(RequestKey(SectionsOf("kernels 2"))).substr(0, 16);
  EXPECT_EQ(Ctl(to, "unpin " + key).code, 0);
  EXPECT_EQ(Ctl(to, "evict --to-bytes 0").code, 0);
  EXPECT_TRUE(to.Lookup("kernels 2").has_miss());
  EXPECT_EQ(Ctl(to, "warm " + file()).code, 0);
  EXPECT_EQ(Ctl(to, "rm " + key).code, 0) << "pinned as it is";
  EXPECT_TRUE(to.Lookup("kernels 2").has_miss());
  EXPECT_EQ(Ctl(to, "verify").code, 0);
}

TEST_F(Bundle, OneFlippedBitIsRefusedAndChangesNothing) {
  ASSERT_TRUE(Use(from_, "kernels 2\nname a", "nightly"));
  ASSERT_TRUE(Use(from_, "kernels 1\nname b", "nightly"));
  const std::string bytes = Export(from_, "nightly");
  TestDaemon strict(Trusting(from_, "test"));
  // The control: nobody looks at the digest, or who signed it.
  TestDaemon blind(Trusting(from_, "test") + "store { dangerously_no_verify: true }\n");
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  const int flips = Count(1'000, 20'000);
  int accepted = 0;
  for (int i = 0; i < flips; ++i) {
    std::string flipped = bytes;
    const size_t at = random() % bytes.size();
    flipped[at] ^= static_cast<char>(1 << random() % 8);
    v1::ImportReply reply;
    const grpc::Status status = Import(strict, flipped, &reply);
    ASSERT_FALSE(status.ok()) << "byte " << at;
    EXPECT_NE(status.error_code(), grpc::INTERNAL) << status.error_message();
    if (i < 100) accepted += Import(blind, flipped, &reply).ok() ? 1 : 0;
  }
  EXPECT_EQ(strict.Stats().entries() + Objects(strict), 0u);
  EXPECT_GT(accepted, 0) << "of 100";
  v1::ImportReply reply;
  const grpc::Status whole = Import(strict, bytes, &reply);
  EXPECT_TRUE(whole.ok()) << whole.error_message();
  EXPECT_EQ(reply.fresh().programs(), 2u);
}

TEST_F(Bundle, CutAnywhereIsRefusedAndChangesNothing) {
  ASSERT_TRUE(Use(from_, "kernels 2\nname a", "nightly"));
  const std::string bytes = Export(from_, "nightly");
  TestDaemon to(Trusting(from_, "test"));
  // Within the magic, at the end of every frame, within its length and its message.
  std::vector<size_t> cuts = {0, 1, 13};
  for (size_t at = 14; at < bytes.size();) {
    uint32_t length = 0;
    for (int i = 3; i >= 0; --i)
      length = length << 8 | static_cast<uint8_t>(bytes[at + static_cast<size_t>(i)]);
    cuts.insert(cuts.end(), {at, at + 2, at + 4, at + 4 + length / 2});
    at += 4 + length;
  }
  for (const size_t cut : cuts) {
    v1::ImportReply reply;
    EXPECT_EQ(Import(to, bytes.substr(0, cut), &reply).error_code(), grpc::DATA_LOSS) << cut;
  }
  v1::ImportReply reply;
  EXPECT_EQ(Import(to, bytes + "x", &reply).error_code(), grpc::DATA_LOSS);
  EXPECT_EQ(Import(to, bytes + bytes, &reply).error_code(), grpc::DATA_LOSS);
  EXPECT_EQ(Import(to, "no bundle at all", &reply).error_code(), grpc::DATA_LOSS);
  EXPECT_EQ(to.Stats().entries() + Objects(to), 0u);
  EXPECT_TRUE(Import(to, bytes, &reply).ok()) << "the control";
}

TEST_F(Bundle, ComesInChunksOfSoManyBytes) {
  const std::string none(kChunkBytesMax + 1, 'x');
  v1::ImportReply reply;
  const std::string taken = Import(from_, none, &reply).error_message();
  EXPECT_FALSE(absl::StrContains(taken, "chunk: ")) << taken;
  const grpc::Status refused = Import(from_, none, &reply, false, kChunkBytesMax + 1);
  EXPECT_EQ(refused.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(refused.error_message(), "chunk: more than 1048576 bytes");
}

TEST_F(Bundle, OfAStrangersKeyIsRefusedWithTheWayOut) {
  ASSERT_TRUE(Use(from_, "kernels 2", "nightly"));
  const std::string bytes = Export(from_, "nightly");
  for (const std::string& config : {std::string(), Trusting(from_, "another")}) {
    TestDaemon to(config);
    const Output refused = Ctl(to, "import " + file());
    EXPECT_EQ(refused.code, 1) << refused.text;
    for (const std::string& word : {KeyOf(from_).id(), std::string("signing { trusted {"),
                                    std::string("namespaces: \"test\""), std::string("kilnctl keys")}) {
      EXPECT_TRUE(absl::StrContains(refused.text, word)) << word << " in " << refused.text;
    }
    EXPECT_EQ(Ctl(to, "import --into other " + file()).code, 1) << "by no other name either";
    EXPECT_EQ(to.Stats().entries() + Objects(to), 0u);
  }
  TestDaemon revoked(Trusting(from_, "test", absl::StrCat("revoked: \"", KeyOf(from_).id(), "\"")));
  EXPECT_TRUE(absl::StrContains(Ctl(revoked, "import " + file()).text, "revoked"));
  EXPECT_EQ(revoked.Stats().entries(), 0u);
}

// What a build service compiled serves production, to the byte as if it had been compiled there.
TEST_F(Bundle, IntoAnotherNamespaceIsWhatACompileThereGives) {
  const std::vector<std::string> scripts = {"kernels 3\nname a", "kernels 2\nname b"};
  for (const std::string& script : scripts) ASSERT_TRUE(Use(from_, script, "build", "ci"));
  Export(from_, "build");
  TestDaemon production(Trusting(from_, "ci"));
  const Output imported = Ctl(production, absl::StrCat("import --into production ", file()));
  EXPECT_EQ(imported.code, 0) << imported.text;
  TestDaemon compiling;
  for (const std::string& script : scripts) {
    const v1::LookupReply hit = production.Lookup(script, {}, "production");
    ASSERT_TRUE(hit.has_hit());
    EXPECT_EQ(hit.hit().manifest().manifest(),
              compiling.Compile(script, {}, absl::Seconds(60), "production").manifest_bytes);
    EXPECT_EQ(hit.hit().manifest().key_id(), KeyOf(production).id());
    EXPECT_TRUE(production.Lookup(script, {}, "ci").has_miss());
    ClientOptions options;
    options.address = "unix:" + production.socket();
    options.name_space = "production";
    CompileRequestInput input;
    input.request_key = RequestKey(SectionsOf(script));
    EXPECT_TRUE(NewClient(options)->Get(input, /*compile=*/false).ok());
  }
  EXPECT_EQ(production.Stats().compiles(), 0u);
  // Its kernels are of use to what is compiled there.
  ASSERT_TRUE(production.Compile("kernels 4\nname a", {}, absl::Seconds(60), "production").durable);
  EXPECT_EQ(production.Stats().kernels_reused(), 3u);
  EXPECT_EQ(Ctl(production, "verify").code, 0);
  const Output shown = Ctl(production, "show " + ToHex(RequestKey(SectionsOf(scripts[0]))).substr(0, 16));
  EXPECT_EQ(shown.code, 0) << shown.text;
}

// ---- Namespaces that several read --------------------------------------------------------------

class SharedNamespace : public Bundle {
 protected:
  // This user's tenant is "red", who is kilnd's own user and so an administrator.
  static std::string Red(const std::string& reads) {
    return absl::StrCat("listen { tenants { name: \"red\" uids: ", getuid(), " ", reads, " } }\n");
  }
  std::string Export(const std::string& script) {
    EXPECT_TRUE(Use(from_, script, "build", "ci"));
    return Bundle::Export(from_, "build");
  }
};

TEST_F(SharedNamespace, ServesWhoReadsIt) {
  Export("kernels 2\nname a");
  TestDaemon daemon(Red("reads: \"first\" reads: \"second\"") + Trusting(from_, "ci"));
  ASSERT_EQ(Ctl(daemon, "import --into second " + file()).code, 0);
  for (int i = 0; i < 3; ++i) {
    const v1::LookupReply hit = daemon.Lookup("kernels 2\nname a");
    ASSERT_TRUE(hit.has_hit()) << i;
    EXPECT_EQ(hit.hit().manifest().namespace_(), "second");
  }
  ClientOptions options;
  options.address = "unix:" + daemon.socket();
  CompileRequestInput input;
  input.request_key = RequestKey(SectionsOf("kernels 2\nname a"));
  const auto got = NewClient(options)->Get(input, /*compile=*/false);
  EXPECT_TRUE(got.ok()) << got.status();
  const CompileResult compiled = daemon.Compile("kernels 2\nname a");
  EXPECT_TRUE(compiled.durable);
  EXPECT_EQ(compiled.manifest.namespace_(), "second") << "who does not look first is answered from there too";
  EXPECT_EQ(daemon.Stats().compiles(), 0u);

  // What comes before it is served before it.
  ASSERT_EQ(Ctl(daemon, "import --into first " + file()).code, 0);
  EXPECT_EQ(daemon.Lookup("kernels 2\nname a").hit().manifest().namespace_(), "first");
  ASSERT_EQ(Ctl(daemon, "import --into red " + file()).code, 0);
  EXPECT_EQ(daemon.Lookup("kernels 2\nname a").hit().manifest().namespace_(), "red");
  // And what is not there any more is not.
  const std::string key = ToHex(RequestKey(SectionsOf("kernels 2\nname a"))).substr(0, 16);
  EXPECT_EQ(Ctl(daemon, "rm --every-match " + key).code, 0);
  EXPECT_TRUE(daemon.Lookup("kernels 2\nname a").has_miss());
  // Nobody compiles into it.
  EXPECT_EQ(daemon.Compile("kernels 2\nname a").manifest.namespace_(), "red");
  EXPECT_EQ(daemon.Stats().compiles(), 1u);
}

// What a gang is served may be from there, though a member's own namespace has another that holds as well.
TEST_F(SharedNamespace, AGangIsServedFromIt) {
  const std::string script = "name sized\naround 50";
  v1::CompileHeader header;
  header.set_namespace_("ci");
  header.set_job("build");
  *header.mutable_sections() = SectionsOf(script);
  header.set_graph_bytes(script.size());
  header.mutable_hints()->add_values(230);
  ASSERT_TRUE(from_.Compile(header, script, absl::Seconds(60)).durable);
  Bundle::Export(from_, "build");
  for (const bool reads : {true, false}) {
    TestDaemon daemon(Red(reads ? "reads: \"shared\"" : "") + Trusting(from_, "ci"));
    header.mutable_hints()->set_values(0, 150);
    const CompileResult own = daemon.Compile(header, script, absl::Seconds(60));
    ASSERT_TRUE(own.durable);
    if (reads) {
      ASSERT_EQ(Ctl(daemon, "import --into shared " + file()).code, 0);
    }
    const auto served = [&](int64_t hint) {  // at once, without looking
      v1::CompileHeader member = header;
      member.mutable_gang()->set_id(std::string(16, 'a'));
      member.mutable_gang()->set_size(2);
      member.mutable_hints()->set_values(0, hint);
      return daemon.Compile(member, script, absl::Seconds(60));
    };
    const CompileResult first = served(240), second = served(190);
    EXPECT_TRUE(first.done) << first.failed_reason;
    EXPECT_TRUE(second.done) << second.failed_reason;
    EXPECT_EQ(first.manifest.variant_id(), second.manifest.variant_id());
    EXPECT_NE(second.manifest.variant_id(), own.manifest.variant_id());
    EXPECT_EQ(second.manifest.namespace_(), reads ? "shared" : "red") << "the control";
  }
}

TEST_F(SharedNamespace, IsNotThereForWhoDoesNotReadIt) {
  Export("kernels 2\nname a");
  TestDaemon daemon(Red("reads: \"shared\"") + Trusting(from_, "ci"));
  ASSERT_EQ(Ctl(daemon, "import --into shared " + file()).code, 0);
  v1::Manifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(daemon.Lookup("kernels 2\nname a").hit().manifest().manifest()));
  const std::vector<std::string> digests = {manifest.kernels(0).object().digest()};
  grpc::Status status;
  EXPECT_FALSE(daemon.Fetch(manifest, digests, &status).empty());
  EXPECT_TRUE(status.ok()) << status.error_message();

  EXPECT_EQ(daemon.Stop(SIGTERM), 0);
  daemon.Configure(Red("reads: \"else\"") + Trusting(from_, "ci"));
  daemon.Start();
  EXPECT_TRUE(daemon.Lookup("kernels 2\nname a").has_miss());
  daemon.Fetch(manifest, digests, &status);
  EXPECT_EQ(status.error_code(), grpc::NOT_FOUND) << status.error_message();
  const Output nowhere = Ctl(daemon, "import --into shared " + file());
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_TRUE(absl::StrContains(nowhere.text, "listen.tenants.reads")) << nowhere.text;
}

// ---- Size --------------------------------------------------------------------------------------

// What kilnd holds for it does not grow with it: five times as many programs, and little more at most.
TEST_F(Bundle, OfTwoHundredMegabytesTakesLittleMemory) {
  uint64_t peaks[2] = {};
  int made = 0;
  for (const int programs : {4, 20}) {
    const auto script = [](int i) { return absl::StrCat("kernels 2\nobject_kib 5120\nname ", i); };
    for (; made < programs; ++made) ASSERT_TRUE(Use(from_, script(made), "large"));
    TestDaemon to(Trusting(from_, "test") + "store { memory_bytes: 16777216 }\n");
    Export(from_, "large");
    EXPECT_GT(std::filesystem::file_size(file()), static_cast<uint64_t>(programs) * 10 << 20);
    const Output imported = Ctl(to, "warm " + file());
    ASSERT_EQ(imported.code, 0) << imported.text;
    peaks[programs == 20] = PeakResidentBytes(to.pid());
    for (int i = 0; i < programs; ++i) EXPECT_TRUE(to.Lookup(script(i)).has_hit());
  }
  std::cout << "at most " << (peaks[0] >> 20) << " MiB for 40 MiB, " << (peaks[1] >> 20)
            << " MiB for 200 MiB\n";
  EXPECT_GT(peaks[0], 0u);
  EXPECT_LT(peaks[1], peaks[0] + (100u << 20));
}

// Two that come to more than the store may have: the second has to wait for the first's end.
TEST_F(Bundle, ImportsHaveOneBudgetTogether) {
  TestDaemon to("store { budget_bytes: 4194304 }\n");
  const auto stub =
      v1::Bundles::NewStub(grpc::CreateChannel("unix:" + to.socket(), grpc::InsecureChannelCredentials()));
  const auto begin = [&](grpc::ClientContext* context, uint64_t bytes, v1::ImportReply* reply) {
    auto writer = stub->Import(context, reply);
    v1::ImportRequest request;
    request.mutable_header()->set_bytes(bytes);
    EXPECT_TRUE(writer->Write(request));
    request.set_chunk("K");
    writer->Write(request);
    return writer;
  };
  const auto refused = [&](uint64_t bytes) {
    grpc::ClientContext context;
    v1::ImportReply reply;
    auto writer = begin(&context, bytes, &reply);
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) return false;
    EXPECT_TRUE(context.GetServerTrailingMetadata().contains("grpc-retry-pushback-ms"));
    EXPECT_TRUE(absl::StrContains(status.error_message(), "store.budget_bytes")) << status.error_message();
    return true;
  };
  EXPECT_FALSE(refused(4'000'000)) << "the control: by itself it has room";
  std::optional<grpc::ClientContext> context;
  v1::ImportReply reply;
  std::unique_ptr<grpc::ClientWriter<v1::ImportRequest>> first;
  // Who asks may be served before the first is: then that one is refused, and begins anew.
  EXPECT_TRUE(Eventually([&] {
    if (first != nullptr) {
      context->TryCancel();
      first->Finish();
    }
    first = begin(&context.emplace(), 3'000'000, &reply);
    absl::SleepFor(absl::Milliseconds(50));
    return refused(2'000'000);
  }));
  EXPECT_FALSE(refused(1'000'000)) << "there is room for that";
  context->TryCancel();
  EXPECT_TRUE(Eventually([&] { return !refused(2'000'000); })) << "what it had is released";
}

TEST_F(Bundle, LargerThanTheStoreIsRefusedBeforeItIsSent) {
  ASSERT_TRUE(Use(from_, "kernels 1\nobject_kib 2048", "large"));
  Export(from_, "large");
  TestDaemon to(Trusting(from_, "test") + "store { budget_bytes: 1048576 }\n");
  const Output refused = Ctl(to, "import " + file());
  EXPECT_EQ(refused.code, 1);
  EXPECT_TRUE(absl::StrContains(refused.text, "store.budget_bytes")) << refused.text;
}

}  // namespace
}  // namespace kiln
