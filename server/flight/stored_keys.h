// What the daemon knows of keys, between the flights and the store: variants (by the hit index, then the
// store), refusals, and artifacts that the store is still taking.
//
// Thread-safe. All but `Find…`, `IsAbsent` and `Announce` read or write the disk.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cache/holds.h"
#include "cache/signatures.h"
#include "cache/store.h"
#include "kiln/v1/compile.pb.h"
#include "server/build/artifact.h"
#include "server/flight/flight_request.h"
#include "server/flight/hit_index.h"
#include "server/flight/known_key.h"
#include "server/flight/readable_namespaces.h"
#include "server/flight/tier_keys.h"
#include "server/flight/waiting_programs.h"
#include "server/schedule/clock.h"

namespace kiln {

class StoredKeys {
 public:
  // All outlive this. `tier` is nullptr where there is none.
  // So is `readable`: then everybody reads his own namespace alone.
  StoredKeys(Store* store, TierKeys* tier, HitIndex* index, const Clock* clock, const Signatures* signatures,
             const ReadableNamespaces* readable = nullptr)
      : store_(store),
        tier_(tier),
        index_(index),
        clock_(clock),
        signatures_(signatures),
        readable_(readable) {}

  // Before anything else; it outlives this.
  void SetWaiting(WaitingPrograms* waiting) { waiting_ = waiting; }

  // From memory alone; nullptr: ask `Load`.
  KnownKeyPtr Find(absl::string_view compile_key) { return index_->Find(compile_key); }
  // Whether there is nothing for `ns` under the key, and in no namespace that it reads besides: no variant
  // and no refusal. From memory alone; false says nothing.
  bool IsAbsent(const std::string& ns, const std::string& compile_key) const;
  // Reads the store, and fills the index. What can't be read is not known, nor what is another namespace's
  // than `ns`, of which the key is.
  KnownKeyPtr Load(const std::string& ns, const std::string& compile_key,
                   HitIndex::Keep keep = HitIndex::Keep::kWithVariants);
  // The same, and after its variants those that the namespace's callers are served from others.
  KnownKeyPtr LoadReadable(const std::string& ns, const std::string& compile_key,
                           const std::string& request_key);
  // `own_alone`: Load, otherwise LoadReadable.
  KnownKeyPtr LoadFor(const std::string& ns, const std::string& compile_key, const std::string& request_key,
                      bool own_alone) {
    return own_alone ? Load(ns, compile_key) : LoadReadable(ns, compile_key, request_key);
  }
  // From memory alone: a variant for these sizes from the namespaces that `ns` reads besides; none where
  // memory does not know of one that comes before.
  std::optional<KnownVariant> FindReadable(const std::string& ns, const std::string& request_key,
                                           const v1::Hints& hints, Outdated outdated = Outdated::kSkip);
  // Counts an answer from it. In memory.
  void RecordUse(const KnownVariant& variant) { store_->catalog().RecordUse(variant.entry); }

  // From now on its objects can be fetched, though the store has yet to take it.
  void Announce(const std::shared_ptr<const Artifact>& artifact);
  // Writes an announced one. A key has at most kVariantsPerKeyMax variants beside the pinned ones: one more
  // takes the place of the least recently used. What the store refuses is still known, and not durable.
  absl::Status Put(const std::shared_ptr<const Artifact>& artifact);
  // Before a variant is written that was made elsewhere: likewise.
  void MakeRoomFor(const std::string& ns, const std::string& compile_key, const std::string& new_variant) {
    MakeRoom(*Load(ns, compile_key), new_variant);
  }
  // A kernel of another program's, for one that is being made. What it names on disk is held until the holds
  // end; what the disk has not, but memory, is in its objects.
  absl::StatusOr<EmittedKernel> ReadKernel(const std::string& ns, const std::string& kernel_key,
                                           std::vector<Holds::Hold>* holds);
  // A refusal that would only repeat or, in quarantine, for a day.
  void PutRefusal(const FlightRequest& request, const std::string& compiler_fingerprint,
                  const absl::Status& status, bool quarantine);

  // Whether all that is asked for may be read: how many bytes each has, packed. INVALID_ARGUMENT for a digest
  // that the variant does not name, NOT_FOUND when the variant is gone (then look up again).
  absl::StatusOr<std::vector<uint64_t>> CheckFetch(const v1::FetchObjectsRequest& request);
  // One of them, packed. NOT_FOUND when it is gone.
  absl::StatusOr<EntryValue> ReadObject(const v1::FetchObjectsRequest& request, const std::string& digest);

  // After a removal: what memory knows of the key; of every key when empty.
  void Forget(const std::string& compile_key);

 private:
  KnownKeyPtr Read(const std::string& ns, const std::string& compile_key);
  absl::StatusOr<KnownVariant> ReadVariant(const std::string& ns, const CatalogEntry& entry);
  void ReadRefusal(const std::string& ns, const std::string& compile_key, KnownKey* known);
  // The artifact where the store has yet to take it, or null.
  std::shared_ptr<const Artifact> FreshOf(const v1::FetchObjectsRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<v1::Manifest> ManifestOf(const v1::FetchObjectsRequest& request);
  void MakeRoom(const KnownKey& known, const std::string& new_variant);

  Store* const store_;
  TierKeys* const tier_;
  HitIndex* const index_;
  const Clock* const clock_;
  const Signatures* const signatures_;
  const ReadableNamespaces* const readable_;  // may be null
  WaitingPrograms* waiting_ = nullptr;        // likewise

  std::atomic<bool> refusals_in_memory_{false};  // one, ever, that the disk did not take
  mutable absl::Mutex mutex_;
  // By manifest entry key; shared with the flight that stores it.
  absl::flat_hash_map<std::string, std::shared_ptr<const Artifact>> announced_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
