#include "cache/engine/rocksdb_store.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/cache_limits.h"
#include "cache/engine/rocksdb_status.h"
#include "compiler/support/status_macros.h"
#include "rocksdb/cache.h"
#include "rocksdb/convenience.h"
#include "rocksdb/filter_policy.h"
#include "rocksdb/listener.h"
#include "rocksdb/table.h"
#include "rocksdb/write_batch.h"

namespace kiln {
namespace {

// 2: records of uses say what making an entry took, and by whom it was made. A kiln of format 1 would lose
// their ages and pins, so that it must not open them; this one reads both.
constexpr char kFormatVersion[] = "2";
constexpr char kFirstFormat[] = "1";
// In the column family of kMeta; too long to be an entry's key.
const std::string& FormatKey() {
  static const std::string* const key = new std::string("format" + std::string(kEntryKeyBytesMax, '.'));
  return *key;
}
constexpr char kCorruptPrefix[] = "corrupt-";
constexpr char kDamageNote[] = "damaged";
constexpr std::chrono::seconds kBetweenReopenings(1);
constexpr size_t kIndexReadBytes = 1u << 20;
constexpr size_t kIndexPage = 1'024;  // entries
constexpr size_t kUsesWithABatch = 256;
// Values from here on go to blob files; below, a blob's bookkeeping costs more than it saves.
constexpr uint64_t kBlobBytesMin = 4096;

rocksdb::Slice Slice(absl::string_view bytes) { return {bytes.data(), bytes.size()}; }

absl::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

std::string FamilyName(EntryKind kind) {
  return kind == EntryKind::kUses || kind == EntryKind::kMeta || kind == EntryKind::kTuning
             ? EntryKindName(kind)
             : absl::StrCat(EntryKindName(kind), "s");
}

int64_t SystemSeconds() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch()).count();
}

RocksdbOptions WithDefaults(RocksdbOptions options) {
  if (options.env == nullptr) options.env = rocksdb::Env::Default();
  if (!options.now_unix_seconds) options.now_unix_seconds = SystemSeconds;
  return options;
}

// RocksDB's own resuming after a full disk may never end; see RocksdbStore::ReopenIfStopped.
class NoRecoveryByItself : public rocksdb::EventListener {
 public:
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status, bool* auto_recovery) override {
    *auto_recovery = false;
  }
};

rocksdb::DBOptions MakeDbOptions(const RocksdbOptions& options, rocksdb::Env* env) {
  rocksdb::DBOptions db;
  db.env = env;
  db.create_if_missing = true;
  db.create_missing_column_families = true;
  db.max_total_wal_size = 4 * options.write_buffer_bytes;
  db.max_open_files = 512;
  db.keep_log_file_num = 2;
  db.max_log_file_size = 1 << 20;
  db.max_background_jobs = 2;
  db.stats_dump_period_sec = 0;
  db.stats_persist_period_sec = 0;
  db.info_log_level = rocksdb::WARN_LEVEL;
  db.listeners.push_back(std::make_shared<NoRecoveryByItself>());
  return db;
}

rocksdb::ColumnFamilyOptions MakeFamilyOptions(const RocksdbOptions& options, EntryKind kind,
                                               const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions family;
  family.compression = rocksdb::kNoCompression;  // objects are packed, the rest is small
  family.write_buffer_size = options.write_buffer_bytes;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  if (kind == EntryKind::kObject) {
    family.enable_blob_files = true;
    family.min_blob_size = kBlobBytesMin;
    family.blob_file_size = options.blob_file_bytes;
    family.blob_cache = cache;
    family.enable_blob_garbage_collection = true;
    family.blob_garbage_collection_age_cutoff = 0.25;
    family.blob_garbage_collection_force_threshold = 0.5;
  }
  return family;
}

// Sums the files of a directory; what vanishes meanwhile does not count.
rocksdb::Status RemoveDirectory(rocksdb::Env* env, const std::string& path) {
  std::vector<std::string> names;
  rocksdb::Status status = env->GetChildren(path, &names);
  for (const std::string& name : names) {
    if (status.ok() && name != "." && name != "..") status = env->DeleteFile(absl::StrCat(path, "/", name));
  }
  return status.ok() ? env->DeleteDir(path) : status;
}

}  // namespace

