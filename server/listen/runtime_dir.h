// The lock that says whose a daemon's socket is; its directory is MakePrivateDirectory's.
//
// Only the holder of the lock unlinks and binds the socket. It is held for life by an open
// descriptor, so it goes with the process, however that ends.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace kiln {

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
