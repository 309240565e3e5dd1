// A file system with faults, for RocksDB. It keeps apart what has not been synced: PowerLoss() takes
// it away as a power cut does: bytes after the last sync (all of them, or all but a torn prefix), files
// whose directory entry was not synced, renames that were not. It can die in the middle (every later
// operation fails, until PowerLoss), be full (appends and new files fail with ENOSPC), and fail one sync
// (with EIO; as under a real kernel, what that sync was to write is given up, and no later sync brings it
// back). Works over another file system, in the tests one in memory. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "rocksdb/env.h"
#include "rocksdb/file_system.h"

namespace kiln {

class FaultFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit FaultFileSystem(const std::shared_ptr<rocksdb::FileSystem>& target) : FileSystemWrapper(target) {}
  const char* Name() const override { return "FaultFileSystem"; }

  // The n-th operation that changes anything, counted from now, and all after it fail. 0: never.
  void DieAt(int64_t n) { operations_until_death_ = n == 0 ? -1 : n; }
  bool dead() const { return operations_until_death_ == 0; }
  // The n-th append or new file, counted from now, and all after it fail for want of space. 0: never.
  void FillUpAt(int64_t n) { appends_until_full_ = n == 0 ? -1 : n; }
  bool full() const { return appends_until_full_ == 0; }
  // The n-th sync of a file, counted from now, fails; those after it do not. 0: none.
  void FailSyncAt(int64_t n) { syncs_until_failure_ = n == 0 ? -1 : n; }
  bool sync_failed() const { return syncs_until_failure_ == 0; }
  // Takes away what was not synced, and is alive again.
  void PowerLoss(uint64_t seed);
  uint64_t bytes_lost() const { return bytes_lost_; }

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* context) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* file,
                                       rocksdb::IODebugContext* context) override;
  rocksdb::IOStatus NewDirectory(const std::string& path, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* directory,
                                 rocksdb::IODebugContext* context) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options, rocksdb::IODebugContext* context) override;
  rocksdb::IOStatus DeleteFile(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* context) override;
  rocksdb::IOStatus GetFreeSpace(const std::string& path, const rocksdb::IOOptions& options, uint64_t* bytes,
                                 rocksdb::IODebugContext* context) override;

 private:
  friend class FaultFile;
  friend class FaultDirectory;

  struct Rename {
    std::string from;
    std::string to;
    bool replaced;             // there was a file of the new name, with
    std::string old_contents;  // these bytes
  };

  rocksdb::IOStatus Operate();                          // an error once dead
  rocksdb::IOStatus TakeSpace();                        // an error once full
  rocksdb::IOStatus TakeSync(const std::string& path);  // an error for the one that fails
  void SyncedTo(const std::string& path, uint64_t size);
  void Appended(const std::string& path, uint64_t bytes);
  void SyncedDirectory(const std::string& path);
  void UndoRename(const Rename& rename);
  std::string ReadAll(const std::string& path);
  void WriteAll(const std::string& path, const std::string& contents);

  std::atomic<int64_t> operations_until_death_{-1};
  std::atomic<int64_t> appends_until_full_{-1};
  std::atomic<int64_t> syncs_until_failure_{-1};
  std::atomic<uint64_t> bytes_lost_{0};

  std::mutex mutex_;
  struct Length {
    uint64_t synced = 0;
    uint64_t written = 0;
    bool given_up = false;  // a sync failed: nothing after `synced` is ever durable
  };
  std::map<std::string, Length> lengths_;   // of files opened for writing since the last power loss
  std::set<std::string> unsynced_entries_;  // files whose directory was not synced since they were made
  std::vector<Rename> unsynced_renames_;
};

}  // namespace kiln