RocksdbStore::RocksdbStore(RocksdbOptions options)
    : options_(WithDefaults(std::move(options))),
      env_(options_.env),
      db_options_(MakeDbOptions(options_, env_)),
      size_(env_, DatabasePath()) {}

absl::StatusOr<std::unique_ptr<RocksdbStore>> RocksdbStore::Open(RocksdbOptions options) {
  if (options.directory.empty()) return absl::InvalidArgumentError("store without a directory");
  std::unique_ptr<RocksdbStore> store(new RocksdbStore(std::move(options)));
  KILN_RETURN_IF_ERROR(StatusWrap(store->OpenDatabase(), "open store"));
  if (store->options_.read_only) return store;
  KILN_ASSIGN_OR_RETURN(store->uses_writer_, UsesWriter::Create([made = store.get()] { made->WriteUses(); }));
  return store;
}

RocksdbStore::~RocksdbStore() {
  uses_writer_ = nullptr;
  if (db_ == nullptr) return;
  if (!options_.read_only) {
    // Uses are advice: on a full or failing disk they are forgotten.
    rocksdb::WriteBatch uses;
    AddUses(SIZE_MAX, &uses);
    if (uses.Count() > 0) Write(&uses, /*sync=*/true).IgnoreError();
  }
  CloseDatabase();
}

void RocksdbStore::CloseDatabase() {
  if (db_ == nullptr) return;
  rocksdb::CancelAllBackgroundWork(db_.get(), /*wait=*/true);
  for (rocksdb::ColumnFamilyHandle*& family : families_) {
    if (family != nullptr) db_->DestroyColumnFamilyHandle(family);
    family = nullptr;
  }
  db_->Close().PermitUncheckedError();
  db_.reset();
}

std::string RocksdbStore::DatabasePath() const { return options_.directory + "/db"; }

rocksdb::ReadOptions RocksdbStore::ReadOptions() const {
  rocksdb::ReadOptions read;
  read.verify_checksums = !options_.dangerously_no_checksums;
  return read;
}

// ---- Opening --------------------------------------------------------------------------------

absl::Status RocksdbStore::OpenDatabase() {
  if (!options_.read_only) {
    KILN_RETURN_IF_ERROR(FromRocksdb(env_->CreateDirIfMissing(options_.directory)));
    KILN_RETURN_IF_ERROR(FromRocksdb(env_->CreateDirIfMissing(DatabasePath())));
    if (env_->FileExists(options_.directory + "/" + kDamageNote).ok()) KILN_RETURN_IF_ERROR(SetAside());
  }
  KILN_RETURN_IF_ERROR(CheckFormat());
  return OpenAndLoad();
}

absl::Status RocksdbStore::OpenAndLoad() {
  KILN_RETURN_IF_ERROR(OpenOrStartAnew());
  KILN_RETURN_IF_ERROR(WriteFormat());
  return LoadIndex();
}

absl::Status RocksdbStore::OpenOrStartAnew() {
  rocksdb::Status status = OpenColumnFamilies();
  if (IsDamage(status) && !options_.read_only) {
    KILN_RETURN_IF_ERROR(SetAside());
    status = OpenColumnFamilies();
  }
  if (IsIncompatible(status)) {
    return absl::FailedPreconditionError(
        "the store was written by another version of kiln, or is another program's; it is left as it is: "
        "name "
        "another directory, or remove it");
  }
  return FromRocksdb(status);
}

