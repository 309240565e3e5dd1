// The form of a bundle: every bit of it counts, and every length.
#include "cache/bundle/bundle_file.h"

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "cache/bundle/bundle_check.h"
#include "cache/cache_limits.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/zstd.h"
#include "gtest/gtest.h"
#include "kiln/v1/record.pb.h"
#include "tests/unit/test_signatures.h"

namespace kiln {
namespace {

BundleCompiler TestCompiler() {
  BundleCompiler compiler;
  compiler.fingerprint = "a compiler";
  compiler.program_format = 3;
  return compiler;
}

v1::BundleHeader HeaderOf(const std::vector<std::string>& namespaces) {
  v1::BundleHeader header;
  for (const std::string& name : namespaces) header.add_namespaces(name);
  header.set_compiler_fingerprint(TestCompiler().fingerprint);
  header.set_program_format(TestCompiler().program_format);
  return header;
}

std::string Written(const v1::BundleHeader& header, const std::vector<Entry>& entries,
                    const Signatures& signatures = TestSignatures()) {
  BundleWriter writer(&signatures, header);
  std::string bytes = writer.Begin();
  for (const Entry& entry : entries) bytes += writer.Add(entry);
  return bytes + writer.End();
}

Entry Object(const std::string& raw) {
  return {{EntryKind::kObject, Sha256(raw)}, MakeEntryValue(ZstdCompress(raw))};
}

v1::Manifest TestManifest() {
  v1::Manifest manifest;
  manifest.set_format_version(TestCompiler().program_format);
  manifest.set_namespace_("red");
  manifest.set_request_key(Sha256("request"));
  manifest.set_compile_key(
      CompileKey("red", manifest.request_key(), manifest.format_version(), "a compiler"));
  manifest.set_variant_id(VariantId(manifest.compile_key(), manifest.guards(), ""));
  manifest.add_kernels()->mutable_object()->set_digest(Sha256("code"));
  return manifest;
}

Entry EntryOf(const v1::Manifest& manifest) {
  return {{EntryKind::kManifest, ManifestEntryKey(manifest.compile_key(), manifest.variant_id())},
          MakeEntryValue(SerializeDeterministic(TestSignatures().SignManifest(manifest)))};
}

absl::Status Check(const std::string& bytes, const BundleCompiler& compiler = TestCompiler(),
                   const Signatures& signatures = TestSignatures()) {
  FILE* const file = fmemopen(const_cast<char*>(bytes.data()), bytes.size(), "r");
  const absl::Status status = CheckBundle(file, compiler, signatures, [] { return false; }).status();
  fclose(file);
  return status;
}

TEST(BundleFile, EveryBitAndEveryByteCounts) {
  const std::string bytes = Written(HeaderOf({"red"}), {Object("code"), EntryOf(TestManifest())});
  ASSERT_TRUE(Check(bytes).ok()) << Check(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
    const absl::Status status = Check(flipped);
    EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsPermissionDenied(status)) << bit << ": " << status;
  }
  for (size_t size = 1; size < bytes.size(); ++size)
    EXPECT_TRUE(absl::IsDataLoss(Check(bytes.substr(0, size)))) << size;
  EXPECT_TRUE(absl::IsDataLoss(Check(bytes + std::string(1, '\0'))));
}

// Each with a signature and a digest that are right: what a daemon signs that counts, and that lies.
TEST(BundleFile, EntriesAreWhatTheirKeysSay) {
  const auto refused = [](const v1::BundleHeader& header, const std::vector<Entry>& entries) {
    return absl::IsDataLoss(Check(Written(header, entries)));
  };
  const v1::BundleHeader header = HeaderOf({"red"});
  const Entry code = Object("code");
  EXPECT_TRUE(refused(header, {EntryOf(TestManifest())})) << "without its object";
  EXPECT_TRUE(refused(header, {EntryOf(TestManifest()), code})) << "before its object";
  Entry other = code;
  other.id.key = Sha256("other code");
  EXPECT_TRUE(refused(header, {other}));
  v1::Manifest lies = TestManifest();
  lies.set_request_key(Sha256("another request"));
  EXPECT_TRUE(refused(header, {code, EntryOf(lies)})) << "under another's CompileKey";
  lies = TestManifest();
  lies.mutable_guards()->add_conditions(1);
  EXPECT_TRUE(refused(header, {code, EntryOf(lies)})) << "under another's VariantId";
  EXPECT_TRUE(refused(HeaderOf({"blue"}), {code, EntryOf(TestManifest())}))
      << "of a namespace that is not named";
  EXPECT_TRUE(refused(HeaderOf({}), {code})) << "of nobody";
  EXPECT_TRUE(refused(header, {TestSignatures().SignEntry({EntryKind::kFailure, Sha256("key")}, "red", "")}));
  v1::RequestRecord record;
  record.set_namespace_("red");
  record.set_request_key(RequestKey(record.sections()));
  const std::string key =
      CompileKey("red", record.request_key(), TestCompiler().program_format, "a compiler");
  const auto entry = [&] {
    return Entry{RequestRecordId(key), MakeEntryValue(SerializeDeterministic(record))};
  };
  EXPECT_TRUE(Check(Written(header, {entry()})).ok()) << "the control";
  record.mutable_sections()->set_options("others");
  EXPECT_TRUE(refused(header, {entry()}));
}

TEST(BundleFile, OfAnotherCompilerNobodyWouldFindIt) {
  const std::string bytes = Written(HeaderOf({"red"}), {});
  BundleCompiler compiler = TestCompiler();
  compiler.fingerprint = "another";
  EXPECT_TRUE(absl::IsFailedPrecondition(Check(bytes, compiler)));
  compiler = TestCompiler();
  ++compiler.program_format;
  EXPECT_TRUE(absl::IsFailedPrecondition(Check(bytes, compiler)));
}

TEST(BundleFile, OfAnothersKeyIsRefusedByName) {
  const Signatures stranger = Signatures::OfThisProcess();
  const absl::Status status = Check(Written(HeaderOf({"red"}), {}, stranger));
  EXPECT_TRUE(absl::IsPermissionDenied(status));
  EXPECT_NE(status.message().find(stranger.key_id()), std::string::npos) << status;
  EXPECT_NE(status.message().find("namespaces: \"red\""), std::string::npos) << status;
}

// One signature a namespace: who may sign for one of them does not vouch for the others.
TEST(BundleFile, AKeyCountsForEachOfItsNamespaces) {
  const Signatures exporter = Signatures::OfThisProcess();
  char path[] = "/tmp/kiln-test-XXXXXX";
  const std::string directory = mkdtemp(path);
  v1::SigningConfig config;
  config.set_key_file(directory + "/signing.pem");
  v1::TrustedKeyConfig& trusted = *config.add_trusted();
  trusted.set_public_key(absl::Base64Escape(exporter.Listed("")[0].public_key()));
  trusted.add_namespaces("red");
  const auto importer = Signatures::Load(config);
  ASSERT_TRUE(importer.ok()) << importer.status();
  const auto check = [&](const std::vector<std::string>& namespaces) {
    return Check(Written(HeaderOf(namespaces), {}, exporter), TestCompiler(), *importer);
  };
  EXPECT_TRUE(check({"red"}).ok()) << check({"red"});
  const absl::Status both = check({"red", "blue"});
  EXPECT_TRUE(absl::IsPermissionDenied(both));
  EXPECT_NE(both.message().find("namespaces: \"blue\""), std::string::npos) << both;
  std::filesystem::remove_all(directory);
}

// An import holds the records that come before a program: their bytes have a limit, a program's at a time.
TEST(BundleFile, RecordsBeforeAProgramHaveALimit) {
  const Entry record =
      TestSignatures().SignEntry({EntryKind::kTuning, Sha256("tunable")}, "red", std::string(8u << 20, 'r'));
  const size_t most = kBundleRecordBytesMax / record.value->size();
  std::vector<Entry> entries = {Object("code")};
  for (int program = 0; program < 2; ++program) {  // the second has a limit of its own
    entries.insert(entries.end(), most, record);
    entries.push_back(EntryOf(TestManifest()));
  }
  EXPECT_TRUE(Check(Written(HeaderOf({"red"}), entries)).ok()) << Check(Written(HeaderOf({"red"}), entries));
  entries.insert(entries.begin(), record);
  const absl::Status status = Check(Written(HeaderOf({"red"}), entries));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace kiln
