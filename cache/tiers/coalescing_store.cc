#include "cache/tiers/coalescing_store.h"

namespace kiln {

absl::StatusOr<EntryValue> CoalescingStore::Get(const EntryId& id) {
  std::shared_ptr<Read> read;
  {
    absl::MutexLock lock(&mutex_);
    std::shared_ptr<Read>& slot = reads_[id];
    if (slot != nullptr) {
      read = slot;
      shared_.fetch_add(1, std::memory_order_relaxed);
      mutex_.Await(absl::Condition(&read->done));
      return read->result;
    }
    slot = std::make_shared<Read>();
    read = slot;
  }
  absl::StatusOr<EntryValue> result = base_->Get(id);
  absl::MutexLock lock(&mutex_);
  read->result = result;
  read->done = true;
  auto it = reads_.find(id);
  if (it != reads_.end() && it->second == read) reads_.erase(it);
  return result;
}

absl::Status CoalescingStore::Put(absl::Span<const Entry> batch) {
  absl::Status status = base_->Put(batch);
  absl::MutexLock lock(&mutex_);
  for (const Entry& entry : batch) Detach(entry.id);
  return status;
}

absl::Status CoalescingStore::Delete(absl::Span<const EntryId> ids) {
  absl::Status status = base_->Delete(ids);
  absl::MutexLock lock(&mutex_);
  for (const EntryId& id : ids) Detach(id);
  return status;
}

}  // namespace kiln
