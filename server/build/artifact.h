// From a worker's plan and the emitted objects to a manifest and the entries that go into the store.
//
// Nothing from a worker is believed unchecked: `CheckPlan` refuses a plan whose parts do not fit
// together (INTERNAL: a worker of this build wrote it). A Manifest holds no times, no places and nothing of
// the caller, so the same variant has the same bytes whenever, wherever and for whomever it is built.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/artifact_store.h"
#include "cache/holds.h"
#include "cache/signatures.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/worker.pb.h"

namespace kiln {

// One compiled variant with its objects. Immutable once built, so the flight, its waiters and
// FetchObjects share it while the store is still being written.
struct Artifact {
  std::string ns;
  std::string compile_key;
  std::string variant_id;
  v1::Guards guards;
  v1::SignedManifest signed_manifest;
  absl::flat_hash_map<std::string, EntryValue>
      objects;                     // packed, by digest; not those that were stored before
  std::vector<Entry> entries;      // the batch, manifest last
  std::vector<Holds::Hold> holds;  // of objects that the store had, until it has the manifest as well
};

absl::Status CheckPlan(const v1::PlanReply& plan);

// A name that a client can write below a directory of its choice and nowhere else.
bool IsPlainName(absl::string_view name);

// Objects and refs of one emitted kernel. INTERNAL for an emit reply that makes no sense.
struct EmittedKernel {
  v1::ManifestKernel record;  // key and refs
  absl::flat_hash_map<std::string, EntryValue> objects;
};
absl::StatusOr<EmittedKernel> PackKernel(const std::string& kernel_key, const std::string& kernel,
                                         const v1::EmitReply& reply);

struct ArtifactIngredients {
  const Signatures* signatures = nullptr;  // who signs; not null
  std::string ns;
  std::string compile_key;
  std::string request_key;
  v1::Target target;
  // By PlanReply.kernels; a kernel that the store had has no objects here.
  absl::Span<const EmittedKernel> kernels;
  std::string notes_record;            // serialized v1::RequestRecord
  uint32_t rebuild_ms = 0;             // of workers
  const v1::Tuning* tuning = nullptr;  // where max-autotune had something to measure
};
Artifact AssembleArtifact(const ArtifactIngredients& ingredients, v1::PlanReply plan);

}  // namespace kiln
