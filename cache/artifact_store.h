// ArtifactStore: where compiled results live. One interface, small engines (rocksdb, memory) and
// decorators, one a file; chain/store_config.h builds the chain that kilnd uses.
//
// Keys and values. An entry is (kind, key, value); keys and values are byte strings. The layout:
//   kManifest  compile_key (32) + variant_id (32)   v1.Manifest, a record a variant; signed
//   kObject    SHA-256 of the raw bytes (32)        one zstd frame of them, with its content size
//   kKernel    KernelKey                            v1.ManifestKernel; signed
//   kTuning    TuningKey                            v1.Measurement; signed
//   kFailure   compile_key (32)                     v1.FailureRecord (unsupported, invalid); signed
//   kUses      kind byte + key                      the catalogue's own; refused by Put and Get
//   kMeta      compile_key (32) + a tag             facts for people (key ingredients, notes); lives
//                                                   as long as a manifest or failure of that key
// What is signed is in a v1.SignedEnvelope (signatures.h; v1.SignedManifest is one).
// Who asks for "all variants of a key" uses Catalog::Scan with the compile key as prefix.
//
// Values are shared, not owned: the same verified bytes are at once in the memory tier, in several
// coalesced readers and in a reply being sent, and none of them may copy megabytes or outlive the
// others; they are immutable from the moment they are made.
//
// Promises of every implementation (tests/conformance/store_test.cc runs one suite on all):
//  - Thread-safe. A Get that starts after a Put returned OK sees it, or a later write.
//  - Put is all or nothing, and OK means: durable (engines on disk sync before they return).
//  - A miss is NOT_FOUND. What the environment causes is never INTERNAL: disk full is
//    RESOURCE_EXHAUSTED, a directory that may not be written PERMISSION_DENIED, a device error
//    UNAVAILABLE, bytes that are damaged DATA_LOSS (the verifying store makes that a miss).
//    A key or batch beyond cache/cache_limits.h is INVALID_ARGUMENT. A manifest that names an object which
//    is neither there nor in its batch may be ABORTED: compile again, with the object.
//  - Messages carry no paths.
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
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace kiln {

enum class EntryKind : uint8_t {
  kManifest = 0,
  kObject = 1,
  kKernel = 2,
  kTuning = 3,
  kFailure = 4,
  kUses = 5,
  kMeta = 6,
};
inline constexpr size_t kEntryKinds = 7;

// "manifest", "object", …; the names of the column families are these with an s.
const char* EntryKindName(EntryKind kind);

using EntryValue = std::shared_ptr<const std::string>;

struct EntryId {
  EntryKind kind = EntryKind::kManifest;
  std::string key;

  friend bool operator==(const EntryId&, const EntryId&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const EntryId& id) {
    return H::combine(std::move(state), static_cast<uint8_t>(id.kind), id.key);
  }
};

struct Entry {
  EntryId id;
  EntryValue value;         // not null
  uint32_t rebuild_ms = 0;  // what making it took, so that eviction knows what is expensive; 0: not known
};

// Copies or moves `bytes` into an immutable value.
EntryValue MakeEntryValue(std::string bytes);

// The key of a manifest record.
std::string ManifestEntryKey(absl::string_view compile_key, absl::string_view variant_id);

// Of the v1.RequestRecord of a CompileKey.
EntryId RequestRecordId(absl::string_view compile_key);

// INVALID_ARGUMENT where an id, or a batch, is outside the limits above or of kind kUses.
absl::Status CheckEntryId(const EntryId& id);
absl::Status CheckBatch(absl::Span<const Entry> batch);

class ArtifactStore {
 public:
  virtual ~ArtifactStore() = default;

  virtual absl::StatusOr<EntryValue> Get(const EntryId& id) = 0;

  // One batch is one artifact: all of it or nothing becomes visible and durable. Writing what is
  // there already replaces it. An empty batch is OK and does nothing.
  virtual absl::Status Put(absl::Span<const Entry> batch) = 0;

  // Deleting what is not there is OK.
  virtual absl::Status Delete(absl::Span<const EntryId> ids) = 0;

  // The ids (in the order asked, duplicates kept) for which a Get now would be NOT_FOUND for want
  // of an entry. Looks at presence only, not at bytes.
  virtual absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) = 0;
};

// What is known of an entry without reading it.
struct CatalogEntry {
  EntryId id;
  uint64_t bytes = 0;  // as stored
  int64_t created_unix_seconds = 0;
  int64_t last_used_unix_seconds = 0;
  uint64_t hits = 0;
  bool pinned = false;  // never evicted
  uint32_t rebuild_ms = 0;
  uint32_t compiler = 0;  // who wrote it, see CompilerNumber; 0: not known
};

// What stands for a compiler's fingerprint in the catalogue. Never 0 but for an empty one.
uint32_t CompilerNumber(absl::string_view fingerprint);

struct CatalogTotals {
  uint64_t entries[kEntryKinds] = {};
  uint64_t bytes[kEntryKinds] = {};  // as stored, live entries only
  // All files of the database, garbage and logs included: measured once a second, or after a sixteenth more,
  // and what was written since.
  uint64_t bytes_on_disk = 0;
};

// The local view beside a store on this machine: what it holds, how it is used. Thread-safe.
class Catalog {
 public:
  virtual ~Catalog() = default;

  // Entries of `kind` whose key starts with `prefix`, in key order: a snapshot, so a visitor may
  // call the store or the catalog. `limit` 0 = all. `prefix` empty = every key. Only keys after `after`:
  // who goes through many entries does it by pages, since nobody counts a use during a scan.
  virtual absl::StatusOr<std::vector<CatalogEntry>> Scan(EntryKind kind, absl::string_view prefix,
                                                         size_t limit = 0,
                                                         absl::string_view after = "") const = 0;
  virtual absl::StatusOr<CatalogEntry> Find(const EntryId& id) const = 0;

  // Counts a use. Written to disk later, unsynced, in batches: a crash forgets the last ones.
  virtual void RecordUse(const EntryId& id) = 0;

  // Durable when it returns OK. NOT_FOUND where there is no such entry. A sweep that is about to take the
  // entry takes it all the same, unless a Hold that is not late keeps it meanwhile.
  virtual absl::Status SetPinned(const EntryId& id, bool pinned) = 0;

  virtual CatalogTotals Totals() const = 0;

  // What is written from now on is this compiler's.
  virtual void SetCompiler(uint32_t compiler) = 0;

  // Compacts: returns the bytes of deleted entries to the file system. Slow; for the sweeper. Stops early,
  // with CANCELLED, once `*canceled` (may be null) is true, or when the engine has to be reopened.
  virtual absl::Status Reclaim(std::atomic<bool>* canceled) = 0;
};

}  // namespace kiln
