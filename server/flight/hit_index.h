// What hits are answered from: immutable snapshots of keys above the store, with guards ready to evaluate and
// replies already serialized. It is filled by use and holds the most recently used within `bytes_max`.
//
// Entries are invalidated one by one (`Erase`: evicted, removed, another variant stored), never all at once.
// A fill announces itself before it reads the store (`Load`), so that what is erased meanwhile is not put
// back.
//
// Thread-safe: shards with a lock each, held for a look-up. Limits: the entries' bytes; a key larger than
// a shard's part is not kept.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/flight/known_key.h"

namespace kiln {

class HitIndex {
 public:
  explicit HitIndex(uint64_t bytes_max) : shard_bytes_max_(bytes_max / kShards) {}

  // nullptr: not here, which says nothing of the store.
  KnownKeyPtr Find(absl::string_view compile_key);

  // `read` reads the store; what it finds is kept unless the key was erased since this call began. Keys
  // without a variant are kept only where the store was asked for one that stands in for it (`kAll`).
  enum class Keep { kWithVariants, kAll };
  KnownKeyPtr Load(const std::string& compile_key, const std::function<KnownKeyPtr()>& read,
                   Keep keep = Keep::kWithVariants);
  void Erase(absl::string_view compile_key);
  void Clear();

  uint64_t bytes() const;
  uint64_t entries() const;

 private:
  struct Entry {
    std::string key;
    KnownKeyPtr known;
    uint64_t bytes = 0;
  };
  struct Reading {
    int readers = 0;
    uint64_t erased = 0;  // how often while there were readers
  };
  struct Shard {
    mutable absl::Mutex mutex;
    std::list<Entry> by_use ABSL_GUARDED_BY(mutex);  // the latest first
    absl::flat_hash_map<std::string, std::list<Entry>::iterator> entries ABSL_GUARDED_BY(mutex);
    absl::flat_hash_map<std::string, Reading> reading ABSL_GUARDED_BY(mutex);
    uint64_t bytes ABSL_GUARDED_BY(mutex) = 0;
  };
  static constexpr size_t kShards = 16;

  Shard& ShardOf(absl::string_view compile_key);
  static void Drop(Shard& shard, absl::string_view compile_key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);
  void Add(Shard& shard, const std::string& compile_key, const KnownKeyPtr& known)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);

  const uint64_t shard_bytes_max_;
  std::array<Shard, kShards> shards_;
};

}  // namespace kiln