rocksdb::Status RocksdbStore::OpenColumnFamilies() {
  std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(options_.cache_bytes);
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors = {
      {rocksdb::kDefaultColumnFamilyName, rocksdb::ColumnFamilyOptions()}};
  for (size_t kind = 0; kind < kEntryKinds; ++kind) {
    EntryKind entry_kind = static_cast<EntryKind>(kind);
    descriptors.emplace_back(FamilyName(entry_kind), MakeFamilyOptions(options_, entry_kind, cache));
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  rocksdb::Status status =
      options_.read_only
          ? rocksdb::DB::OpenForReadOnly(db_options_, DatabasePath(), descriptors, &handles, &db)
          : rocksdb::DB::Open(db_options_, DatabasePath(), descriptors, &handles, &db);
  if (!status.ok()) return status;
  // Compactions: what they rewrite has no reader that waits. Where the system knows no priorities, without.
  env_->LowerThreadPoolCPUPriority(rocksdb::Env::LOW, rocksdb::CpuPriority::kLow).PermitUncheckedError();
  db_.reset(db);
  std::copy(handles.begin() + 1, handles.end(), families_.begin());
  return db->DestroyColumnFamilyHandle(handles[0]);
}

// Looks without touching: a database that a newer kiln wrote must stay as it is. Whatever else is wrong
// here is left for the opening itself to say.
absl::Status RocksdbStore::CheckFormat() {
  if (!env_->FileExists(DatabasePath() + "/CURRENT").ok()) return absl::OkStatus();
  std::vector<std::string> present;
  if (!rocksdb::DB::ListColumnFamilies(db_options_, DatabasePath(), &present).ok()) return absl::OkStatus();
  std::set<std::string> known = {rocksdb::kDefaultColumnFamilyName};
  for (size_t kind = 0; kind < kEntryKinds; ++kind) known.insert(FamilyName(static_cast<EntryKind>(kind)));
  for (const std::string& name : present) {
    if (known.count(name) == 0) {
      return absl::FailedPreconditionError("the store was written by another version of kiln");
    }
  }
  rocksdb::Options look(db_options_, rocksdb::ColumnFamilyOptions());
  std::string meta = FamilyName(EntryKind::kMeta);
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  if (!rocksdb::DB::OpenForReadOnly(look, DatabasePath(),
                                    {{rocksdb::kDefaultColumnFamilyName, {}}, {meta, {}}}, &handles, &opened)
           .ok()) {
    return absl::OkStatus();
  }
  std::unique_ptr<rocksdb::DB> db(opened);
  std::string version;
  rocksdb::Status read = db->Get(rocksdb::ReadOptions(), handles[1], FormatKey(), &version);
  for (rocksdb::ColumnFamilyHandle* handle : handles) db->DestroyColumnFamilyHandle(handle);
  if (read.ok() && version != kFormatVersion && version != kFirstFormat) {
    return absl::FailedPreconditionError("the store has a format of another version of kiln");
  }
  return absl::OkStatus();
}

absl::Status RocksdbStore::SetAside() {
  std::vector<std::string> names;
  KILN_RETURN_IF_ERROR(FromRocksdb(env_->GetChildren(options_.directory, &names)));
  std::string target = absl::StrCat(kCorruptPrefix, options_.now_unix_seconds());
  while (std::find(names.begin(), names.end(), target) != names.end()) target += "x";
  // Not while another process has it open.
  rocksdb::FileLock* file_lock = nullptr;
  KILN_RETURN_IF_ERROR(FromRocksdb(env_->LockFile(DatabasePath() + "/LOCK", &file_lock)));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kCorruptPrefix)) continue;
    if (absl::Status gone = FromRocksdb(RemoveDirectory(env_, options_.directory + "/" + name)); !gone.ok()) {
      env_->UnlockFile(file_lock).PermitUncheckedError();
      return gone;
    }
  }
  KILN_RETURN_IF_ERROR(FromRocksdb(env_->UnlockFile(file_lock)));
  KILN_RETURN_IF_ERROR(
      FromRocksdb(env_->RenameFile(DatabasePath(), absl::StrCat(options_.directory, "/", target))));
  std::string note = options_.directory + "/" + kDamageNote;
  if (env_->FileExists(note).ok()) KILN_RETURN_IF_ERROR(FromRocksdb(env_->DeleteFile(note)));
  was_reset_ = true;
  return FromRocksdb(env_->CreateDirIfMissing(DatabasePath()));
}

