// Writes one artifact, or a refusal, to the shared tier: see shared_tier.h for the order.
//
// Threads: each is one thread's. Errors: RedisEngine's and RedisError's; what has been written by then stays,
// and is written again by the next try or expires.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/artifact_store.h"
#include "cache/shared/redis_engine.h"
#include "cache/signatures.h"

namespace kiln {

// How long the tier has for bytes, besides the time that a command takes.
absl::Duration TierTransferTime(uint64_t bytes);

class TierArtifact {
 public:
  using ReadLocal = std::function<absl::StatusOr<EntryValue>(const EntryId&)>;
  // `entries`: a batch as the store takes it. All outlive this.
  TierArtifact(RedisEngine* engine, const Signatures* signatures, std::string ns, absl::Duration unused_limit,
               std::vector<Entry> entries, ReadLocal local);

  absl::Status Write();
  absl::Status WriteRefusal();

 private:
  struct Object {
    std::string digest;
    uint64_t size = 0;
  };
  absl::StatusOr<EntryValue> Read(const EntryId& id) const;
  // Renews the chunks that are there; the objects of which some are not.
  absl::StatusOr<std::vector<Object>> Missing(absl::Span<const Object> objects);
  absl::Status WriteObjects(absl::Span<const Object> objects);
  absl::Status WriteManifest(const Entry& manifest);
  absl::Status WriteRecord();
  RedisCommand Set(const std::string& name, std::string sealed, absl::Duration ttl) const;
  absl::Status Run(absl::Span<const RedisCommand> commands, uint64_t bytes);

  RedisEngine* const engine_;
  const Signatures* const signatures_;
  const std::string ns_;
  const absl::Duration unused_limit_;
  const std::vector<Entry> entries_;
  const ReadLocal local_;
};

}  // namespace kiln
