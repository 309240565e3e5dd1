// An engine that keeps values in memory, least recently used first out. `Put` is as durable as the
// process. A value bigger than the whole budget is not kept. Thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "cache/artifact_store.h"

namespace kiln {

class MemoryStore : public ArtifactStore {
 public:
  explicit MemoryStore(uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  absl::StatusOr<EntryValue> Get(const EntryId& id) override;
  absl::Status Put(absl::Span<const Entry> batch) override;
  absl::Status Delete(absl::Span<const EntryId> ids) override;
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override;

  uint64_t bytes() const;  // values, keys and a constant an entry; never above the budget

 private:
  using List = std::list<Entry>;  // most recently used first

  void EraseLocked(const EntryId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t budget_bytes_;

  mutable absl::Mutex mutex_;
  List entries_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<EntryId, List::iterator> index_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln
