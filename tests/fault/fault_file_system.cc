#include "tests/fault/fault_file_system.h"

#include <algorithm>
#include <utility>

namespace kiln {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

namespace {

std::string ParentOf(const std::string& path) { return path.substr(0, path.find_last_of('/')); }

}  // namespace

class FaultFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultFile(std::unique_ptr<rocksdb::FSWritableFile>&& target, std::string path, FaultFileSystem* system)
      : FSWritableFileOwnerWrapper(std::move(target)), path_(std::move(path)), system_(system) {}

  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options, IODebugContext* context) override {
    IOStatus status = system_->Operate();
    if (status.ok()) status = system_->TakeSpace();
    if (!status.ok()) return status;
    status = FSWritableFileOwnerWrapper::Append(data, options, context);
    if (status.ok()) system_->Appended(path_, data.size());
    return status;
  }
  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* context) override {
    return Append(data, options, context);
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* context) override {
    IOStatus status = system_->Operate();
    if (!status.ok()) return status;
    status = system_->TakeSync(path_);
    if (!status.ok()) return status;
    uint64_t size = GetFileSize(options, context);
    status = FSWritableFileOwnerWrapper::Sync(options, context);
    if (status.ok()) system_->SyncedTo(path_, size);
    return status;
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* context) override {
    return Sync(options, context);
  }
  IOStatus RangeSync(uint64_t, uint64_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();  // promises nothing about a power loss
  }

 private:
  const std::string path_;
  FaultFileSystem* const system_;
};

class FaultDirectory : public rocksdb::FSDirectory {
 public:
  FaultDirectory(std::unique_ptr<rocksdb::FSDirectory>&& target, std::string path, FaultFileSystem* system)
      : target_(std::move(target)), path_(std::move(path)), system_(system) {}

  IOStatus Fsync(const IOOptions& options, IODebugContext* context) override {
    IOStatus status = system_->Operate();
    if (!status.ok()) return status;
    system_->SyncedDirectory(path_);
    return target_->Fsync(options, context);
  }
  IOStatus Close(const IOOptions& options, IODebugContext* context) override {
    return target_->Close(options, context);
  }

 private:
  const std::unique_ptr<rocksdb::FSDirectory> target_;
  const std::string path_;
  FaultFileSystem* const system_;
};

IOStatus FaultFileSystem::Operate() {
  int64_t left = operations_until_death_;
  while (left > 0) {
    if (operations_until_death_.compare_exchange_weak(left, left - 1)) return IOStatus::OK();
  }
  if (left == 0) return IOStatus::IOError("simulated power loss");
  return IOStatus::OK();
}

IOStatus FaultFileSystem::TakeSpace() {
  int64_t left = appends_until_full_;
  while (left > 0) {
    if (appends_until_full_.compare_exchange_weak(left, left - 1)) return IOStatus::OK();
  }
  if (left == 0) return IOStatus::NoSpace("simulated full disk");
  return IOStatus::OK();
}

IOStatus FaultFileSystem::TakeSync(const std::string& path) {
  int64_t left = syncs_until_failure_;
  while (left > 0 && !syncs_until_failure_.compare_exchange_weak(left, left - 1)) {
  }
  if (left != 1) return IOStatus::OK();
  std::lock_guard<std::mutex> lock(mutex_);
  lengths_[path].given_up = true;
  return IOStatus::IOError("simulated error of a sync");
}

void FaultFileSystem::Appended(const std::string& path, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  lengths_[path].written += bytes;
}

void FaultFileSystem::SyncedTo(const std::string& path, uint64_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  Length& length = lengths_[path];
  if (length.given_up) return;
  length.synced = std::max(length.synced, std::min(size, length.written));
}

void FaultFileSystem::SyncedDirectory(const std::string& path) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = unsynced_entries_.begin(); it != unsynced_entries_.end();) {
    it = ParentOf(*it) == path ? unsynced_entries_.erase(it) : std::next(it);
  }
  auto in_here = [&](const Rename& rename) { return ParentOf(rename.to) == path; };
  unsynced_renames_.erase(std::remove_if(unsynced_renames_.begin(), unsynced_renames_.end(), in_here),
                          unsynced_renames_.end());
}

IOStatus FaultFileSystem::NewWritableFile(const std::string& path, const FileOptions& options,
                                          std::unique_ptr<rocksdb::FSWritableFile>* file,
                                          IODebugContext* context) {
  IOStatus status = Operate();
  if (status.ok()) status = TakeSpace();
  if (!status.ok()) return status;
  std::unique_ptr<rocksdb::FSWritableFile> target;
  status = FileSystemWrapper::NewWritableFile(path, options, &target, context);
  if (!status.ok()) return status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lengths_[path] = {};
    unsynced_entries_.insert(path);
  }
  *file = std::make_unique<FaultFile>(std::move(target), path, this);
  return status;
}

