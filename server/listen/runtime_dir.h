// The directory of a daemon's socket, and the lock that says whose it is.
//
// Only the holder of the lock unlinks and binds the socket. It is held for life by an open
// descriptor, so it goes with the process, however that ends.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kiln {

// Makes `path` (0700, with its parents) if it is not there. PERMISSION_DENIED for one that belongs to
// somebody else, that others may write, or that is no directory.
absl::Status PrepareDirectory(const std::string& path);

class FileLock {
 public:
  // ALREADY_EXISTS when another process holds it.
  static absl::StatusOr<std::unique_ptr<FileLock>> Acquire(const std::string& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace kiln
