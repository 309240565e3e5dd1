#include "server/flight/stored_keys.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/record.pb.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr absl::Duration kQuarantine = absl::Hours(24);

KnownVariant VariantOf(const v1::SignedManifest& signed_manifest, const v1::Manifest& manifest) {
  KnownVariant variant;
  variant.entry = {EntryKind::kManifest, ManifestEntryKey(manifest.compile_key(), manifest.variant_id())};
  variant.variant_id = manifest.variant_id();
  variant.guards = manifest.guards();
  variant.reply = std::make_shared<const std::string>(HitReply(signed_manifest));
  variant.waits = !manifest.tuning().waits_for().empty();
  if (variant.waits) variant.measurements = manifest.tuning().measurements_size();
  return variant;
}

void SortVariants(KnownKey* known) {
  std::sort(known->variants.begin(), known->variants.end(), [](const KnownVariant& a, const KnownVariant& b) {
    return std::tie(a.waits, b.measurements, a.variant_id) < std::tie(b.waits, a.measurements, b.variant_id);
  });
}

}  // namespace

// ---- Reading ---------------------------------------------------------------------------------

KnownKeyPtr StoredKeys::Load(const std::string& ns, const std::string& compile_key, HitIndex::Keep keep) {
  if (KnownKeyPtr known = index_->Find(compile_key); known != nullptr) return known;
  return index_->Load(compile_key, [&] { return Read(ns, compile_key); }, keep);
}

KnownKeyPtr StoredKeys::LoadReadable(const std::string& ns, const std::string& compile_key,
                                     const std::string& request_key) {
  if (readable_ == nullptr || readable_->Of(ns).empty()) return Load(ns, compile_key);
  const std::vector<std::string>& namespaces = readable_->Of(ns);
  std::vector<KnownKeyPtr> others(namespaces.size());
  // From the last to the first: memory keeps that one is empty where another stands in for it.
  HitIndex::Keep keep = HitIndex::Keep::kWithVariants;
  for (size_t i = namespaces.size(); i-- > 0;) {
    others[i] = Load(namespaces[i], readable_->KeyOf(namespaces[i], request_key), keep);
    if (!others[i]->variants.empty()) keep = HitIndex::Keep::kAll;
  }
  const KnownKeyPtr own = Load(ns, compile_key, keep);
  if (keep == HitIndex::Keep::kWithVariants) return own;
  auto all = std::make_shared<KnownKey>(*own);
  for (const KnownKeyPtr& other : others) {
    all->variants.insert(all->variants.end(), other->variants.begin(), other->variants.end());
  }
  return all;
}

std::optional<KnownVariant> StoredKeys::FindReadable(const std::string& ns, const std::string& request_key,
                                                     const v1::Hints& hints, Outdated outdated) {
  if (readable_ == nullptr) return std::nullopt;
  for (const std::string& other : readable_->Of(ns)) {
    const KnownKeyPtr known = index_->Find(readable_->KeyOf(other, request_key));
    if (known == nullptr) return std::nullopt;
    if (const KnownVariant* variant = ChooseVariant(*known, hints, outdated); variant != nullptr)
      return *variant;
  }
  return std::nullopt;
}

bool StoredKeys::IsAbsent(const std::string& ns, const std::string& compile_key) const {
  if (readable_ != nullptr && !readable_->Of(ns).empty()) return false;
  if (refusals_in_memory_.load(std::memory_order_relaxed)) return false;
  {
    absl::MutexLock lock(&mutex_);
    if (!announced_.empty()) return false;
  }
  const Catalog& catalog = store_->catalog();
  const auto manifests = catalog.Scan(EntryKind::kManifest, compile_key, /*limit=*/1, /*after=*/"");
  return manifests.ok() && manifests->empty() &&
         absl::IsNotFound(catalog.Find({EntryKind::kFailure, compile_key}).status());
}