IOStatus FaultFileSystem::ReopenWritableFile(const std::string& path, const FileOptions& options,
                                             std::unique_ptr<rocksdb::FSWritableFile>* file,
                                             IODebugContext* context) {
  IOStatus status = Operate();
  if (!status.ok()) return status;
  std::unique_ptr<rocksdb::FSWritableFile> target;
  status = FileSystemWrapper::ReopenWritableFile(path, options, &target, context);
  if (!status.ok()) return status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    uint64_t size = target->GetFileSize(IOOptions(), nullptr);
    lengths_.try_emplace(path, Length{size, size});
  }
  *file = std::make_unique<FaultFile>(std::move(target), path, this);
  return status;
}

IOStatus FaultFileSystem::NewDirectory(const std::string& path, const IOOptions& options,
                                       std::unique_ptr<rocksdb::FSDirectory>* directory,
                                       IODebugContext* context) {
  std::unique_ptr<rocksdb::FSDirectory> target;
  IOStatus status = FileSystemWrapper::NewDirectory(path, options, &target, context);
  if (status.ok()) *directory = std::make_unique<FaultDirectory>(std::move(target), path, this);
  return status;
}

IOStatus FaultFileSystem::RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                                     IODebugContext* context) {
  IOStatus status = Operate();
  if (!status.ok()) return status;
  std::lock_guard<std::mutex> lock(mutex_);
  Rename rename = {from, to, target()->FileExists(to, options, context).ok(), ""};
  if (rename.replaced) rename.old_contents = ReadAll(to);
  status = FileSystemWrapper::RenameFile(from, to, options, context);
  if (!status.ok()) return status;
  auto length = lengths_.extract(from);
  lengths_.erase(to);
  if (!length.empty()) {
    length.key() = to;
    lengths_.insert(std::move(length));
  }
  unsynced_renames_.push_back(std::move(rename));
  return status;
}

IOStatus FaultFileSystem::DeleteFile(const std::string& path, const IOOptions& options,
                                     IODebugContext* context) {
  IOStatus status = Operate();
  if (!status.ok()) return status;
  std::lock_guard<std::mutex> lock(mutex_);
  lengths_.erase(path);
  unsynced_entries_.erase(path);
  return FileSystemWrapper::DeleteFile(path, options, context);
}

IOStatus FaultFileSystem::GetFreeSpace(const std::string& path, const IOOptions& options, uint64_t* bytes,
                                       IODebugContext* context) {
  *bytes = full() ? 0 : uint64_t{1} << 40;
  return IOStatus::OK();
}

std::string FaultFileSystem::ReadAll(const std::string& path) {
  std::string contents;
  rocksdb::ReadFileToString(target(), path, &contents).PermitUncheckedError();
  return contents;
}

void FaultFileSystem::WriteAll(const std::string& path, const std::string& contents) {
  rocksdb::WriteStringToFile(target(), contents, path, /*should_sync=*/true).PermitUncheckedError();
}

void FaultFileSystem::UndoRename(const Rename& rename) {
  target()->RenameFile(rename.to, rename.from, IOOptions(), nullptr).PermitUncheckedError();
  auto length = lengths_.extract(rename.to);
  if (!length.empty()) {
    length.key() = rename.from;
    lengths_.insert(std::move(length));
  }
  if (rename.replaced) WriteAll(rename.to, rename.old_contents);
}

void FaultFileSystem::PowerLoss(uint64_t seed) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::mt19937_64 random(seed);
  for (auto rename = unsynced_renames_.rbegin(); rename != unsynced_renames_.rend(); ++rename) {
    UndoRename(*rename);
  }
  for (const auto& [path, length] : lengths_) {
    if (unsynced_entries_.count(path) != 0 || length.written <= length.synced) continue;
    std::string contents = ReadAll(path);
    uint64_t unsynced = contents.size() - std::min<uint64_t>(contents.size(), length.synced);
    uint64_t kept = random() % 2 == 0 ? 0 : random() % (unsynced + 1);
    bytes_lost_ += unsynced - kept;
    contents.resize(contents.size() - unsynced + kept);
    WriteAll(path, contents);
  }
  for (const std::string& path : unsynced_entries_) {
    target()->DeleteFile(path, IOOptions(), nullptr).PermitUncheckedError();
  }
  lengths_.clear();
  unsynced_entries_.clear();
  unsynced_renames_.clear();
  operations_until_death_ = -1;
  syncs_until_failure_ = -1;
}

}  // namespace kiln
