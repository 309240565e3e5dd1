#include "cache/checks/references.h"

#include <algorithm>
#include <climits>

#include "absl/strings/str_cat.h"
#include "cache/signatures.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {
namespace {

template <typename Message>
bool Parse(absl::string_view bytes, Message* message) {
  return bytes.size() <= INT_MAX && message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

void AddObjects(const std::vector<const v1::ObjectRef*>& objects, References* references) {
  for (const v1::ObjectRef* object : objects) {
    references->objects.push_back({EntryKind::kObject, object->digest()});
  }
}

void AddKey(const v1::ManifestKernel& kernel, References* references) {
  if (!kernel.kernel_key().empty()) references->kernel_keys.push_back(kernel.kernel_key());
}

void SortAndUnique(References* references) {
  auto by_key = [](const EntryId& a, const EntryId& b) { return a.key < b.key; };
  std::sort(references->objects.begin(), references->objects.end(), by_key);
  references->objects.erase(std::unique(references->objects.begin(), references->objects.end()),
                            references->objects.end());
  auto& keys = references->kernel_keys;
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
}

}  // namespace

absl::StatusOr<References> ReferencesOf(EntryKind kind, absl::string_view value) {
  References references;
  KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope envelope, OpenEnvelope(value));
  if (kind == EntryKind::kKernel) {
    v1::ManifestKernel kernel;
    if (!Parse(envelope.value(), &kernel)) return absl::DataLossError("kernel record does not parse");
    AddObjects(ObjectsOf(kernel), &references);
    AddKey(kernel, &references);
  } else if (kind == EntryKind::kManifest) {
    v1::Manifest manifest;
    if (!Parse(envelope.value(), &manifest)) return absl::DataLossError("manifest does not parse");
    AddObjects(ObjectsOf(manifest), &references);
    for (const v1::ManifestKernel& kernel : manifest.kernels()) AddKey(kernel, &references);
  }
  SortAndUnique(&references);
  return references;
}

}  // namespace kiln
