// Builds the chain of stores that kilnd uses from its configuration:
//
//   metrics ▷ uses ▷ completeness ▷ coalescing ▷ tiered( memory ▷ evicting ▷ verifying ▷ rocksdb )
//
// so that bytes and signatures are checked once, when they enter memory from disk, and a manifest is a hit
// only if everything it names is there.
//
// A directory that can't be written (permissions, read-only file system, disk full) is no reason to
// refuse service: the store is then read-only if a database is there, or else memory only; every
// Put answers with the cause, though what was put can be read again while memory holds it
// (`writable` and `message` say so to people). Errors of NewStore itself: INVALID_ARGUMENT for a
// bad configuration, FAILED_PRECONDITION where the directory is not private (private_directory.h), is in use
// by another process or was written by a newer format (it is left untouched).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cache/signatures.h"
#include "cache/store.h"
#include "kiln/v1/config.pb.h"

namespace rocksdb {
class Env;
}

namespace kiln {

inline constexpr uint64_t kStoreEntriesMaxDefault = 8'000'000;
inline constexpr uint64_t kStoreScrubBytesDefault = uint64_t{1} << 20;  // a second
inline constexpr uint64_t kStoreMemoryBytesDefault = uint64_t{256} << 20;

// Where the store is; but for the signatures, seams for tests.
struct StoreEnvironment {
  rocksdb::Env* env = nullptr;  // not owned, outlives the store
  std::function<int64_t()> now_unix_seconds;
  // Whose entries count; not owned, outlives the store. kilnd has one. Null: everybody's.
  const Signatures* signatures = nullptr;
};

// Where another process has the store open: ABORTED, or a store in memory alone.
enum class WhereInUse { kRefuse, kMemoryOnly };

absl::StatusOr<std::unique_ptr<Store>> NewStore(const v1::StoreConfig& config,
                                                const StoreEnvironment& environment = {},
                                                WhereInUse where_in_use = WhereInUse::kRefuse);

}  // namespace kiln
