#include "cache/artifact_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/cache_limits.h"
#include "compiler/support/digest.h"

namespace kiln {

const char* EntryKindName(EntryKind kind) {
  switch (kind) {
    case EntryKind::kManifest: return "manifest";
    case EntryKind::kObject: return "object";
    case EntryKind::kKernel: return "kernel";
    case EntryKind::kTuning: return "tuning";
    case EntryKind::kFailure: return "failure";
    case EntryKind::kUses: return "uses";
    case EntryKind::kMeta: return "meta";
  }
  return "unknown";
}

EntryValue MakeEntryValue(std::string bytes) { return std::make_shared<const std::string>(std::move(bytes)); }

std::string ManifestEntryKey(absl::string_view compile_key, absl::string_view variant_id) {
  return absl::StrCat(compile_key, variant_id);
}

EntryId RequestRecordId(absl::string_view compile_key) {
  return {EntryKind::kMeta, absl::StrCat(compile_key, "request")};
}

uint32_t CompilerNumber(absl::string_view fingerprint) {
  if (fingerprint.empty()) return 0;
  const std::string digest = Sha256(fingerprint);
  uint32_t number = 0;
  for (int i = 0; i < 4; ++i) number = number << 8 | static_cast<uint8_t>(digest[i]);
  return std::max<uint32_t>(number, 1);
}

absl::Status CheckEntryId(const EntryId& id) {
  if (static_cast<size_t>(id.kind) >= kEntryKinds) return absl::InvalidArgumentError("unknown entry kind");
  if (id.kind == EntryKind::kUses) return absl::InvalidArgumentError("uses belong to the catalogue");
  if (id.key.empty() || id.key.size() > kEntryKeyBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(EntryKindName(id.kind), " key of ", id.key.size(), " bytes, 1 to ", kEntryKeyBytesMax));
  }
  return absl::OkStatus();
}

absl::Status CheckBatch(absl::Span<const Entry> batch) {
  if (batch.size() > kBatchEntriesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch of ", batch.size(), " entries, limit ", kBatchEntriesMax));
  }
  for (const Entry& entry : batch) {
    absl::Status status = CheckEntryId(entry.id);
    if (!status.ok()) return status;
    if (entry.value == nullptr) return absl::InvalidArgumentError("entry without a value");
    if (entry.value->size() > kEntryValueBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(EntryKindName(entry.id.kind), " value of ",
                                                     entry.value->size(), " bytes, limit ",
                                                     kEntryValueBytesMax));
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln
