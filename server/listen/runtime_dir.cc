#include "server/listen/runtime_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace kiln {

absl::Status PrepareDirectory(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return absl::PermissionDeniedError(absl::StrCat("make directory ", part, ": ", strerror(errno)));
    }
    if (slash == std::string::npos) break;
  }
  struct stat facts;
  if (lstat(path.c_str(), &facts) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("directory ", path, ": ", strerror(errno)));
  }
  if (!S_ISDIR(facts.st_mode)) return absl::PermissionDeniedError(absl::StrCat(path, " is no directory"));
  if (facts.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("directory ", path, " belongs to another user"));
  }
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("directory ", path, " may be written by others"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FileLock>> FileLock::Acquire(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return absl::PermissionDeniedError(absl::StrCat("open lock ", path, ": ", strerror(errno)));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    close(fd);
    if (error == EWOULDBLOCK) return absl::AlreadyExistsError(absl::StrCat("another kilnd holds ", path));
    return absl::UnavailableError(absl::StrCat("lock ", path, ": ", strerror(error)));
  }
  return std::unique_ptr<FileLock>(new FileLock(fd));
}

FileLock::~FileLock() { close(fd_); }

}  // namespace kiln