KnownKeyPtr StoredKeys::Read(const std::string& ns, const std::string& compile_key) {
  auto known = std::make_shared<KnownKey>();
  absl::StatusOr<std::vector<CatalogEntry>> stored =
      store_->catalog().Scan(EntryKind::kManifest, compile_key);
  if (!stored.ok()) {
    spdlog::warn("list variants: {}", stored.status().ToString());
    return known;
  }
  for (const CatalogEntry& entry : *stored) {
    absl::StatusOr<KnownVariant> variant = ReadVariant(ns, entry);
    if (variant.ok()) {
      known->variants.push_back(*std::move(variant));
    } else if (!absl::IsNotFound(variant.status())) {
      spdlog::warn("read manifest: {}", variant.status().ToString());
    }
  }
  SortVariants(known.get());
  ReadRefusal(ns, compile_key, known.get());
  // What is not compiled any more goes on as it is.
  if (!RefusalOf(*known, clock_->WallNow()).ok()) {
    for (KnownVariant& variant : known->variants) variant.outdated = false;
  }
  return known;
}

absl::StatusOr<KnownVariant> StoredKeys::ReadVariant(const std::string& ns, const CatalogEntry& entry) {
  KILN_ASSIGN_OR_RETURN(EntryValue value, store_->inspection().Get(entry.id));
  v1::SignedManifest signed_manifest;
  v1::Manifest manifest;
  KILN_RETURN_IF_ERROR(ParseProto(*value, "manifest", &signed_manifest));
  if (signed_manifest.namespace_() != ns) return absl::NotFoundError("it is another namespace's");
  KILN_RETURN_IF_ERROR(ParseProto(signed_manifest.manifest(), "manifest", &manifest));
  KnownVariant variant = VariantOf(signed_manifest, manifest);
  if (variant.entry.key != entry.id.key)
    return absl::DataLossError("a manifest that is not what its key says");
  variant.rebuild_ms = entry.rebuild_ms;
  variant.durable = true;  // the catalogue lists the disk
  if (variant.waits && waiting_ != nullptr)
    variant.outdated = waiting_->IsOutdated(ns, manifest.compile_key(), variant.variant_id);
  return variant;
}

void StoredKeys::ReadRefusal(const std::string& ns, const std::string& compile_key, KnownKey* known) {
  const absl::StatusOr<EntryValue> stored = store_->artifacts().Get({EntryKind::kFailure, compile_key});
  if (!stored.ok()) return;
  const absl::StatusOr<std::string> value = OpenFor(ns, **stored);
  if (absl::IsNotFound(value.status())) return;
  v1::FailureRecord record;
  if (!value.ok() || !ParseProto(*value, "failure", &record).ok() || record.code() <= 0 ||
      record.code() > 16) {
    spdlog::warn("a stored failure does not parse");
    return;
  }
  known->refusal = absl::Status(static_cast<absl::StatusCode>(record.code()), record.reason());
  if (!record.quarantine()) return;
  known->refused_until = absl::FromUnixSeconds(record.created_unix_seconds()) + kQuarantine;
}

absl::StatusOr<EmittedKernel> StoredKeys::ReadKernel(const std::string& ns, const std::string& kernel_key,
                                                     std::vector<Holds::Hold>* holds) {
  KILN_ASSIGN_OR_RETURN(EntryValue stored, store_->artifacts().Get({EntryKind::kKernel, kernel_key}));
  KILN_ASSIGN_OR_RETURN(const std::string value, OpenFor(ns, *stored));
  EmittedKernel kernel;
  KILN_RETURN_IF_ERROR(ParseProto(value, "kernel record", &kernel.record));
  if (kernel.record.kernel_key() != kernel_key) return absl::DataLossError("a kernel record of another key");
  std::vector<EntryId> objects;
  for (const v1::ObjectRef* object : {&kernel.record.object(), &kernel.record.loop_ir()}) {
    objects.push_back({EntryKind::kObject, object->digest()});
  }
  Holds::Hold hold = store_->Keep(objects);
  // Memory may hold what the disk refused, has lost, or is about to evict: that goes along with the new
  // artifact.
  for (const EntryId& id : objects) {
    if (!hold.late() && store_->catalog().Find(id).ok()) continue;
    KILN_ASSIGN_OR_RETURN(kernel.objects[id.key], store_->artifacts().Get(id));
  }
  holds->push_back(std::move(hold));
  return kernel;
}

