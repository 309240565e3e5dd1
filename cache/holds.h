// References to entries that a sweep must not evict: of a caller that was told they are present and is about
// to name them, of a flight while it runs, of a write that the sweep has not seen.
//
// An entry is touched (it stays for the grace time from then on), held (it stays until the Hold ends),
// written during a sweep (it stays for that sweep), or claimed by the sweep. Each excludes a later claim: who
// was told that an entry is present keeps it, and who was told that it is going recompiles it. No call
// blocks. Thread-safe. Entries are identified by a 64-bit hash: a collision keeps an entry that could go, or
// compiles one again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache/artifact_store.h"

namespace kiln {

class Holds {
 public:
  Holds(int64_t grace_seconds, std::function<int64_t()> now_unix_seconds)
      : grace_seconds_(grace_seconds), now_unix_seconds_(std::move(now_unix_seconds)) {}

  // Returns those that a sweep has claimed: treat them as missing.
  std::vector<EntryId> Touch(absl::Span<const EntryId> ids);

  // Keeps entries, present ones or not, until it ends; the Holds outlive it.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept { *this = std::move(other); }
    Hold& operator=(Hold&& other) noexcept;
    ~Hold() { End(); }
    // Whether some were claimed already: those go all the same.
    bool late() const { return late_; }

   private:
    friend class Holds;
    void End();

    Holds* holds_ = nullptr;
    std::vector<uint64_t> hashes_;
    bool late_ = false;
  };
  Hold Keep(absl::Span<const EntryId> ids);
  // After a write, while it still holds the ids.
  void Written(absl::Span<const EntryId> ids);

  // A sweep, one at a time: what is written between the two stays.
  void BeginSweep() { ++sweep_; }
  void EndSweep() { ++sweep_; }
  // True when nobody counts on the entry: it is claimed until Release. A root is not kept by a touch.
  enum class Standing { kRoot, kNamed };
  bool Claim(const EntryId& id, Standing standing);
  void Release(absl::Span<const EntryId> ids);

 private:
  struct Use {
    int64_t stays_until = 0;
    uint64_t written_in = 0;  // a sweep
    uint32_t holds = 0;
    bool claimed = false;
  };
  struct Shard {
    absl::Mutex mutex;
    absl::flat_hash_map<uint64_t, Use> uses ABSL_GUARDED_BY(mutex);
    size_t prune_at ABSL_GUARDED_BY(mutex) = 1024;  // entries
  };
  Shard& ShardOf(uint64_t hash) { return shards_[hash % kShards]; }
  bool CountedOn(const Use& use, int64_t now) const {
    return use.holds > 0 || use.claimed || use.stays_until > now || Sweeping(use.written_in);
  }
  // Odd while a sweep runs.
  bool Sweeping(uint64_t sweep) const { return sweep % 2 == 1 && sweep == sweep_.load(); }
  // Forgets what nobody counts on any more, whenever twice as much is known as was left the last time.
  void Prune(Shard* shard, int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->mutex);

  static constexpr size_t kShards = 64;

  const int64_t grace_seconds_;
  const std::function<int64_t()> now_unix_seconds_;
  std::atomic<uint64_t> sweep_{0};
  std::array<Shard, kShards> shards_;
};

}  // namespace kiln