absl::Status RocksdbStore::WriteFormat() {
  std::string version;
  rocksdb::Status read = db_->Get(rocksdb::ReadOptions(), Family(EntryKind::kMeta), FormatKey(), &version);
  if (read.ok() && version != kFormatVersion && version != kFirstFormat) {
    return absl::FailedPreconditionError("the store has a format of another version of kiln");
  }
  if (!read.ok() && !read.IsNotFound()) return absl::OkStatus();
  if (version == kFormatVersion || options_.read_only) return absl::OkStatus();
  rocksdb::WriteBatch batch;
  KILN_RETURN_IF_ERROR(FromRocksdb(batch.Put(Family(EntryKind::kMeta), FormatKey(), kFormatVersion)));
  return Commit(&batch, /*sync=*/true);
}

absl::Status RocksdbStore::LoadIndex() {
  // Once, in order, and of a family that nobody reads again: in long reads, past the cache.
  rocksdb::ReadOptions read;
  read.fill_cache = false;
  read.readahead_size = kIndexReadBytes;
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(read, Family(EntryKind::kUses)));
  UsageIndex read_index;
  std::vector<CatalogEntry> page;
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    absl::StatusOr<CatalogEntry> entry = UsageIndex::Decode(View(it->key()), View(it->value()));
    if (!entry.ok()) return RebuildIndex();
    page.push_back(*std::move(entry));
    if (page.size() < kIndexPage) continue;
    read_index.Add(std::move(page));
    page.clear();
  }
  read_index.Add(std::move(page));
  if (it->status().IsCorruption()) return RebuildIndex();
  KILN_RETURN_IF_ERROR(FromRocksdb(it->status()));
  index_.Swap(read_index);
  return absl::OkStatus();
}

// The records of uses are damaged: ages and pins are lost, the entries are not. Slow (reads all).
absl::Status RocksdbStore::RebuildIndex() {
  UsageIndex rebuilt;
  int64_t now = options_.now_unix_seconds();
  rocksdb::WriteBatch records;
  for (size_t i = 0; i < kEntryKinds; ++i) {
    EntryKind kind = static_cast<EntryKind>(i);
    if (kind == EntryKind::kUses) continue;
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(ReadOptions(), Family(kind)));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      if (View(it->key()) == FormatKey()) continue;
      EntryId id = {kind, it->key().ToString()};
      rebuilt.Set(rebuilt.AfterWrite(id, it->value().size(), now, /*rebuild_ms=*/0, /*compiler=*/0));
    }
    // Past a damaged block nothing is seen here; what lies there is found by its key, or recompiled.
  }
  index_.Swap(rebuilt);
  if (options_.read_only) return absl::OkStatus();
  rocksdb::ColumnFamilyHandle*& uses = families_[static_cast<size_t>(EntryKind::kUses)];
  rocksdb::ColumnFamilyDescriptor descriptor;
  KILN_RETURN_IF_ERROR(FromRocksdb(uses->GetDescriptor(&descriptor)));
  KILN_RETURN_IF_ERROR(FromRocksdb(db_->DropColumnFamily(uses)));
  KILN_RETURN_IF_ERROR(FromRocksdb(db_->DestroyColumnFamilyHandle(uses)));
  uses = nullptr;
  KILN_RETURN_IF_ERROR(FromRocksdb(db_->CreateColumnFamily(descriptor.options, descriptor.name, &uses)));
  for (size_t i = 0; i < kEntryKinds; ++i) {
    for (const CatalogEntry& entry : index_.Scan(static_cast<EntryKind>(i), "", 0, "")) {
      KILN_RETURN_IF_ERROR(
          FromRocksdb(records.Put(uses, UsageIndex::EncodeKey(entry.id), UsageIndex::EncodeRecord(entry))));
    }
  }
  return Commit(&records, /*sync=*/true);
}

// ---- Reading --------------------------------------------------------------------------------