// ---- Writing ---------------------------------------------------------------------------------

void StoredKeys::Announce(const std::shared_ptr<const Artifact>& artifact) {
  absl::MutexLock lock(&mutex_);
  announced_[ManifestEntryKey(artifact->compile_key, artifact->variant_id)] = artifact;
}

absl::Status StoredKeys::Put(const std::shared_ptr<const Artifact>& artifact) {
  if (waiting_ != nullptr) waiting_->Made(artifact->compile_key, artifact->variant_id);
  const KnownKeyPtr before = Load(artifact->ns, artifact->compile_key);
  MakeRoom(*before, artifact->variant_id);
  const absl::Status put = store_->artifacts().Put(artifact->entries);
  if (!put.ok()) spdlog::warn("store an artifact: {}", put.ToString());
  index_->Erase(artifact->compile_key);
  const KnownKeyPtr after = index_->Load(artifact->compile_key, [&] {
    const KnownKeyPtr read = Read(artifact->ns, artifact->compile_key);
    const auto same = [&](const KnownVariant& variant) { return variant.variant_id == artifact->variant_id; };
    // What names objects that have gone is kept nowhere.
    if (absl::IsAborted(put) || std::any_of(read->variants.begin(), read->variants.end(), same)) return read;
    // The disk has not got it; memory has.
    auto known = std::make_shared<KnownKey>(*read);
    for (const KnownVariant& variant : before->variants) {
      if (!variant.durable && !same(variant)) known->variants.push_back(variant);
    }
    v1::Manifest manifest;
    manifest.set_compile_key(artifact->compile_key);
    manifest.set_variant_id(artifact->variant_id);
    *manifest.mutable_guards() = artifact->guards;
    known->variants.push_back(VariantOf(artifact->signed_manifest, manifest));
    for (const Entry& entry : artifact->entries) {
      if (entry.id.kind == EntryKind::kManifest) known->variants.back().rebuild_ms = entry.rebuild_ms;
    }
    SortVariants(known.get());
    return KnownKeyPtr(std::move(known));
  });
  absl::MutexLock lock(&mutex_);
  announced_.erase(ManifestEntryKey(artifact->compile_key, artifact->variant_id));
  return put;
}

void StoredKeys::MakeRoom(const KnownKey& known, const std::string& new_variant) {
  std::vector<std::pair<int64_t, EntryId>> by_use;
  for (const KnownVariant& variant : known.variants) {
    if (variant.variant_id == new_variant) continue;
    const absl::StatusOr<CatalogEntry> entry = store_->catalog().Find(variant.entry);
    if (entry.ok() && entry->pinned) continue;
    const int64_t used =
        entry.ok() ? std::max(entry->created_unix_seconds, entry->last_used_unix_seconds) : int64_t{0};
    by_use.emplace_back(used, variant.entry);
  }
  if (by_use.size() < kVariantsPerKeyMax) return;
  std::sort(by_use.begin(), by_use.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second.key) < std::tie(b.first, b.second.key);
  });
  std::vector<EntryId> doomed;
  for (size_t i = 0; i + kVariantsPerKeyMax <= by_use.size(); ++i) doomed.push_back(by_use[i].second);
  if (absl::Status status = store_->artifacts().Delete(doomed); !status.ok()) {
    spdlog::warn("remove the oldest variant: {}", status.ToString());
  }
}

void StoredKeys::PutRefusal(const FlightRequest& request, const std::string& compiler_fingerprint,
                            const absl::Status& status, bool quarantine) {
  v1::FailureRecord record;
  record.set_code(static_cast<int>(status.code()));
  record.set_reason(std::string(status.message()));
  record.set_created_unix_seconds(absl::ToUnixSeconds(clock_->WallNow()));
  record.set_quarantine(quarantine);
  v1::RequestRecord facts;
  facts.set_namespace_(request.ns);
  facts.set_request_key(request.request_key);
  *facts.mutable_sections() = request.sections;
  *facts.mutable_notes() = request.notes;
  facts.set_compiler_fingerprint(compiler_fingerprint);
  std::vector<Entry> batch;
  batch.push_back(signatures_->SignEntry({EntryKind::kFailure, request.compile_key}, request.ns,
                                         SerializeDeterministic(record)));
  batch.push_back({RequestRecordId(request.compile_key), MakeEntryValue(SerializeDeterministic(facts))});
  if (absl::Status put = store_->artifacts().Put(batch); !put.ok()) {
    spdlog::warn("store a refusal: {}", put.ToString());
  }
  // What the disk does not take is kept by a tier above it, which the catalogue does not list.
  if (!store_->catalog().Find({EntryKind::kFailure, request.compile_key}).ok()) refusals_in_memory_ = true;
  if (tier_ != nullptr) tier_->OfferRefusal(request.ns, batch);
  index_->Erase(request.compile_key);
}

