#include "compiler/support/private_directory.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

absl::Status Errno(absl::string_view what, const std::string& path) {
  const std::string message = absl::StrCat(what, " ", path, ": ", strerror(errno));
  const bool full = errno == ENOSPC || errno == EDQUOT;
  return full ? absl::ResourceExhaustedError(message) : absl::PermissionDeniedError(message);
}

absl::Status Refusal(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(path, " ", why));
}

bool OursOrRoots(const struct stat& facts) { return facts.st_uid == geteuid() || facts.st_uid == 0; }

// A network file system or an automounter may answer EACCES or EROFS for a directory that is there.
bool MadeOrThere(const fs::path& part) {
  if (mkdir(part.c_str(), 0700) == 0 || errno == EEXIST) return true;
  const int error = errno;
  struct stat facts;
  const bool there = stat(part.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
  errno = error;
  return there;
}

absl::Status MakeWithParents(const fs::path& path) {
  fs::path part;
  for (const fs::path& name : path) {
    part /= name;
    if (!MadeOrThere(part)) return Errno("make directory", part);
  }
  return absl::OkStatus();
}

// Absolute, without "." and without a slash at the end. ".." stays: behind a link it leads where the link's
// target lies.
fs::path Whole(const fs::path& path) {
  fs::path whole;
  for (const fs::path& name : fs::absolute(path)) {
    if (!name.empty() && name != ".") whole /= name;
  }
  return whole;
}

// The names of a path, the first one last.
void PushNames(const fs::path& path, std::vector<fs::path>* names) {
  const std::vector<fs::path> parts(path.begin(), path.end());
  names->insert(names->end(), parts.rbegin(), parts.rend());
}

// Goes down to `directory` as the kernel does, link by link.
absl::Status CheckTheWayTo(const fs::path& directory) {
  std::vector<fs::path> names;
  PushNames(directory, &names);
  fs::path at;
  bool everybody_writes = false;
  for (int links = 0; !names.empty();) {
    const fs::path name = names.back();
    names.pop_back();
    if (name.empty() || name == ".") continue;
    // Nobody but who may write a directory can have put something in it; what is above it is not in it.
    const bool plantable = everybody_writes && name != ".." && !name.is_absolute();
    fs::path next = name == ".." ? at.parent_path() : at / name;
    struct stat facts;
    if (lstat(next.c_str(), &facts) != 0) return Errno("directory", next);
    if (S_ISLNK(facts.st_mode)) {
      if (plantable && !OursOrRoots(facts)) {
        return Refusal(next, "is a link of another user's; name the directory itself");
      }
      std::error_code error;
      const fs::path target = fs::read_symlink(next, error);
      if (error || ++links > kPathLinksMax) return Refusal(next, "is a link that leads nowhere");
      PushNames(target, &names);
      continue;
    }
    if (plantable && !OursOrRoots(facts)) {
      return Refusal(next, "belongs to another user; remove it, or name another directory");
    }
    everybody_writes = (facts.st_mode & S_IWOTH) != 0;
    if (everybody_writes && (facts.st_mode & S_ISVTX) == 0) {
      return Refusal(next, "can be written by everybody (chmod o-w)");
    }
    at = next;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakePrivateDirectory(const std::string& path) {
  const fs::path whole = Whole(path);
  KILN_RETURN_IF_ERROR(MakeWithParents(whole));
  KILN_RETURN_IF_ERROR(CheckTheWayTo(whole.parent_path()));
  struct stat facts;
  if (lstat(whole.c_str(), &facts) != 0) return Errno("directory", whole);
  if (S_ISLNK(facts.st_mode)) return Refusal(whole, "is a link; name the directory itself");
  if (!S_ISDIR(facts.st_mode)) return Refusal(whole, "is no directory");
  if (facts.st_uid != geteuid()) return Refusal(whole, "belongs to another user");
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Refusal(whole, "can be written by others (chmod go-w)");
  }
  return absl::OkStatus();
}

}  // namespace kiln
