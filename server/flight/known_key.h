// What is known of a CompileKey without compiling: its variants, or why it is refused. A snapshot: immutable,
// so whoever answers from it shares it and holds no lock.
//
// Threads: pure functions on immutable data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache/artifact_store.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

struct KnownVariant {
  EntryId entry;
  std::string variant_id;
  v1::Guards guards;
  // A serialized LookupReply, the hit. Shared with the replies that are being sent.
  std::shared_ptr<const std::string> reply;
  uint32_t rebuild_ms = 0;  // what making it took; 0: not known
  bool durable = false;     // on disk; what memory alone holds is answered, and not acknowledged
  // It lacks measurements that other daemons are to make. Outdated: they have been made, and who has not been
  // promised this variant has another made.
  bool waits = false;
  bool outdated = false;
  int measurements = 0;  // of one that waits
};

struct KnownKey {
  // Those that wait last, by how much has been measured, then by variant id: the first that fits and is not
  // outdated is the answer.
  std::vector<KnownVariant> variants;
  absl::Status refusal;                               // of whom no variant fits; OK: none
  absl::Time refused_until = absl::InfiniteFuture();  // by the wall's clock
};
// Shared by the index, the flight of the key and replies in flight.
using KnownKeyPtr = std::shared_ptr<const KnownKey>;

// The variant for a call of these sizes; nullptr where none fits. Points into `known`. `kTake`: one that is
// outdated, where no other fits, for whom nobody makes another.
enum class Outdated { kSkip, kTake };
const KnownVariant* ChooseVariant(const KnownKey& known, const v1::Hints& hints,
                                  Outdated outdated = Outdated::kSkip);

// What a call that no variant fits is told; OK: nothing, compile.
absl::Status RefusalOf(const KnownKey& known, absl::Time now);

// The hit for a manifest, serialized.
std::string HitReply(const v1::SignedManifest& manifest);

// The variant of this id; nullptr where there is none. Points into `known`.
const KnownVariant* VariantById(const KnownKey& known, const std::string& variant_id);

}  // namespace kiln
