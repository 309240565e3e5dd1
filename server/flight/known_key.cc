#include "server/flight/known_key.h"

#include <algorithm>

#include "compiler/graph/guards.h"

namespace kiln {

const KnownVariant* ChooseVariant(const KnownKey& known, const v1::Hints& hints, Outdated outdated) {
  const KnownVariant* taken = nullptr;
  for (const KnownVariant& variant : known.variants) {
    if (variant.outdated && (outdated == Outdated::kSkip || taken != nullptr)) continue;
    if (!GuardsHold(variant.guards, hints)) continue;
    if (!variant.outdated) return &variant;
    taken = &variant;
  }
  return taken;
}

absl::Status RefusalOf(const KnownKey& known, absl::Time now) {
  return now < known.refused_until ? known.refusal : absl::OkStatus();
}

std::string HitReply(const v1::SignedManifest& manifest) {
  v1::LookupReply reply;
  *reply.mutable_hit()->mutable_manifest() = manifest;
  return reply.SerializeAsString();
}

const KnownVariant* VariantById(const KnownKey& known, const std::string& variant_id) {
  const auto found =
      std::find_if(known.variants.begin(), known.variants.end(),
                   [&](const KnownVariant& variant) { return variant.variant_id == variant_id; });
  return found == known.variants.end() ? nullptr : &*found;
}

}  // namespace kiln
