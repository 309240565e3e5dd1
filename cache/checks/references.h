// What an entry names: the objects of a manifest or kernel record. Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/artifact_store.h"

namespace kiln {

struct References {
  std::vector<EntryId> objects;          // sorted, no duplicates
  std::vector<std::string> kernel_keys;  // of a manifest; sorted, no duplicates
};

inline bool HasReferences(EntryKind kind) {
  return kind == EntryKind::kManifest || kind == EntryKind::kKernel;
}

// DATA_LOSS where `value` is no such record. `kind` is kManifest or kKernel.
absl::StatusOr<References> ReferencesOf(EntryKind kind, absl::string_view value);

}  // namespace kiln
