#include "cache/budget/evicting_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "cache/checks/references.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/thread_priority.h"

namespace kiln {
namespace {

constexpr size_t kPage = 512;           // entries of the catalogue that are looked at together
constexpr size_t kTakenTogether = 512;  // entries, and what goes with the last root
constexpr uint64_t kUnreadMost = 16;    // one manifest in so many, and one more
constexpr absl::Duration kBetweenLooks = absl::Hours(1);
constexpr uint64_t kExpiredTogether = 1000;  // roots; or a sixteenth of all entries, in one sweep
constexpr int kNiceness = 10;

uint64_t Tenths(uint64_t whole, uint64_t tenths) { return whole / 10 * tenths; }

std::vector<EntryId> IdsOf(absl::Span<const Entry> batch) {
  std::vector<EntryId> ids;
  ids.reserve(batch.size());
  for (const Entry& entry : batch) ids.push_back(entry.id);
  return ids;
}

// What the batch's manifests name and the batch does not hold.
std::vector<EntryId> NamedElsewhere(absl::Span<const Entry> batch) {
  absl::flat_hash_set<absl::string_view> own;
  for (const Entry& entry : batch) {
    if (entry.id.kind == EntryKind::kObject) own.insert(entry.id.key);
  }
  std::vector<EntryId> references;
  for (const Entry& entry : batch) {
    if (entry.id.kind != EntryKind::kManifest) continue;
    absl::StatusOr<References> named = ReferencesOf(entry.id.kind, *entry.value);
    if (!named.ok()) continue;  // whoever reads it will say so
    for (EntryId& object : named->objects) {
      if (!own.contains(object.key)) references.push_back(std::move(object));
    }
  }
  return references;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EvictingStore>> EvictingStore::Create(std::unique_ptr<ArtifactStore> base,
                                                                     Catalog* catalog,
                                                                     EvictingOptions options) {
  std::unique_ptr<EvictingStore> store(new EvictingStore(std::move(base), catalog, std::move(options)));
  KILN_ASSIGN_OR_RETURN(store->thread_, StartThread([made = store.get()] { made->Run(); }));
  return store;
}

EvictingStore::EvictingStore(std::unique_ptr<ArtifactStore> base, Catalog* catalog, EvictingOptions options)
    : base_(std::move(base)),
      catalog_(catalog),
      options_(std::move(options)),
      holds_(options_.grace_seconds, options_.now_unix_seconds),
      sweep_when_{Tenths(options_.budget_bytes, 9)} {}

EvictingStore::~EvictingStore() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

// ---- Callers --------------------------------------------------------------------------------

absl::Status EvictingStore::Put(absl::Span<const Entry> batch) {
  KILN_RETURN_IF_ERROR(CheckBatch(batch));
  uint64_t bytes = 0;
  for (const Entry& entry : batch) bytes += entry.value->size() + entry.id.key.size();
  if (bytes > options_.budget_bytes / 2) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an artifact of ", bytes, " bytes in a store of ", options_.budget_bytes, " bytes"));
  }
  KILN_RETURN_IF_ERROR(CheckRoom());
  const std::vector<EntryId> ids = IdsOf(batch);
  const Holds::Hold own = holds_.Keep(ids);
  if (own.late()) absl::MutexLock until_it_has_gone(&taking_out_);
  // Held, and then looked at: what is there now stays until the manifest has been written.
  const std::vector<EntryId> references = NamedElsewhere(batch);
  const Holds::Hold named = holds_.Keep(references);
  if (named.late()) return absl::AbortedError("an object that a manifest names is being evicted");
  KILN_RETURN_IF_ERROR(CheckPresent(references));
  KILN_RETURN_IF_ERROR(base_->Put(batch));
  // Held, they can't have been evicted; but a damaged database may have been set aside for this write.
  KILN_RETURN_IF_ERROR(CheckPresent(references));
  holds_.Written(ids);
  holds_.Written(references);
  const CatalogTotals totals = catalog_->Totals();
  const EvictionLimits limits = Limits(totals);
  if (totals.bytes_on_disk > sweep_when_.from_bytes || limits.live_entries > options_.entries_max) {
    absl::MutexLock lock(&mutex_);
    wanted_ = true;
  }
  return absl::OkStatus();
}

absl::Status EvictingStore::CheckPresent(absl::Span<const EntryId> references) {
  KILN_ASSIGN_OR_RETURN(const std::vector<EntryId> missing, base_->FindMissing(references));
  if (missing.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("a manifest names ", missing.size(), " objects that are gone"));
}

bool EvictingStore::Refuses(uint64_t bytes_on_disk) const {
  return bytes_on_disk > Tenths(options_.budget_bytes, 11);
}

absl::Status EvictingStore::CheckRoom() {
  const uint64_t bytes = BytesOnDisk();
  if (!Refuses(bytes)) return absl::OkStatus();
  if (bytes > sweep_when_.from_bytes || options_.now_unix_seconds() >= sweep_when_.again_at) {
    absl::MutexLock lock(&mutex_);
    wanted_ = true;
  }
  return absl::ResourceExhaustedError("the store is above its budget and is making room");
}

absl::StatusOr<std::vector<EntryId>> EvictingStore::FindMissing(absl::Span<const EntryId> ids) {
  // Touched first: whatever is there after that stays.
  const std::vector<EntryId> going = holds_.Touch(ids);
  KILN_ASSIGN_OR_RETURN(std::vector<EntryId> missing, base_->FindMissing(ids));
  if (going.empty()) return missing;
  absl::flat_hash_set<EntryId> gone(missing.begin(), missing.end());
  gone.insert(going.begin(), going.end());
  missing.clear();
  for (const EntryId& id : ids) {
    if (gone.contains(id)) missing.push_back(id);
  }
  return missing;
}

void EvictingStore::AddListener(Listener listener) {
  absl::MutexLock lock(&mutex_);
  listeners_.push_back(std::move(listener));
}

absl::Status EvictingStore::last_sweep() const {
  absl::MutexLock lock(&mutex_);
  return last_sweep_;
}

// ---- The sweep ------------------------------------------------------------------------------

void EvictingStore::Run() {
  LowerThreadPriority(kNiceness);
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(this, &EvictingStore::SweepWanted), kBetweenLooks);
      if (closing_) return;
      wanted_ = false;
    }
    // The result is kept for statistics; the next Put above the budget asks again.
    Sweep().IgnoreError();
  }
}

