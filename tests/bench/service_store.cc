// Fills a store that no kilnd has open with programs of nothing, so that a kilnd whose workers are scripted
// answers Lookups of them by hits:
//   service_store --directory STORE --namespace NS --fingerprint TEXT --manifests N [--bytes N] --out
//   DIRECTORY
// and writes lists of such Lookups for service_load: "hot", which fit memory, and "cold". Prints one line of
// JSON: the bytes of a reply, and of all manifests as stored.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "cache/chain/store_config.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/compile.pb.h"

namespace kiln {
namespace {

constexpr size_t kBatch = 2'000;
constexpr size_t kHot = 1'000;
constexpr size_t kCold = 2'000;

struct Options {
  std::string directory, ns, fingerprint, out;
  size_t manifests = 0;
  size_t bytes = 2'048;
};

std::string RequestKeyOf(size_t number) { return Sha256(absl::StrCat("filled ", number)); }

v1::SignedManifest ManifestOf(const Options& options, const Signatures& signatures, size_t number) {
  v1::Manifest manifest;
  manifest.set_format_version(kProgramFormatVersion);
  manifest.set_namespace_(options.ns);
  manifest.set_request_key(RequestKeyOf(number));
  manifest.set_compile_key(
      CompileKey(options.ns, manifest.request_key(), kProgramFormatVersion, options.fingerprint));
  manifest.set_variant_id(VariantId(manifest.compile_key(), manifest.guards(), ""));
  manifest.mutable_program()->set_format_version(kProgramFormatVersion);
  std::minstd_rand random(static_cast<uint32_t>(number + 1));
  std::string filler(options.bytes - std::min(options.bytes, manifest.ByteSizeLong()), ' ');
  for (char& letter : filler) letter = static_cast<char>('0' + random() / 8 % 64);
  manifest.mutable_target()->set_triple(filler);
  const EntryId id = {EntryKind::kManifest, ManifestEntryKey(manifest.compile_key(), manifest.variant_id())};
  v1::SignedManifest signed_manifest;
  signed_manifest.ParseFromString(
      signatures.Sign(id, options.ns, manifest.SerializeAsString()).SerializeAsString());
  return signed_manifest;
}

absl::Status Fill(const Options& options) {
  v1::StoreConfig config;
  config.set_directory(options.directory);
  config.set_budget_bytes(std::max<uint64_t>(64u << 20, 4 * options.manifests * options.bytes));
  v1::SigningConfig signing;
  signing.set_key_file(options.out + "/signing.pem");
  KILN_ASSIGN_OR_RETURN(const Signatures signatures, Signatures::Load(signing));
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, NewStore(config));
  store->SetCompiler(options.fingerprint);
  std::vector<Entry> batch;
  for (size_t i = 0; i < options.manifests; ++i) {
    const v1::SignedManifest manifest = ManifestOf(options, signatures, i);
    v1::Manifest parsed;
    parsed.ParseFromString(manifest.manifest());
    batch.push_back({{EntryKind::kManifest, ManifestEntryKey(parsed.compile_key(), parsed.variant_id())},
                     MakeEntryValue(manifest.SerializeAsString())});
    if (batch.size() < kBatch && i + 1 < options.manifests) continue;
    KILN_RETURN_IF_ERROR(store->artifacts().Put(batch));
    batch.clear();
  }
  v1::LookupReply reply;
  *reply.mutable_hit()->mutable_manifest() = ManifestOf(options, signatures, 0);
  uint64_t bytes = 0;
  for (uint64_t of_kind : store->catalog().Totals().bytes) bytes += of_kind;
  printf("{\"reply\": %zu, \"bytes\": %llu}\n", reply.ByteSizeLong(), static_cast<unsigned long long>(bytes));
  return absl::OkStatus();
}

// Each a message with its length before it, four bytes.
void WriteLookups(const Options& options, const std::string& name, size_t count, uint64_t seed) {
  std::ofstream file(absl::StrCat(options.out, "/", name), std::ios::binary);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < count; ++i) {
    v1::LookupRequest request;
    request.set_namespace_(options.ns);
    request.set_request_key(RequestKeyOf(random() % options.manifests));
    const std::string bytes = request.SerializeAsString();
    const uint32_t size = static_cast<uint32_t>(bytes.size());
    file.write(reinterpret_cast<const char*>(&size), sizeof(size));
    file << bytes;
  }
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Fills a store with programs of nothing.");
  app.add_option("--directory", options.directory, "The store's")->required();
  app.add_option("--namespace", options.ns, "Whose programs they are")->required();
  app.add_option("--fingerprint", options.fingerprint, "The compiler's, as the daemon tells it")->required();
  app.add_option("--manifests", options.manifests, "How many")->required()->check(CLI::Range(1, 100'000'000));
  app.add_option("--bytes", options.bytes, "Of each");
  app.add_option("--out", options.out, "Where the lists of Lookups and the signing key go")->required();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Fill(options);
  if (!status.ok()) {
    fprintf(stderr, "service_store: %s\n", status.ToString().c_str());
    return 1;
  }
  WriteLookups(options, "hot", kHot, 1);
  WriteLookups(options, "cold", kCold, 2);
  return 0;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
