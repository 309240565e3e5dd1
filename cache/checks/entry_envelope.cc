#include "cache/checks/entry_envelope.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr char kEnvelopeVersion = 1;

std::string HeaderFor(const EntryId& id, absl::string_view payload) {
  std::string header = {'K', 'E', kEnvelopeVersion, 0};
  header += Sha256Builder()
                .AddField("kiln-entry-1")
                .AddNumber(static_cast<uint64_t>(id.kind))
                .AddField(id.key)
                .AddField(payload)
                .Finish();
  return header;
}

absl::Status Damaged(const EntryId& id) {
  return absl::DataLossError(absl::StrCat("damaged ", EntryKindName(id.kind), " ", ToHex(id.key)));
}

}  // namespace

std::string SealEntry(const EntryId& id, absl::string_view payload) {
  std::string sealed = HeaderFor(id, payload);
  sealed.append(payload.data(), payload.size());
  return sealed;
}

absl::StatusOr<absl::string_view> OpenEntryUnchecked(absl::string_view sealed) {
  if (sealed.size() < kEnvelopeHeaderBytes) return absl::DataLossError("truncated entry");
  return sealed.substr(kEnvelopeHeaderBytes);
}

absl::StatusOr<absl::string_view> OpenEntry(const EntryId& id, absl::string_view sealed) {
  auto payload = OpenEntryUnchecked(sealed);
  if (!payload.ok()) return Damaged(id);
  if (sealed.substr(0, kEnvelopeHeaderBytes) != HeaderFor(id, *payload)) return Damaged(id);
  return payload;
}

}  // namespace kiln