void StoredKeys::Forget(const std::string& compile_key) {
  if (compile_key.empty()) {
    index_->Clear();
  } else {
    index_->Erase(compile_key);
  }
}

// ---- Objects ---------------------------------------------------------------------------------

std::shared_ptr<const Artifact> StoredKeys::FreshOf(const v1::FetchObjectsRequest& request) {
  absl::MutexLock lock(&mutex_);
  const auto found = announced_.find(ManifestEntryKey(request.compile_key(), request.variant_id()));
  return found == announced_.end() ? nullptr : found->second;
}

absl::StatusOr<v1::Manifest> StoredKeys::ManifestOf(const v1::FetchObjectsRequest& request) {
  v1::SignedManifest signed_manifest;
  if (const std::shared_ptr<const Artifact> fresh = FreshOf(request); fresh != nullptr) {
    signed_manifest = fresh->signed_manifest;
  } else {
    const std::string key = ManifestEntryKey(request.compile_key(), request.variant_id());
    const absl::StatusOr<EntryValue> value = store_->inspection().Get({EntryKind::kManifest, key});
    if (!value.ok()) {
      // Where the index names what has gone since, the next look-up reads the store.
      const KnownKeyPtr named = index_->Find(request.compile_key());
      if (named != nullptr && VariantById(*named, request.variant_id()) != nullptr)
        index_->Erase(request.compile_key());
      return value.status();
    }
    KILN_RETURN_IF_ERROR(ParseProto(**value, "manifest", &signed_manifest));
  }
  v1::Manifest manifest;
  KILN_RETURN_IF_ERROR(ParseProto(signed_manifest.manifest(), "manifest", &manifest));
  // The same answer as for a variant that never was: a guess learns nothing of other namespaces.
  const bool may_read = readable_ == nullptr
                            ? manifest.namespace_() == request.namespace_()
                            : readable_->MayRead(request.namespace_(), manifest.namespace_());
  if (!may_read) return absl::NotFoundError("no such entry");
  return manifest;
}

absl::StatusOr<std::vector<uint64_t>> StoredKeys::CheckFetch(const v1::FetchObjectsRequest& request) {
  KILN_ASSIGN_OR_RETURN(const v1::Manifest manifest, ManifestOf(request));
  absl::flat_hash_map<std::string, uint64_t> named;
  for (const v1::ObjectRef* object : ObjectsOf(manifest)) named[object->digest()] = object->packed_size();
  std::vector<uint64_t> packed_bytes;
  packed_bytes.reserve(request.digests_size());
  for (const std::string& digest : request.digests()) {
    const auto found = named.find(digest);
    if (found == named.end()) return absl::InvalidArgumentError("a digest that the variant does not name");
    packed_bytes.push_back(found->second);
  }
  return packed_bytes;
}

absl::StatusOr<EntryValue> StoredKeys::ReadObject(const v1::FetchObjectsRequest& request,
                                                  const std::string& digest) {
  // The object alone: the others need not stay in memory for who is slow to take this one.
  if (const std::shared_ptr<const Artifact> fresh = FreshOf(request); fresh != nullptr) {
    if (auto found = fresh->objects.find(digest); found != fresh->objects.end()) return found->second;
  }
  absl::StatusOr<EntryValue> stored = store_->artifacts().Get({EntryKind::kObject, digest});
  if (!stored.ok()) index_->Erase(request.compile_key());
  return stored;
}

}  // namespace kiln
