#include "server/flight/tier_keys.h"

#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/record.pb.h"

namespace kiln {
namespace {

// What making it took, where it was made.
uint32_t RebuildMs(const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    v1::RequestRecord record;
    if (entry.id.kind == EntryKind::kMeta && ParseProto(*entry.value, "request record", &record).ok())
      return static_cast<uint32_t>(1e3 * (record.plan_seconds() + record.emit_seconds()));
  }
  return 0;
}

}  // namespace

absl::StatusOr<SharedTier::Found> TierKeys::LookUp(const Name& key, MonotonicTime deadline) {
  KILN_ASSIGN_OR_RETURN(SharedTier::Found found, tier_->LookUp(key.ns, key.compile_key, deadline));
  std::vector<EntryId> ids;
  for (const Entry& entry : found.entries) ids.push_back(entry.id);
  for (const v1::ObjectRef& object : found.objects) ids.push_back({EntryKind::kObject, object.digest()});
  KILN_ASSIGN_OR_RETURN(const std::vector<EntryId> missing, store_->artifacts().FindMissing(ids));
  const absl::flat_hash_set<EntryId> lacks(missing.begin(), missing.end());
  SharedTier::Found rest;
  bool news = false;
  for (Entry& entry : found.entries) {
    if (!lacks.contains(entry.id)) continue;
    news = news || entry.id.kind != EntryKind::kMeta;
    rest.entries.push_back(std::move(entry));
  }
  for (v1::ObjectRef& object : found.objects) {
    if (lacks.contains({EntryKind::kObject, object.digest()})) rest.objects.push_back(std::move(object));
  }
  // An object without its manifest is what this store has lost of one.
  if (!news && rest.objects.empty())
    return absl::NotFoundError("the shared tier has no more of the key than the store");
  return rest;
}

absl::Status TierKeys::Take(const std::string& ns, SharedTier::Found found) {
  const uint32_t rebuild_ms = RebuildMs(found.entries);
  for (Entry& entry : found.entries) {
    if (entry.id.kind == EntryKind::kManifest) entry.rebuild_ms = rebuild_ms;
  }
  absl::StatusOr<std::vector<Entry>> batch = tier_->Fetch(ns, found.objects);
  if (!batch.ok()) return TakeWhatIsWhole(ns, found, batch.status());
  std::move(found.entries.begin(), found.entries.end(), std::back_inserter(*batch));
  return store_->artifacts().Put(*batch);
}

// One variant that lacks an object takes no other with it.
absl::Status TierKeys::TakeWhatIsWhole(const std::string& ns, const SharedTier::Found& found,
                                       absl::Status lacking) {
  std::vector<Entry> batch;
  bool use = false;
  for (const Entry& entry : found.entries) {
    if (entry.id.kind == EntryKind::kManifest) {
      KILN_ASSIGN_OR_RETURN(const v1::Manifest manifest, ManifestIn(*entry.value));
      absl::StatusOr<std::vector<Entry>> objects = tier_->Fetch(ns, DistinctObjects(manifest));
      if (!objects.ok()) continue;
      std::move(objects->begin(), objects->end(), std::back_inserter(batch));
    }
    use = use || entry.id.kind != EntryKind::kMeta;
    batch.push_back(entry);
  }
  return use ? store_->artifacts().Put(batch) : lacking;
}

void TierKeys::Renew(const std::string& ns, const EntryId& manifest) {
  absl::StatusOr<EntryValue> value = store_->inspection().Get(manifest);
  if (!value.ok()) return;  // gone since, or damaged: no use to others either
  tier_->WriteArtifact(ns, {{manifest, *std::move(value)}},
                       [store = store_](const EntryId& id) { return store->inspection().Get(id); });
}

void TierKeys::Offer(const std::shared_ptr<const Artifact>& artifact, uint64_t claim) {
  // With the artifact its holds live on: what it names is not evicted meanwhile.
  tier_->WriteArtifact(
      artifact->ns, artifact->entries,
      [store = store_, artifact](const EntryId& id) { return store->inspection().Get(id); },
      [tier = tier_, claim] { tier->Release(claim); });
}

}  // namespace kiln
