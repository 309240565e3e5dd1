#include "cache/budget/evicting_store.h"

#include <numeric>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "cache/budget/eviction_plan.h"
#include "compiler/support/status_macros.h"

namespace kiln {

EvictingStore::EvictingStore(std::unique_ptr<ArtifactStore> base, Catalog* catalog, EvictingOptions options)
    : base_(std::move(base)), catalog_(catalog), options_(std::move(options)), thread_([this] { Run(); }) {}

EvictingStore::~EvictingStore() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  thread_.join();
}

absl::Status EvictingStore::Put(absl::Span<const Entry> batch) {
  KILN_RETURN_IF_ERROR(CheckBatch(batch));
  uint64_t bytes = 0;
  for (const Entry& entry : batch) bytes += entry.value->size() + entry.id.key.size();
  if (bytes > options_.budget_bytes / 2) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an artifact of ", bytes, " bytes in a store of ", options_.budget_bytes, " bytes"));
  }
  if (BytesOnDisk() > options_.budget_bytes / 4 * 5) KILN_RETURN_IF_ERROR(Sweep());
  {
    absl::ReaderMutexLock lock(&gate_);
    KILN_RETURN_IF_ERROR(base_->Put(batch));
  }
  if (BytesOnDisk() > options_.budget_bytes) {
    absl::MutexLock lock(&mutex_);
    wanted_ = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EntryId>> EvictingStore::FindMissing(absl::Span<const EntryId> ids) {
  // Recorded first: a sweep between the two would have to respect it.
  for (const EntryId& id : ids) catalog_->RecordUse(id);
  absl::ReaderMutexLock lock(&gate_);
  return base_->FindMissing(ids);
}

void EvictingStore::Run() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &EvictingStore::SweepWanted));
      if (closing_) return;
      wanted_ = false;
    }
    // The result is kept for statistics; the next Put above the budget asks again.
    Sweep().IgnoreError();
  }
}

absl::Status EvictingStore::last_sweep() const {
  absl::MutexLock lock(&mutex_);
  return last_sweep_;
}

absl::Status EvictingStore::Sweep() {
  absl::MutexLock lock(&sweeping_);
  if (BytesOnDisk() <= options_.budget_bytes) return absl::OkStatus();
  absl::Status status = Evict(options_.budget_bytes / 5 * 4);
  if (status.ok()) status = catalog_->Reclaim(&closing_);
  absl::MutexLock state_lock(&mutex_);
  last_sweep_ = status;
  return status;
}

absl::Status EvictingStore::Evict(uint64_t live_bytes_wanted) {
  absl::MutexLock lock(&gate_);
  EvictionInput input;
  CatalogTotals totals = catalog_->Totals();
  input.live_bytes = std::accumulate(std::begin(totals.bytes), std::end(totals.bytes), uint64_t{0});
  input.live_bytes_wanted = live_bytes_wanted;
  input.keep_if_used_after = options_.now_unix_seconds() - options_.grace_seconds;
  KILN_ASSIGN_OR_RETURN(std::vector<CatalogEntry> manifests, catalog_->Scan(EntryKind::kManifest, ""));
  for (CatalogEntry& entry : manifests) {
    absl::StatusOr<EntryValue> value = base_->Get(entry.id);
    if (absl::IsNotFound(value.status())) continue;  // damaged and taken out by this very read
    KILN_RETURN_IF_ERROR(value.status());
    absl::StatusOr<References> references = ReferencesOf(EntryKind::kManifest, **value);
    bool damaged = !references.ok();
    input.manifests.push_back({std::move(entry), damaged ? References() : *std::move(references), damaged});
  }
  KILN_ASSIGN_OR_RETURN(input.others, catalog_->Scan(EntryKind::kFailure, ""));
  KILN_ASSIGN_OR_RETURN(std::vector<CatalogEntry> tuning, catalog_->Scan(EntryKind::kTuning, ""));
  input.others.insert(input.others.end(), tuning.begin(), tuning.end());
  KILN_ASSIGN_OR_RETURN(input.objects, catalog_->Scan(EntryKind::kObject, ""));
  KILN_ASSIGN_OR_RETURN(input.kernels, catalog_->Scan(EntryKind::kKernel, ""));
  KILN_ASSIGN_OR_RETURN(input.meta, catalog_->Scan(EntryKind::kMeta, ""));
  for (const std::vector<EntryId>& group : PlanEviction(input)) {
    KILN_RETURN_IF_ERROR(base_->Delete(group));
    evicted_.fetch_add(group.size(), std::memory_order_relaxed);
    if (options_.on_evicted) options_.on_evicted(group);
  }
  return absl::OkStatus();
}

}  // namespace kiln
