#include "cache/chain/old_stores.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBuildDigitsMin = 16;

bool IsBuildName(const std::string& name) {
  return name.size() >= kBuildDigitsMin && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool IsOwnDirectory(const fs::path& path) {
  struct stat facts;
  return lstat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == geteuid();
}

// When a file of the database was last written; opening one writes its log. INT64_MAX where that is not
// known.
int64_t LastWritten(const fs::path& database) {
  int64_t last = 0;
  std::error_code error;
  for (fs::directory_iterator it(database, error), end; !error && it != end; it.increment(error)) {
    struct stat facts;
    if (lstat(it->path().c_str(), &facts) != 0) return INT64_MAX;
    last = std::max<int64_t>(last, facts.st_mtim.tv_sec);
  }
  return error || last == 0 ? INT64_MAX : last;
}

// The lock that an open RocksDB holds. While this lives nobody can open the database.
class DatabaseLock {
 public:
  explicit DatabaseLock(const fs::path& path) : file_(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW)) {
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    held_ = file_ >= 0 && fcntl(file_, F_SETLK, &whole) == 0;
  }
  ~DatabaseLock() {
    if (file_ >= 0) close(file_);
  }
  DatabaseLock(const DatabaseLock&) = delete;
  DatabaseLock& operator=(const DatabaseLock&) = delete;
  bool held() const { return held_; }

 private:
  const int file_;
  bool held_ = false;
};

bool RemoveIfOld(const fs::path& store, int64_t now) {
  const fs::path database = store / "db";
  std::error_code error;
  if (!IsOwnDirectory(store) || !IsOwnDirectory(database) || !fs::exists(database / "CURRENT", error)) {
    return false;
  }
  const int64_t last = LastWritten(database);
  if (last > now || now - last < kOldStoreSeconds) return false;
  const DatabaseLock lock(database / "LOCK");
  if (!lock.held()) return false;
  fs::remove_all(store, error);
  return !error;
}

}  // namespace

size_t RemoveOldStores(const std::string& store, int64_t now_unix_seconds) {
  const fs::path own(store);
  const std::string name = own.filename().string();
  if (!IsBuildName(name)) return 0;
  std::error_code error;
  size_t removed = 0;
  for (fs::directory_iterator it(own.parent_path(), error), end; !error && it != end; it.increment(error)) {
    const std::string other = it->path().filename().string();
    if (other == name || other.size() != name.size() || !IsBuildName(other)) continue;
    removed += RemoveIfOld(it->path(), now_unix_seconds) ? 1 : 0;
  }
  return removed;
}

}  // namespace kiln