absl::StatusOr<EntryValue> RocksdbStore::Get(const EntryId& id) {
  KILN_RETURN_IF_ERROR(CheckEntryId(id));
  rocksdb::Status status;
  {
    absl::ReaderMutexLock lock(&reading_);
    if (db_ == nullptr) return absl::UnavailableError("the store is being reopened");
    rocksdb::PinnableSlice value;
    status = db_->Get(ReadOptions(), Family(id.kind), Slice(id.key), &value);
    if (status.ok()) return MakeEntryValue(value.ToString());
  }
  if (status.IsNotFound() && index_.Contains(id)) ForgetGhost(id);
  // A file that is gone is damage to what lay in it.
  if (status.IsIOError() && status.IsPathNotFound()) return absl::DataLossError("a file is missing");
  return FromRocksdb(status);
}

// The index knows an entry that the database has lost: forget it, so that it is recompiled.
void RocksdbStore::ForgetGhost(const EntryId& id) {
  absl::MutexLock lock(&writing_);
  if (db_ == nullptr) return;
  rocksdb::PinnableSlice value;
  if (!db_->Get(ReadOptions(), Family(id.kind), Slice(id.key), &value).IsNotFound()) return;
  rocksdb::WriteBatch writes;
  writes.Delete(Family(EntryKind::kUses), UsageIndex::EncodeKey(id)).PermitUncheckedError();
  // On a disk that can't be written it is forgotten again after the next start.
  if (!options_.read_only) Write(&writes, /*sync=*/false).IgnoreError();
  index_.Erase(id);
}

absl::StatusOr<std::vector<EntryId>> RocksdbStore::FindMissing(absl::Span<const EntryId> ids) {
  std::vector<EntryId> missing;
  for (const EntryId& id : ids) {
    KILN_RETURN_IF_ERROR(CheckEntryId(id));
    if (!index_.Contains(id)) missing.push_back(id);
  }
  return missing;
}

absl::StatusOr<std::vector<CatalogEntry>> RocksdbStore::Scan(EntryKind kind, absl::string_view prefix,
                                                             size_t limit, absl::string_view after) const {
  return index_.Scan(kind, prefix, limit, after);
}

CatalogTotals RocksdbStore::Totals() const {
  CatalogTotals totals = index_.Totals();
  totals.bytes_on_disk = size_.Bytes();
  return totals;
}

// ---- Writing --------------------------------------------------------------------------------

absl::Status RocksdbStore::Write(rocksdb::WriteBatch* batch, bool sync) {
  if (options_.read_only) return absl::PermissionDeniedError("the store's directory can't be written");
  if (db_ == nullptr) return absl::UnavailableError("the store is being reopened");
  const absl::Status status = Commit(batch, sync);
  absl::MutexLock lock(&state_mutex_);
  write_state_ = status;
  return status;
}

absl::Status RocksdbStore::Commit(rocksdb::WriteBatch* batch, bool sync) {
  rocksdb::WriteOptions write;
  write.sync = sync && !options_.dangerously_no_sync;
  rocksdb::Status written = db_->Write(write, batch);
  absl::Status status = FromRocksdb(written);
  if (absl::IsDataLoss(status)) {
    NoteDamage();
    status = absl::UnavailableError("the store is damaged; the next start begins an empty one");
  }
  if (status.ok()) size_.Wrote(batch->GetDataSize());  // to the log, whose place a table takes later
  return status;
}

// After a failed write RocksDB takes no more. Its Resume gives up for good where the disk is still full and
// can wait for ever for a flush that nobody does (both seen with 7.8.3), so the database is reopened,
// once a file as big as what it had not flushed has shown that there is space.
absl::Status RocksdbStore::ReopenIfStopped() {
  if (options_.read_only) return absl::PermissionDeniedError("the store's directory can't be written");
  if (write_state().ok()) return absl::OkStatus();
  absl::MutexLock writing(&writing_);
  const MonotonicTime now = MonotonicNow();
  if (write_state().ok() || now < next_reopening_) return write_state();
  next_reopening_ = now + kBetweenReopenings;
  absl::Status status;
  {
    absl::ReaderMutexLock reading(&reading_);
    status = ProbeSpace();
    // A Reclaim would be waited for, for minutes.
    if (status.ok() && db_ != nullptr) db_->DisableManualCompaction();
  }
  if (status.ok()) {
    absl::MutexLock reading(&reading_);
    CloseDatabase();
    status = OpenAndLoad();
    if (!status.ok()) {
      // What can't be read is not promised: it is recompiled meanwhile.
      CloseDatabase();
      UsageIndex nothing;
      index_.Swap(nothing);
    }
  }
  absl::MutexLock lock(&state_mutex_);
  write_state_ = status;
  return status;
}

