#include "cache/tiers/refused_writes.h"

namespace kiln {
namespace {

uint64_t BytesOf(const Entry& entry) { return entry.value->size() + entry.id.key.size(); }

}  // namespace

void RefusedWrites::Keep(absl::Span<const Entry> batch) {
  uint64_t bytes = 0;
  for (const Entry& entry : batch) bytes += BytesOf(entry);
  const MonotonicTime now = options_.now();
  const MonotonicTime until = now + absl::ToChronoNanoseconds(options_.kept);
  absl::MutexLock lock(&mutex_);
  for (const Entry& entry : batch) Erase(entry.id);
  if (bytes > options_.bytes_max) return;
  for (const Entry& entry : batch) {
    Erase(entry.id);  // the last of a batch wins
    index_[entry.id] = kept_.insert(kept_.end(), {entry, until});
    bytes_ += BytesOf(entry);
  }
  LetGo(now);
}

EntryValue RefusedWrites::Find(const EntryId& id) {
  absl::MutexLock lock(&mutex_);
  if (kept_.empty()) return nullptr;
  LetGo(options_.now());
  const auto it = index_.find(id);
  return it == index_.end() ? nullptr : it->second->entry.value;
}

void RefusedWrites::Forget(absl::Span<const EntryId> ids) {
  absl::MutexLock lock(&mutex_);
  for (const EntryId& id : ids) Erase(id);
}

void RefusedWrites::Erase(const EntryId& id) {
  const auto it = index_.find(id);
  if (it == index_.end()) return;
  const List::iterator kept = it->second;
  bytes_ -= BytesOf(kept->entry);
  index_.erase(it);
  kept_.erase(kept);
}

void RefusedWrites::LetGo(MonotonicTime now) {
  while (!kept_.empty() && (bytes_ > options_.bytes_max || kept_.front().until <= now)) {
    Erase(EntryId(kept_.front().entry.id));
  }
}

}  // namespace kiln
