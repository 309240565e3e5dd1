// Decides what a store evicts, in which order. It reads no store and no clock, so tests need neither.
//
// Roots are manifests, failures and tuning records; the rest lives as long as a root names it. They go in
// this order: damaged manifests; roots that have expired; those of another compiler, which nobody can hit;
// then least recently used first, where the idle time is divided by what a root cost to make per byte,
// relative to the median of the candidates and clamped to an eighth to eight times.
//
// Memory: about 100 bytes an entry and 4 a name in a manifest. Threads: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cache/artifact_store.h"
#include "cache/checks/references.h"

namespace kiln {

struct EvictionLimits {
  uint64_t live_bytes = 0;  // of all entries, now
  uint64_t live_entries = 0;
  uint64_t live_bytes_wanted = UINT64_MAX;  // roots go until both are reached
  uint64_t live_entries_wanted = UINT64_MAX;
  int64_t now_unix_seconds = 0;
  int64_t keep_if_used_after = 0;                // for what no root names
  int64_t keep_roots_if_used_after = INT64_MAX;  // but for damaged and expired ones
  int64_t expired_if_used_before = 0;            // goes though there is room,
  uint64_t expired_max = UINT64_MAX;             // so many roots at most
  uint32_t compiler = 0;                         // today's, as in CatalogEntry; 0: not known
};

class EvictionPlan {
 public:
  // Everything that the store holds, in any order, before the first question.
  void AddManifest(CatalogEntry entry, const References& references);
  void AddDamagedManifest(CatalogEntry entry);  // what it names is not known
  void AddRoot(CatalogEntry entry);             // a failure or a tuning record
  void AddNamed(CatalogEntry entry);            // an object or kernel record
  void AddMeta(CatalogEntry entry);

  // Puts the roots in order.
  void Begin(const EvictionLimits& limits);
  // What no root names, in no order. From the counts it has gone, and so has what stays for its grace alone:
  // a later plan takes that.
  std::vector<EntryId> TakeUnnamed();
  // The root that goes next; null when enough has gone or only such are left as stay.
  const CatalogEntry* Next() const;
  // It and what it alone named, but for what was used a moment ago, which counts as gone all the same.
  std::vector<EntryId> Take();
  // It stays, and so does what it names.
  void Skip() { ++next_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Named {
    CatalogEntry entry;  // without an id: named, but not here
    uint32_t count = 0;  // manifests that name it
  };
  struct MetaOfKey {
    std::vector<CatalogEntry> entries;
    uint32_t count = 0;  // manifests and failures of the key
  };
  struct Root {
    CatalogEntry entry;
    uint32_t first_name = 0, names = 0;  // a range of names_
    bool damaged = false;
    double keep_factor = 1;
  };

  uint32_t IndexOf(const EntryId& id);
  MetaOfKey* MetaOf(const CatalogEntry& root);
  void Rate();
  bool Expired(const Root& root) const;
  bool Stays(const Root& root) const;
  bool OfAnotherCompiler(const Root& root) const;
  void Uncount(const CatalogEntry& entry);
  // What no root names any more.
  void Condemn(const CatalogEntry& entry, std::vector<EntryId>* group);

  EvictionLimits limits_;
  std::vector<Root> roots_;
  std::vector<uint32_t> names_;  // positions in named_
  std::vector<Named> named_;
  absl::flat_hash_map<EntryId, uint32_t> index_;
  absl::flat_hash_map<std::string, MetaOfKey> meta_;  // by CompileKey
  size_t next_ = 0;
};

}  // namespace kiln
