// The catalogue's facts in memory: every entry's size, age, uses and pin, ordered by key. An engine
// keeps it beside its data and writes the records to its `uses` column family.
// Thread-safe. Costs about 200 bytes an entry.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "cache/artifact_store.h"

namespace kiln {

class UsageIndex {
 public:
  // A record and its key as they stand in the `uses` column family.
  static std::string EncodeKey(const EntryId& id);
  static std::string EncodeRecord(const CatalogEntry& entry);
  // DATA_LOSS for what the two above did not write.
  static absl::StatusOr<CatalogEntry> Decode(absl::string_view key, absl::string_view record);

  // The facts after writing `id` with `bytes` at `now`; an earlier entry's uses and pin stay.
  CatalogEntry AfterWrite(const EntryId& id, uint64_t bytes, int64_t now, uint32_t rebuild_ms,
                          uint32_t compiler) const;

  void Set(const CatalogEntry& entry) { Add({entry}); }
  // Fastest in the order of the records' keys.
  void Add(std::vector<CatalogEntry> entries);
  void Erase(const EntryId& id);
  // Nobody else may use `other`.
  void Swap(UsageIndex& other);
  bool Contains(const EntryId& id) const;
  absl::StatusOr<CatalogEntry> Find(const EntryId& id) const;
  std::vector<CatalogEntry> Scan(EntryKind kind, absl::string_view prefix, size_t limit,
                                 absl::string_view after) const;
  // Entries and bytes; bytes_on_disk is left 0.
  CatalogTotals Totals() const;

  // Counts a use of an entry that is here; returns how many records wait to be written.
  size_t RecordUse(const EntryId& id, int64_t now);
  // Up to `limit` records that wait to be written, which then wait no longer.
  std::vector<CatalogEntry> TakeUnwritten(size_t limit);

 private:
  struct Facts {
    uint64_t bytes;
    int64_t created;
    int64_t last_used;
    uint64_t hits;
    uint32_t rebuild_ms;
    uint32_t compiler;
    bool pinned;
    bool unwritten = false;  // it is in `unwritten_`
  };
  using Map = std::map<std::string, Facts>;

  static CatalogEntry ToEntry(EntryKind kind, const Map::value_type& item);
  Map& MapOf(EntryKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return maps_[static_cast<size_t>(kind)];
  }
  const Map& MapOf(EntryKind kind) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return maps_[static_cast<size_t>(kind)];
  }

  mutable absl::Mutex mutex_;
  std::array<Map, kEntryKinds> maps_ ABSL_GUARDED_BY(mutex_);
  std::array<uint64_t, kEntryKinds> bytes_ ABSL_GUARDED_BY(mutex_) = {};
  std::set<std::pair<EntryKind, std::string>> unwritten_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
