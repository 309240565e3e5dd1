// What the tests of the store share: valid entries of every kind, made from a number, and temporary
// directories.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/artifact_store.h"
#include "compiler/support/digest.h"
#include "compiler/support/zstd.h"
#include "gtest/gtest.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "kiln-store-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string RandomBytes(uint64_t seed, size_t size) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

inline Entry ObjectEntry(uint64_t seed, size_t size) {
  std::string raw = RandomBytes(seed, size);
  return {{EntryKind::kObject, Sha256(raw)}, MakeEntryValue(ZstdCompress(raw))};
}

// As signed values are, signed by nobody: for stores that are built without signatures.
inline std::string Enveloped(std::string value) {
  v1::SignedEnvelope envelope;
  envelope.set_value(std::move(value));
  return envelope.SerializeAsString();
}

inline Entry ManifestEntry(uint64_t seed, const std::vector<Entry>& objects) {
  v1::Manifest manifest;
  manifest.set_compile_key(Sha256(absl::StrCat("compile ", seed)));
  manifest.set_variant_id(Sha256(absl::StrCat("variant ", seed)));
  for (const Entry& object : objects) {
    v1::ManifestKernel* kernel = manifest.add_kernels();
    kernel->set_kernel_key(Sha256(absl::StrCat("kernel ", object.id.key)));
    kernel->mutable_object()->set_digest(object.id.key);
  }
  v1::SignedManifest signed_manifest;
  signed_manifest.set_manifest(manifest.SerializeAsString());
  return {{EntryKind::kManifest, ManifestEntryKey(manifest.compile_key(), manifest.variant_id())},
          MakeEntryValue(signed_manifest.SerializeAsString())};
}

inline Entry KernelEntry(const Entry& object) {
  v1::ManifestKernel kernel;
  kernel.set_kernel_key(Sha256(absl::StrCat("kernel ", object.id.key)));
  kernel.mutable_object()->set_digest(object.id.key);
  return {{EntryKind::kKernel, kernel.kernel_key()}, MakeEntryValue(Enveloped(kernel.SerializeAsString()))};
}

// One artifact as the daemon writes it: objects, kernel records, a manifest, notes.
inline std::vector<Entry> ArtifactBatch(uint64_t seed, size_t objects, size_t object_bytes) {
  std::vector<Entry> batch;
  for (size_t i = 0; i < objects; ++i) batch.push_back(ObjectEntry(seed * 1000 + i, object_bytes));
  Entry manifest = ManifestEntry(seed, batch);
  for (size_t i = 0; i < objects; ++i) batch.push_back(KernelEntry(batch[i]));
  batch.push_back(manifest);
  batch.push_back({{EntryKind::kMeta, manifest.id.key.substr(0, kDigestBytes) + "notes"},
                   MakeEntryValue(absl::StrCat("notes ", seed))});
  return batch;
}

// The n-th valid entry of a kind that needs no other entry; no two alike.
inline Entry PlainEntry(EntryKind kind, uint64_t seed) {
  if (kind == EntryKind::kObject) return ObjectEntry(seed, 300 + seed % 7000);
  if (kind == EntryKind::kManifest) return ManifestEntry(seed, {});
  if (kind == EntryKind::kKernel) {
    v1::ManifestKernel kernel;
    kernel.set_kernel_key(Sha256(absl::StrCat("plain kernel ", seed)));
    return {{kind, kernel.kernel_key()}, MakeEntryValue(Enveloped(kernel.SerializeAsString()))};
  }
  return {{kind, Sha256(absl::StrCat(EntryKindName(kind), seed))},
          MakeEntryValue(RandomBytes(seed, 10 + seed % 100))};
}

inline std::vector<EntryId> IdsOf(const std::vector<Entry>& entries) {
  std::vector<EntryId> ids;
  for (const Entry& entry : entries) ids.push_back(entry.id);
  return ids;
}

}  // namespace kiln
