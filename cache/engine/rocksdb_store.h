// The engine on disk: one RocksDB database in `<directory>/db`, a column family a kind, objects in
// blob files (with a blob cache, without which their reads are 10 to 200 times slower).
//
// Durability: a Put is one WriteBatch and one WAL sync, and OK is said after the sync. Uses are
// written unsynced, with a later batch or by a thread of the store's own: who records one does not write.
// Opening: a database that is damaged beyond opening is renamed `<directory>/corrupt-<unix time>`
// (the latest one is kept) and an empty one started; damage met later is noted and has the same
// effect at the next opening. A database of an unknown format or of another program's is FAILED_PRECONDITION
// and untouched, one that another process has open ABORTED and untouched. No space, no permission:
// RESOURCE_EXHAUSTED, PERMISSION_DENIED. Running: after a failed write (disk full) reads go on; later Puts
// try, once a second, whether there is space again, and then reopen the database: a Reclaim is then
// CANCELLED, or RESOURCE_EXHAUSTED where it met the full disk first, a Get waits, and the catalogue answers
// meanwhile as it did. Where the opening fails a Get is UNAVAILABLE and the catalogue empty, until a later
// one has succeeded. Thread-safe. Memory: one cache for blocks and blobs, and one write buffer a column
// family.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/artifact_store.h"
#include "cache/engine/directory_size.h"
#include "cache/engine/usage_index.h"
#include "cache/engine/uses_writer.h"
#include "compiler/support/monotonic_time.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"

namespace kiln {

struct RocksdbOptions {
  std::string directory;  // made (0700) if missing
  uint64_t cache_bytes = 32u << 20;
  uint64_t write_buffer_bytes = 16u << 20;  // a column family; the WAL is held to four times this
  uint64_t blob_file_bytes = 64u << 20;
  bool read_only = false;                     // then every Put is PERMISSION_DENIED
  bool dangerously_no_sync = false;           // acknowledge before the sync
  bool dangerously_no_checksums = false;      // read without RocksDB's own checksums
  rocksdb::Env* env = nullptr;                // not owned; default: the system's
  std::function<int64_t()> now_unix_seconds;  // default: the system's clock
};

class RocksdbStore : public ArtifactStore, public Catalog {
 public:
  static absl::StatusOr<std::unique_ptr<RocksdbStore>> Open(RocksdbOptions options);
  ~RocksdbStore() override;

  absl::StatusOr<EntryValue> Get(const EntryId& id) override;
  absl::Status Put(absl::Span<const Entry> batch) override;
  absl::Status Delete(absl::Span<const EntryId> ids) override;
  absl::StatusOr<std::vector<EntryId>> FindMissing(absl::Span<const EntryId> ids) override;

  absl::StatusOr<std::vector<CatalogEntry>> Scan(EntryKind kind, absl::string_view prefix, size_t limit,
                                                 absl::string_view after) const override;
  absl::StatusOr<CatalogEntry> Find(const EntryId& id) const override { return index_.Find(id); }
  void RecordUse(const EntryId& id) override;
  absl::Status SetPinned(const EntryId& id, bool pinned) override;
  CatalogTotals Totals() const override;
  void SetCompiler(uint32_t compiler) override { compiler_ = compiler; }
  absl::Status Reclaim(std::atomic<bool>* canceled) override;

  // How the last write went: OK, or why the store can't be written now.
  absl::Status write_state() const;
  // Whether Open set a damaged database aside and began an empty one.
  bool was_reset() const { return was_reset_; }

 private:
  explicit RocksdbStore(RocksdbOptions options);

  absl::Status OpenDatabase();
  absl::Status OpenAndLoad();
  absl::Status OpenOrStartAnew();
  rocksdb::Status OpenColumnFamilies();
  absl::Status CheckFormat();
  absl::Status SetAside();
  absl::Status WriteFormat();
  absl::Status LoadIndex();
  absl::Status RebuildIndex();
  absl::Status Write(rocksdb::WriteBatch* batch, bool sync);   // and notes how it went
  absl::Status Commit(rocksdb::WriteBatch* batch, bool sync);  // of a database that is open
  absl::Status ReopenIfStopped();
  absl::Status ProbeSpace();
  void CloseDatabase();
  void AddUses(size_t limit, rocksdb::WriteBatch* batch);
  void WriteUses();  // on the thread of uses_writer_
  void NoteDamage();
  void ForgetGhost(const EntryId& id);
  rocksdb::ColumnFamilyHandle* Family(EntryKind kind) const { return families_[static_cast<size_t>(kind)]; }
  rocksdb::ReadOptions ReadOptions() const;
  std::string DatabasePath() const;

  const RocksdbOptions options_;
  rocksdb::Env* const env_;
  rocksdb::DBOptions db_options_;
  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, kEntryKinds> families_ = {};  // closed in the destructor
  bool was_reset_ = false;
  mutable DirectorySize size_;
  UsageIndex index_;
  std::atomic<uint32_t> compiler_{0};

  // Shared by writers; exclusive for Delete, so that the index and the database agree, and for reopening,
  // which holds reading_ too. db_ is null only where that failed. The index is what it was until the database
  // has been opened and read, and empty where that failed.
  absl::Mutex writing_;
  absl::Mutex reading_ ABSL_ACQUIRED_AFTER(writing_);
  MonotonicTime next_reopening_ ABSL_GUARDED_BY(writing_) = MonotonicTime::min();

  mutable absl::Mutex state_mutex_;
  absl::Status write_state_ ABSL_GUARDED_BY(state_mutex_);

  std::unique_ptr<UsesWriter> uses_writer_;  // none where the store is read only
};

}  // namespace kiln
