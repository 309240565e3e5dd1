// The tier that daemons of a cluster share: an engine of the Redis protocol that holds what any of them
// compiled. It is an optimisation: where it is away, slow, full, flushed or lying, a look-up is a miss, and
// never an error of a compile.
//
// Reading. Every value is verified by its signature before anything else looks at it, and an object by its
// digest too. One that does not count is counted, and taken out in the background where nobody has replaced
// it. A look-up has `lookup_limit` as a whole, objects besides a second for every 10 MB. After three at one
// server that took longer, what is there is a miss at once, for 0.1 to 10 s at a time; of a cluster the other
// nodes are asked as before. What is used lives on for `unused_limit`.
//
// Writing. In the background: objects, then the manifest, so that who finds a manifest
// finds what it names; waiting writes hold at most `write_bytes_max`.
//
// Threads: thread-safe. LookUp and Fetch block; at most kTierReaders callers at a time have a connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/artifact_store.h"
#include "cache/shared/redis_engine.h"
#include "cache/shared/tier_artifact.h"
#include "cache/shared/tier_claims.h"
#include "cache/shared/tier_members.h"
#include "cache/shared/tier_records.h"
#include "cache/shared/tier_tuning.h"
#include "cache/shared/tier_verdicts.h"
#include "cache/shared/tier_work.h"
#include "cache/shared/tier_writer.h"
#include "cache/signatures.h"
#include "compiler/support/monotonic_time.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

inline constexpr size_t kTierReaders = 8;

class SharedTier {
 public:
  struct Options {
    std::vector<std::string> addresses;  // a server; of sentinels, or of a cluster, one or more
    std::string sentinel_master;         // whom the sentinels know; empty: the addresses are no sentinels
    bool cluster = false;
    RedisLogin login;
    RedisLogin sentinel_login;
    absl::Duration lookup_limit = absl::Milliseconds(50);
    absl::Duration unused_limit = absl::Hours(24 * 30);
    uint64_t write_bytes_max = uint64_t{256} << 20;
    // DANGEROUS, for the negative control of a test only: signatures and digests are not checked.
    bool dangerously_believe = false;
  };
  // The signatures outlive the tier. INVALID_ARGUMENT for an address that is none, UNAVAILABLE where the
  // system gives no thread; that nobody answers there is no error.
  static absl::StatusOr<std::unique_ptr<SharedTier>> Create(Options options, const Signatures* signatures);

  absl::Duration lookup_limit() const { return options_.lookup_limit; }

  // What the tier has of a key: manifests, and what else belongs to it. The manifests' objects are named, and
  // not here.
  struct Found {
    std::vector<Entry> entries;
    std::vector<v1::ObjectRef> objects;  // of all manifests, no duplicates
  };
  // NOT_FOUND, or why it could not be looked up.
  absl::StatusOr<Found> LookUp(const std::string& ns, const std::string& compile_key, MonotonicTime deadline);
  // All of them or an error; none is a hit as well.
  absl::StatusOr<std::vector<Entry>> Fetch(const std::string& ns, absl::Span<const v1::ObjectRef> objects);

  // What an artifact's batch has, and what its manifest names besides from `local`, which is called later,
  // from another thread. `ended`: when it is in the tier, or never will be.
  using ReadLocal = std::function<absl::StatusOr<EntryValue>(const EntryId&)>;
  void WriteArtifact(const std::string& ns, std::vector<Entry> entries, ReadLocal local,
                     std::function<void()> ended = nullptr);
  void WriteRefusal(const std::string& ns, std::vector<Entry> entries);

  // A compiler process ended over the key: how many have so far, at all daemons, within a day after the last.
  // A count and no more: nothing is refused for it that has not ended a process of the daemon that asks. Ends
  // where a program of the key is written. Waits, for `lookup_limit` at most.
  absl::StatusOr<int64_t> CountCrash(const std::string& ns, const std::string& compile_key);
  // A person's; waits. The key's refusal, and what crashed over it.
  absl::Status RemoveRefusal(const std::string& ns, const std::string& compile_key);

  // See tier_tuning.h. UNAVAILABLE where nobody is kept waiting.
  absl::StatusOr<std::vector<TierTuning::Record>> AgreeOnTuning(const std::string& ns,
                                                                absl::Span<const TierTuning::Record> own);
  absl::Status BarTuning(const std::string& ns, const TierTuning::Record& record);
  // A person's; waits. That it was not there is no error.
  absl::Status RemoveManifest(const std::string& ns, const EntryId& manifest);

  // See tier_claims.h.
  void Claim(uint64_t id, const std::string& ns, const std::string& compile_key, MonotonicTime deadline,
             std::function<void(TierClaims::Answer)> answer);
  void Release(uint64_t id) { claims_->Release(id); }
  // When what was written before of the key is in the tier, or never will be.
  void ReleaseAfterWrites(uint64_t id);

  // See tier_verdicts.h.
  TierVerdicts* verdicts() { return verdicts_.get(); }
  // See tier_work.h.
  const TierWork* work() const { return work_.get(); }
  // See tier_members.h.
  TierMembers* members() { return members_.get(); }
  // See tier_records.h.
  TierRecords* records() { return records_.get(); }

  v1::TierStatus status() const;

 private:
  SharedTier(Options options, const Signatures* signatures)
      : options_(std::move(options)), signatures_(signatures) {}

  absl::StatusOr<Found> LookUpOnce(const std::string& ns, const std::string& compile_key,
                                   MonotonicTime deadline);
  absl::StatusOr<std::vector<Entry>> FetchOnce(const std::string& ns,
                                               absl::Span<const v1::ObjectRef> objects);
  absl::StatusOr<std::string> Open(const std::string& ns, const EntryId& id, absl::string_view sealed);
  absl::StatusOr<Entry> OpenObject(const std::string& ns, const v1::ObjectRef& ref,
                                   absl::Span<const RedisEngine::Answer> chunks);
  void Write(const std::string& ns, std::vector<Entry> entries, ReadLocal local,
             absl::Status (TierArtifact::*write)(), std::function<void()> ended);
  void Refuse(std::string name, std::string field, absl::string_view value);

  const Options options_;
  const Signatures* const signatures_;
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> misses_{0};
  std::atomic<uint64_t> refused_{0};
  // Each uses those before it.
  std::unique_ptr<RedisEngine> engine_;
  std::unique_ptr<TierClaims> claims_;
  std::unique_ptr<TierWriter> writer_;
  std::unique_ptr<TierVerdicts> verdicts_;
  std::unique_ptr<TierMembers> members_;
  std::unique_ptr<TierRecords> records_;
  std::unique_ptr<TierTuning> tuning_;
  std::unique_ptr<TierWork> work_;
};

}  // namespace kiln