EvictionLimits EvictingStore::Limits(const CatalogTotals& totals) const {
  EvictionLimits limits;
  limits.live_bytes = std::accumulate(std::begin(totals.bytes), std::end(totals.bytes), uint64_t{0});
  limits.live_entries = std::accumulate(std::begin(totals.entries), std::end(totals.entries), uint64_t{0});
  limits.now_unix_seconds = options_.now_unix_seconds();
  limits.keep_if_used_after = limits.now_unix_seconds - options_.grace_seconds;
  limits.compiler = compiler_;
  if (options_.unused_seconds_max > 0) {
    limits.expired_if_used_before = limits.now_unix_seconds - options_.unused_seconds_max;
    // The clock of a machine that has just started may be years ahead.
    limits.expired_max = std::max(kExpiredTogether, limits.live_entries / 16);
  }
  return limits;
}

absl::Status EvictingStore::Sweep() {
  absl::MutexLock lock(&sweeping_);
  const CatalogTotals totals = catalog_->Totals();
  EvictionLimits limits = Limits(totals);
  const bool bytes = totals.bytes_on_disk > Tenths(options_.budget_bytes, 9);
  const bool entries = limits.live_entries > options_.entries_max;
  if (Refuses(totals.bytes_on_disk)) {
    limits.keep_if_used_after = limits.now_unix_seconds - options_.pressed_grace_seconds;
  }
  limits.keep_roots_if_used_after = limits.keep_if_used_after;
  if (bytes) limits.live_bytes_wanted = Tenths(options_.budget_bytes, 7);
  if (entries) limits.live_entries_wanted = Tenths(options_.entries_max, 9);
  absl::Status status;
  if (bytes || entries || AnyExpired(limits.expired_if_used_before)) {
    status = Evict(limits);
    if (status.ok()) status = catalog_->Reclaim(&closing_);
  }
  sweep_when_.from_bytes =
      std::max(Tenths(options_.budget_bytes, 9), BytesOnDisk() + options_.budget_bytes / 50);
  sweep_when_.again_at = options_.now_unix_seconds() + options_.pressed_grace_seconds;
  absl::MutexLock state_lock(&mutex_);
  last_sweep_ = status;
  return status;
}

// Hits go on meanwhile, and before it.
absl::Status EvictingStore::EvictTo(uint64_t live_bytes) {
  absl::Status status;
  KILN_ASSIGN_OR_RETURN(std::thread thread, StartThread([&] {
                          LowerThreadPriority(kNiceness);
                          absl::MutexLock lock(&sweeping_);
                          EvictionLimits limits = Limits(catalog_->Totals());
                          limits.live_bytes_wanted = live_bytes;
                          status = Evict(limits);
                          if (status.ok()) status = catalog_->Reclaim(&closing_);
                        }));
  thread.join();
  return status;
}

absl::Status EvictingStore::Each(EntryKind kind,
                                 const std::function<absl::Status(CatalogEntry)>& visit) const {
  std::string after;
  for (;;) {
    if (closing_) return absl::CancelledError("the store closes");
    KILN_ASSIGN_OR_RETURN(std::vector<CatalogEntry> page, catalog_->Scan(kind, "", kPage, after));
    if (page.empty()) return absl::OkStatus();
    after = page.back().id.key;
    for (CatalogEntry& entry : page) KILN_RETURN_IF_ERROR(visit(std::move(entry)));
  }
}

bool EvictingStore::AnyExpired(int64_t used_before) const {
  if (used_before <= 0) return false;
  for (EntryKind kind : {EntryKind::kManifest, EntryKind::kFailure, EntryKind::kTuning}) {
    const absl::Status found = Each(kind, [used_before](const CatalogEntry& entry) {
      const bool expired = !entry.pinned && entry.last_used_unix_seconds < used_before;
      return expired ? absl::AlreadyExistsError("an expired entry") : absl::OkStatus();
    });
    if (absl::IsAlreadyExists(found)) return true;
  }
  return false;
}

