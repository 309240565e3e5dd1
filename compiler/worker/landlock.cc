#include "compiler/worker/landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// What headers older than the kernel lack.
constexpr uint64_t kRefer = 1u << 13, kTruncate = 1u << 14, kIoctlDevice = 1u << 15;
constexpr uint64_t kBindTcp = 1u << 0, kConnectTcp = 1u << 1;
constexpr uint64_t kScopeAbstractSockets = 1u << 0, kScopeSignals = 1u << 1;
struct RulesetAttributes {
  uint64_t files = 0, network = 0, scopes = 0;
};

constexpr uint64_t kReading = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr uint64_t kOfFiles =  // a rule for what is no directory may name no other
    LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate | kIoctlDevice;
constexpr uint64_t kOldest = (1u << 13) - 1;  // of the first version

absl::Status Errno(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::Status Allow(int ruleset, const FileTree& tree, uint64_t handled) {
  const int place = open(tree.path.c_str(), O_PATH | O_CLOEXEC);
  if (place < 0) return absl::OkStatus();
  const absl::Cleanup closed = [place] { close(place); };
  struct stat facts = {};
  if (fstat(place, &facts) != 0) return Errno(tree.path);
  landlock_path_beneath_attr rule = {};
  rule.parent_fd = place;
  rule.allowed_access = tree.writable ? handled : handled & kReading;
  if (!S_ISDIR(facts.st_mode)) rule.allowed_access &= kOfFiles;
  if (syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0) {
    return absl::OkStatus();
  }
  return Errno(tree.path);
}

}  // namespace

absl::Status RestrictFiles(absl::Span<const FileTree> allowed) {
  const long version = syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (version < 1) {
    return absl::UnimplementedError(
        absl::StrCat("the kernel has no Landlock, or the host forbids it: ", strerror(errno)));
  }
  RulesetAttributes attributes;
  size_t size = sizeof(uint64_t);
  attributes.files = kOldest;
  if (version >= 2) attributes.files |= kRefer;
  if (version >= 3) attributes.files |= kTruncate;
  if (version >= 5) attributes.files |= kIoctlDevice;
  if (version >= 4) {
    attributes.network = kBindTcp | kConnectTcp;
    size = 2 * sizeof(uint64_t);
  }
  if (version >= 6) {
    attributes.scopes = kScopeAbstractSockets | kScopeSignals;
    size = sizeof(attributes);
  }
  const int ruleset = static_cast<int>(syscall(SYS_landlock_create_ruleset, &attributes, size, 0));
  if (ruleset < 0) return Errno("landlock_create_ruleset");
  const absl::Cleanup closed = [ruleset] { close(ruleset); };
  for (const FileTree& tree : allowed) KILN_RETURN_IF_ERROR(Allow(ruleset, tree, attributes.files));
  return syscall(SYS_landlock_restrict_self, ruleset, 0) == 0 ? absl::OkStatus()
                                                              : Errno("landlock_restrict_self");
}

}  // namespace kiln
