#include "cache/shared/tier_value.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

std::string TierName(absl::string_view ns, absl::string_view key, absl::string_view suffix) {
  return absl::StrCat("kiln:1:", ns, ":{", ToHex(key), "}:", suffix);
}

std::string TierChunkName(absl::string_view ns, absl::string_view digest, uint64_t size, uint64_t index) {
  return TierName(ns, digest, absl::StrCat("o:", size, ":", index));
}

std::string TierChunkKey(absl::string_view digest, uint64_t size, uint64_t index) {
  return absl::StrCat(digest, ":", size, ":", index);
}

std::string SealTierValue(const SigningKey& signer, EntryKind kind, absl::string_view ns,
                          absl::string_view key, absl::string_view bytes) {
  v1::SignedEnvelope envelope;
  envelope.set_value(std::string(bytes));
  envelope.set_key_id(signer.id());
  envelope.set_signature(signer.Sign({EntryKindName(kind), ns, key, bytes}));
  return SerializeDeterministic(envelope);
}

absl::StatusOr<std::string> OpenTierValue(const TrustedKeys& trusted, EntryKind kind, absl::string_view ns,
                                          absl::string_view key, absl::string_view sealed) {
  v1::SignedEnvelope envelope;
  if (!ParseProto(sealed, "envelope", &envelope).ok()) return absl::DataLossError("it is no signed envelope");
  KILN_RETURN_IF_ERROR(trusted.Verify({EntryKindName(kind), ns, key, envelope.value()}, envelope.key_id(),
                                      envelope.signature()));
  return std::move(*envelope.mutable_value());
}

absl::StatusOr<std::string> OpenTierValueUnchecked(absl::string_view sealed) {
  v1::SignedEnvelope envelope;
  KILN_RETURN_IF_ERROR(ParseProto(sealed, "envelope", &envelope));
  return std::move(*envelope.mutable_value());
}

}  // namespace kiln
