#include "cache/engine/memory_store.h"

#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr uint64_t kEntryOverheadBytes = 192;  // list node, hash slot, control block

uint64_t CostOf(const Entry& entry) {
  return entry.value->size() + 2 * entry.id.key.size() + kEntryOverheadBytes;
}

}  // namespace

absl::StatusOr<EntryValue> MemoryStore::Get(const EntryId& id) {
  KILN_RETURN_IF_ERROR(CheckEntryId(id));
  absl::MutexLock lock(&mutex_);
  auto it = index_.find(id);
  if (it == index_.end()) return absl::NotFoundError("not in memory");
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->value;
}

absl::Status MemoryStore::Put(absl::Span<const Entry> batch) {
  KILN_RETURN_IF_ERROR(CheckBatch(batch));
  absl::MutexLock lock(&mutex_);
  for (const Entry& entry : batch) {
    EraseLocked(entry.id);
    uint64_t cost = CostOf(entry);
    if (cost > budget_bytes_) continue;
    while (bytes_ + cost > budget_bytes_) EraseLocked(EntryId(entries_.back().id));
    entries_.push_front(entry);
    index_[entry.id] = entries_.begin();
    bytes_ += cost;
  }
  return absl::OkStatus();
}

absl::Status MemoryStore::Delete(absl::Span<const EntryId> ids) {
  for (const EntryId& id : ids) KILN_RETURN_IF_ERROR(CheckEntryId(id));
  absl::MutexLock lock(&mutex_);
  for (const EntryId& id : ids) EraseLocked(id);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EntryId>> MemoryStore::FindMissing(absl::Span<const EntryId> ids) {
  for (const EntryId& id : ids) KILN_RETURN_IF_ERROR(CheckEntryId(id));
  absl::MutexLock lock(&mutex_);
  std::vector<EntryId> missing;
  for (const EntryId& id : ids) {
    if (!index_.contains(id)) missing.push_back(id);
  }
  return missing;
}

uint64_t MemoryStore::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

void MemoryStore::EraseLocked(const EntryId& id) {
  auto it = index_.find(id);
  if (it == index_.end()) return;
  List::iterator entry = it->second;
  bytes_ -= CostOf(*entry);
  index_.erase(it);
  entries_.erase(entry);
}

}  // namespace kiln
