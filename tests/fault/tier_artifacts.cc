#include "tests/fault/tier_artifacts.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/zstd.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

std::string KeyOf(int number) { return Sha256(absl::StrCat("key ", number)); }
std::string VariantOf(int number) { return Sha256(absl::StrCat("variant ", number)); }

std::string Noise(size_t bytes, int seed) {
  std::minstd_rand random(static_cast<uint32_t>(seed) + 1);
  std::string noise(bytes, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  return noise;
}

const Signatures& TestSignatures() {
  static const Signatures& signatures = *new Signatures(Signatures::OfThisProcess());
  return signatures;
}

std::vector<Entry> ArtifactOf(int number, size_t bytes, const std::string& ns) {
  std::vector<Entry> entries;
  v1::Manifest manifest;
  manifest.set_namespace_(ns);
  manifest.set_compile_key(KeyOf(number));
  manifest.set_variant_id(VariantOf(number));
  v1::ManifestKernel* kernel = manifest.add_kernels();
  kernel->set_kernel_key(Sha256(absl::StrCat("kernel ", number)));
  const auto add = [&](const std::string& raw, v1::ObjectRef* ref) {
    EntryValue packed = MakeEntryValue(ZstdCompress(raw));
    ref->set_digest(Sha256(raw));
    ref->set_raw_size(raw.size());
    ref->set_packed_size(packed->size());
    entries.push_back({{EntryKind::kObject, ref->digest()}, packed});
  };
  add(Noise(bytes, number), kernel->mutable_object());
  add(absl::StrCat("loops ", number), kernel->mutable_loop_ir());
  entries.push_back(TestSignatures().SignEntry({EntryKind::kKernel, kernel->kernel_key()}, ns,
                                               SerializeDeterministic(*kernel)));
  entries.push_back({{EntryKind::kMeta, KeyOf(number) + "request"}, MakeEntryValue("of a caller")});
  entries.push_back(
      TestSignatures().SignEntry({EntryKind::kManifest, ManifestEntryKey(KeyOf(number), VariantOf(number))},
                                 ns, SerializeDeterministic(manifest)));
  return entries;
}

}  // namespace kiln
