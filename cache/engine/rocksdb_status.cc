#include "cache/engine/rocksdb_status.h"

#include <string>

#include "absl/strings/match.h"

namespace kiln {
namespace {

bool Mentions(const rocksdb::Status& status, absl::string_view text) {
  return absl::StrContains(status.ToString(), text);
}

bool IsPermission(const rocksdb::Status& status) {
  return Mentions(status, "Permission denied") || Mentions(status, "Operation not permitted") ||
         Mentions(status, "Read-only file system");
}

bool IsNoSpace(const rocksdb::Status& status) {
  return status.IsNoSpace() || status.subcode() == rocksdb::Status::kSpaceLimit ||
         Mentions(status, "No space left on device") || Mentions(status, "Disk quota exceeded");
}

bool IsLocked(const rocksdb::Status& status) {
  return Mentions(status, "While lock file") || Mentions(status, "lock hold by current process");
}

}  // namespace

absl::Status FromRocksdb(const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (status.IsNotFound()) return absl::NotFoundError("not on disk");
  if (IsNoSpace(status)) return absl::ResourceExhaustedError("no space left in the store's directory");
  if (IsPermission(status)) return absl::PermissionDeniedError("the store's directory can't be written");
  if (IsLocked(status)) return absl::AbortedError("the store is in use by another process");
  if (status.IsCorruption()) return absl::DataLossError("damaged data on disk");
  if (status.IsMemoryLimit()) return absl::ResourceExhaustedError("the store is out of memory");
  if (status.IsManualCompactionPaused()) return absl::CancelledError("compaction stopped");
  if (status.IsInvalidArgument() || status.IsNotSupported()) {
    return absl::InternalError("the database refused an operation");
  }
  return absl::UnavailableError("the store's disk answers with an error");
}

bool IsDamage(const rocksdb::Status& status) {
  if (status.ok() || IsNoSpace(status) || IsPermission(status) || IsLocked(status)) return false;
  return status.IsCorruption() || status.IsNotFound() || (status.IsIOError() && status.IsPathNotFound());
}

bool IsIncompatible(const rocksdb::Status& status) {
  return (status.IsInvalidArgument() || status.IsNotSupported()) && !IsLocked(status) &&
         !IsPermission(status);
}

}  // namespace kiln