absl::Status RocksdbStore::ProbeSpace() {
  uint64_t unflushed = 0;
  if (db_ != nullptr)
    db_->GetAggregatedIntProperty(rocksdb::DB::Properties::kCurSizeAllMemTables, &unflushed);
  std::string path = options_.directory + "/probe";
  std::unique_ptr<rocksdb::WritableFile> file;
  rocksdb::Status status = env_->NewWritableFile(path, &file, rocksdb::EnvOptions());
  if (!status.ok()) return FromRocksdb(status);
  std::string chunk(1u << 20, 'p');
  for (uint64_t written = 0; status.ok() && written <= unflushed; written += chunk.size()) {
    status = file->Append(chunk);
  }
  if (status.ok()) status = file->Sync();
  file->Close().PermitUncheckedError();
  env_->DeleteFile(path).PermitUncheckedError();
  return FromRocksdb(status);
}

// RocksDB met damage while it reorganised files and takes no more writes. Reads go on; the next opening
// sets the database aside, which it would not do by itself.
void RocksdbStore::NoteDamage() {
  std::unique_ptr<rocksdb::WritableFile> note;
  rocksdb::Status made =
      env_->NewWritableFile(options_.directory + "/" + kDamageNote, &note, rocksdb::EnvOptions());
  if (made.ok()) note->Close().PermitUncheckedError();
}

void RocksdbStore::AddUses(size_t limit, rocksdb::WriteBatch* batch) {
  for (const CatalogEntry& entry : index_.TakeUnwritten(limit)) {
    batch->Put(Family(EntryKind::kUses), UsageIndex::EncodeKey(entry.id), UsageIndex::EncodeRecord(entry))
        .PermitUncheckedError();
  }
}

absl::Status RocksdbStore::Put(absl::Span<const Entry> batch) {
  KILN_RETURN_IF_ERROR(CheckBatch(batch));
  if (batch.empty()) return absl::OkStatus();
  KILN_RETURN_IF_ERROR(ReopenIfStopped());
  absl::ReaderMutexLock lock(&writing_);
  rocksdb::WriteBatch writes;
  std::vector<CatalogEntry> records;
  AddUses(kUsesWithABatch, &writes);
  int64_t now = options_.now_unix_seconds();
  for (const Entry& entry : batch) {
    records.push_back(
        index_.AfterWrite(entry.id, entry.value->size(), now, entry.rebuild_ms, compiler_.load()));
    KILN_RETURN_IF_ERROR(
        FromRocksdb(writes.Put(Family(entry.id.kind), Slice(entry.id.key), Slice(*entry.value))));
    KILN_RETURN_IF_ERROR(FromRocksdb(writes.Put(Family(EntryKind::kUses), UsageIndex::EncodeKey(entry.id),
                                                UsageIndex::EncodeRecord(records.back()))));
  }
  KILN_RETURN_IF_ERROR(Write(&writes, /*sync=*/true));
  for (const CatalogEntry& record : records) index_.Set(record);
  return absl::OkStatus();
}

