// What is known of a CompileKey without compiling: its variants, or why it is refused. A snapshot: immutable,
// so whoever answers from it shares it and holds no lock.
//
// Threads: pure functions on immutable data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

struct KnownVariant {
  std::string variant_id;
  v1::Guards guards;
  std::string reply;     // a serialized LookupReply: the hit
  bool durable = false;  // on disk; what memory alone holds is answered, and not acknowledged
};

struct KnownKey {
  std::vector<KnownVariant> variants;  // by variant id: the first that fits is the answer
  absl::Status refusal;                // not OK: stored instead of variants
};
// Shared by the index, the flight of the key and replies under way.
using KnownKeyPtr = std::shared_ptr<const KnownKey>;

// The variant for a call of these sizes; nullptr where none fits. Points into `known`.
const KnownVariant* ChooseVariant(const KnownKey& known, const v1::Hints& hints);

// The hit for a manifest, and back. INTERNAL for bytes that are no hit.
std::string HitReply(const v1::SignedManifest& manifest);

}  // namespace kiln
