// Builds the chain of stores that kilnd uses from its configuration:
//
//   metrics ▷ uses ▷ completeness ▷ coalescing ▷ tiered( memory ▷ evicting ▷ verifying ▷ rocksdb )
//
// so that bytes are checked once, when they enter memory from disk, and a manifest is a hit only if
// everything it names is there.
//
// A directory that can't be written (permissions, read-only file system, disk full) is no reason to
// refuse service: the store is then read-only if a database is there, or else memory only; every
// Put answers with the cause, though what was put can be read again while memory holds it
// (`writable` and `message` say so to people). Errors of NewStore itself: INVALID_ARGUMENT for a
// bad configuration, FAILED_PRECONDITION where the directory belongs to someone else, is in use by
// another process or was written by a newer format (it is left untouched).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cache/artifact_store.h"
#include "kiln/v1/config.pb.h"

namespace rocksdb {
class Env;
}

namespace kiln {

inline constexpr uint64_t kStoreBudgetBytesDefault = uint64_t{8} << 30;
inline constexpr uint64_t kStoreMemoryBytesDefault = uint64_t{256} << 20;

struct StoreStatistics {
  uint64_t gets = 0;
  uint64_t hits = 0;
  uint64_t puts = 0;
  uint64_t put_failures = 0;
  uint64_t memory_hits = 0;
  uint64_t coalesced = 0;    // Gets that shared another's read
  uint64_t incomplete = 0;   // manifests or kernels that named a missing object
  uint64_t quarantined = 0;  // damaged entries taken out
  uint64_t evicted = 0;      // entries
  uint64_t entries = 0;      // manifests
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
  virtual StoreStatistics statistics() const = 0;
  // Reads every entry from disk and checks it; `repair` takes the damaged out (kilnctl verify).
  struct VerifyResult {
    uint64_t entries = 0;
    uint64_t objects = 0;
    uint64_t corrupt = 0;
    uint64_t missing = 0;  // objects that a manifest or kernel names and nobody holds
    std::vector<std::string> details;
  };
  virtual absl::StatusOr<VerifyResult> Verify(bool repair) = 0;
};

// Seams for tests; the defaults are the real ones.
struct StoreEnvironment {
  rocksdb::Env* env = nullptr;  // not owned, outlives the store
  std::function<int64_t()> now_unix_seconds;
};

// Where another process has the store open: ABORTED, or a store in memory alone.
enum class WhereInUse { kRefuse, kMemoryOnly };

absl::StatusOr<std::unique_ptr<Store>> NewStore(const v1::StoreConfig& config,
                                                const StoreEnvironment& environment = {},
                                                WhereInUse where_in_use = WhereInUse::kRefuse);

}  // namespace kiln
