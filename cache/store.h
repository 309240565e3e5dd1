// What kilnd holds of its store: the chain's two ends, the catalogue, counts and the check of everything.
// chain/store_config.h builds one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/artifact_store.h"
#include "cache/holds.h"

namespace kiln {

inline constexpr uint64_t kStoreBudgetBytesDefault = uint64_t{8} << 30;

struct StoreStatistics {
  uint64_t put_failures = 0;
  uint64_t quarantined = 0;         // damaged entries taken out
  uint64_t refused_signatures = 0;  // of them: nobody who counts had signed them
  uint64_t evicted = 0;             // entries
  uint64_t scrubbed = 0;            // entries that were read again to see whether they are whole
  uint64_t unread = 0;              // manifests that the last sweep could not read
  uint64_t entries = 0;             // manifests
  uint64_t objects = 0;
  uint64_t bytes_on_disk = 0;
  bool writable = true;
  std::string message;  // why not, for people
};

// Owns the chain. Thread-safe; destroy it after the last call has returned (it flushes and closes).
class Store {
 public:
  virtual ~Store() = default;

  virtual ArtifactStore& artifacts() = 0;
  // The same entries through the same checks, but a Get counts as no use: for people who look, and for
  // readers that look at several entries to use one (they tell the catalog which).
  virtual ArtifactStore& inspection() = 0;
  // Below the memory tier, straight on the engine's index; empty while memory only.
  virtual Catalog& catalog() = 0;
  // Keeps entries from eviction while the Hold lives, which is within the store's life: first this, then ask
  // what is missing. For flights; a single question keeps what it finds for some minutes anyway.
  virtual Holds::Hold Keep(absl::Span<const EntryId> ids) = 0;
  // Told which entries have just been evicted, from a thread of the store's, until the store ends: whoever
  // keeps them elsewhere forgets them. It must not call the store.
  using EvictionListener = std::function<void(absl::Span<const EntryId>)>;
  virtual void OnEvicted(EvictionListener listener) = 0;
  // Whose results are written from now on: those of other compilers are the first to be evicted.
  virtual void SetCompiler(absl::string_view fingerprint) = 0;
  // Evicts until the live entries have at most so many bytes, and returns when the disk has them back.
  virtual absl::Status EvictTo(uint64_t live_bytes) = 0;
  virtual StoreStatistics statistics() const = 0;
  // Reads every entry from disk and checks it; `repair` takes the damaged out (kilnctl verify). CANCELLED
  // when `gone`, asked before each, says so.
  struct VerifyResult {
    uint64_t entries = 0;
    uint64_t objects = 0;
    uint64_t corrupt = 0;
    uint64_t missing = 0;  // objects that a manifest or kernel names and nobody holds
    std::vector<std::string> details;
  };
  virtual absl::StatusOr<VerifyResult> Verify(bool repair, const std::function<bool()>& gone) = 0;
};

}  // namespace kiln