absl::Status RocksdbStore::Delete(absl::Span<const EntryId> ids) {
  for (const EntryId& id : ids) KILN_RETURN_IF_ERROR(CheckEntryId(id));
  if (ids.empty()) return absl::OkStatus();
  KILN_RETURN_IF_ERROR(ReopenIfStopped());
  absl::MutexLock lock(&writing_);
  rocksdb::WriteBatch writes;
  for (const EntryId& id : ids) {
    KILN_RETURN_IF_ERROR(FromRocksdb(writes.Delete(Family(id.kind), Slice(id.key))));
    KILN_RETURN_IF_ERROR(FromRocksdb(writes.Delete(Family(EntryKind::kUses), UsageIndex::EncodeKey(id))));
  }
  KILN_RETURN_IF_ERROR(Write(&writes, /*sync=*/true));
  for (const EntryId& id : ids) index_.Erase(id);
  return absl::OkStatus();
}

void RocksdbStore::RecordUse(const EntryId& id) {
  if (index_.RecordUse(id, options_.now_unix_seconds()) < kUsesUnwrittenMax) return;
  if (uses_writer_ != nullptr) uses_writer_->ThereAreMany();
}

void RocksdbStore::WriteUses() {
  if (!write_state().ok()) return;
  absl::ReaderMutexLock lock(&writing_);
  rocksdb::WriteBatch uses;
  AddUses(kUsesWrittenMax, &uses);
  // Uses are advice: on a full or failing disk they are forgotten.
  if (uses.Count() > 0) Write(&uses, /*sync=*/false).IgnoreError();
}

absl::Status RocksdbStore::SetPinned(const EntryId& id, bool pinned) {
  KILN_RETURN_IF_ERROR(CheckEntryId(id));
  KILN_RETURN_IF_ERROR(ReopenIfStopped());
  absl::MutexLock lock(&writing_);
  KILN_ASSIGN_OR_RETURN(CatalogEntry entry, index_.Find(id));
  entry.pinned = pinned;
  rocksdb::WriteBatch writes;
  KILN_RETURN_IF_ERROR(FromRocksdb(
      writes.Put(Family(EntryKind::kUses), UsageIndex::EncodeKey(id), UsageIndex::EncodeRecord(entry))));
  KILN_RETURN_IF_ERROR(Write(&writes, /*sync=*/true));
  index_.Set(entry);
  return absl::OkStatus();
}

absl::Status RocksdbStore::write_state() const {
  if (options_.read_only) return absl::PermissionDeniedError("the store's directory can't be written");
  absl::MutexLock lock(&state_mutex_);
  return write_state_;
}

// Rewrites blob files an eighth at a time, oldest first, so that the disk never holds all twice.
absl::Status RocksdbStore::Reclaim(std::atomic<bool>* canceled) {
  if (options_.read_only) return absl::PermissionDeniedError("the store's directory can't be written");
  absl::ReaderMutexLock lock(&reading_);
  if (db_ == nullptr) return absl::UnavailableError("the store is being reopened");
  rocksdb::CompactRangeOptions compact;
  compact.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  compact.canceled = canceled;
  for (size_t i = 0; i < kEntryKinds; ++i) {
    EntryKind kind = static_cast<EntryKind>(i);
    if (kind != EntryKind::kObject) {
      KILN_RETURN_IF_ERROR(FromRocksdb(db_->CompactRange(compact, Family(kind), nullptr, nullptr)));
    }
  }
  compact.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  compact.blob_garbage_collection_policy = rocksdb::BlobGarbageCollectionPolicy::kForce;
  for (int left = 8; left > 0; --left) {
    compact.blob_garbage_collection_age_cutoff = 1.0 / left;
    KILN_RETURN_IF_ERROR(
        FromRocksdb(db_->CompactRange(compact, Family(EntryKind::kObject), nullptr, nullptr)));
    // The first pass has counted what is garbage, and dropped files that are nothing else.
    uint64_t garbage = 0, all = 0;
    db_->GetIntProperty(Family(EntryKind::kObject), rocksdb::DB::Properties::kLiveBlobFileGarbageSize,
                        &garbage);
    db_->GetIntProperty(Family(EntryKind::kObject), rocksdb::DB::Properties::kLiveBlobFileSize, &all);
    if (garbage <= all / 32) break;
  }
  size_.Invalidate();
  return absl::OkStatus();
}

}  // namespace kiln