absl::Status EvictingStore::Gather(EvictionPlan* plan) {
  uint64_t manifests = 0, unread = 0;
  absl::Status why;
  KILN_RETURN_IF_ERROR(Each(EntryKind::kManifest, [&](CatalogEntry entry) {
    ++manifests;
    absl::StatusOr<EntryValue> value =
        options_.read_manifest ? options_.read_manifest(entry.id) : base_->Get(entry.id);
    // Damaged and taken out by this very read, or deleted since.
    if (absl::IsNotFound(value.status())) return absl::OkStatus();
    if (!value.ok()) {
      // One bad block must not keep the store from making room for ever.
      ++unread;
      why = value.status();
      entry.pinned = true;
      plan->AddManifest(std::move(entry), References());
      return absl::OkStatus();
    }
    absl::StatusOr<References> references = ReferencesOf(EntryKind::kManifest, **value);
    if (references.ok()) {
      plan->AddManifest(std::move(entry), *references);
    } else {
      plan->AddDamagedManifest(std::move(entry));
    }
    return absl::OkStatus();
  }));
  counts_.unread.store(unread, std::memory_order_relaxed);
  if (unread > 1 + manifests / kUnreadMost) return why;
  const auto add = [plan](void (EvictionPlan::*method)(CatalogEntry)) {
    return [plan, method](CatalogEntry entry) {
      (plan->*method)(std::move(entry));
      return absl::OkStatus();
    };
  };
  KILN_RETURN_IF_ERROR(Each(EntryKind::kFailure, add(&EvictionPlan::AddRoot)));
  KILN_RETURN_IF_ERROR(Each(EntryKind::kTuning, add(&EvictionPlan::AddRoot)));
  KILN_RETURN_IF_ERROR(Each(EntryKind::kObject, add(&EvictionPlan::AddNamed)));
  KILN_RETURN_IF_ERROR(Each(EntryKind::kKernel, add(&EvictionPlan::AddNamed)));
  return Each(EntryKind::kMeta, add(&EvictionPlan::AddMeta));
}

absl::Status EvictingStore::Evict(const EvictionLimits& limits) {
  holds_.BeginSweep();
  const auto evict = [&]() -> absl::Status {
    EvictionPlan plan;
    KILN_RETURN_IF_ERROR(Gather(&plan));
    plan.Begin(limits);
    std::vector<EntryId> unnamed = plan.TakeUnnamed();
    for (size_t at = 0; at < unnamed.size(); at += kTakenTogether) {
      absl::MutexLock lock(&taking_out_);
      std::vector<EntryId> claimed;
      for (size_t i = at; i < std::min(unnamed.size(), at + kTakenTogether); ++i) {
        if (holds_.Claim(unnamed[i], Holds::Standing::kNamed)) claimed.push_back(unnamed[i]);
      }
      KILN_RETURN_IF_ERROR(DeleteClaimed(claimed));
    }
    for (;;) {
      if (closing_) return absl::CancelledError("the store closes");
      KILN_ASSIGN_OR_RETURN(const bool more, EvictSome(&plan));
      if (!more) return absl::OkStatus();
    }
  };
  absl::Status status = evict();
  holds_.EndSweep();
  return status;
}

absl::StatusOr<bool> EvictingStore::EvictSome(EvictionPlan* plan) {
  absl::MutexLock lock(&taking_out_);
  std::vector<EntryId> claimed;
  const CatalogEntry* root = plan->Next();
  for (; root != nullptr && claimed.size() < kTakenTogether; root = plan->Next()) {
    const EntryId id = root->id;
    if (!holds_.Claim(id, Holds::Standing::kRoot)) {
      plan->Skip();
      continue;
    }
    // Claimed, and then looked at: who pins it later holds it first, and is told that it is going.
    const absl::StatusOr<CatalogEntry> now = catalog_->Find(id);
    if (now.ok() && (now->pinned || now->hits != root->hits ||
                     now->last_used_unix_seconds != root->last_used_unix_seconds)) {
      holds_.Release({id});
      plan->Skip();
      continue;
    }
    for (EntryId& going : plan->Take()) {
      if (going == id || holds_.Claim(going, Holds::Standing::kNamed)) claimed.push_back(std::move(going));
    }
  }
  KILN_RETURN_IF_ERROR(DeleteClaimed(claimed));
  return root != nullptr;
}

absl::Status EvictingStore::DeleteClaimed(absl::Span<const EntryId> ids) {
  if (ids.empty()) return absl::OkStatus();
  absl::Status deleted = base_->Delete(ids);
  if (deleted.ok()) {
    counts_.evicted.fetch_add(ids.size(), std::memory_order_relaxed);
    std::vector<Listener> listeners;
    {
      absl::MutexLock lock(&mutex_);
      listeners = listeners_;
    }
    for (const Listener& listener : listeners) listener(ids);
  }
  holds_.Release(ids);
  return deleted;
}

}  // namespace kiln
