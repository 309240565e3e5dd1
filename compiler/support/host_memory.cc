#include "compiler/support/host_memory.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

constexpr char kGroups[] = "/sys/fs/cgroup";

// Of "0::/a/b" the "/a/b"; "/" becomes "". Nothing where there is no group of version 2.
std::optional<std::string> GroupOfSelf(const std::string& root) {
  std::ifstream file(absl::StrCat(root, "/proc/self/cgroup"));
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "0::/")) return line == "0::/" ? "" : line.substr(3);
  }
  return std::nullopt;
}

}  // namespace

uint64_t HostMemoryBytes(const std::string& root) {
  uint64_t bytes = UINT64_MAX;
  std::ifstream machine(absl::StrCat(root, "/proc/meminfo"));
  std::string name;
  if (uint64_t kib = 0; machine >> name >> kib && name == "MemTotal:") bytes = kib << 10;
  // A group's limit is also that of all below it.
  for (std::optional<std::string> group = GroupOfSelf(root); group.has_value();) {
    std::ifstream file(absl::StrCat(root, kGroups, *group, "/memory.max"));
    if (uint64_t limit = 0; file >> limit) bytes = std::min(bytes, limit);  // "max" is no number
    if (group->empty()) break;
    group->resize(group->rfind('/'));
  }
  return bytes;
}

std::optional<uint64_t> OomKills(const std::string& root) {
  const std::optional<std::string> group = GroupOfSelf(root);
  if (!group.has_value()) return std::nullopt;
  std::ifstream file(absl::StrCat(root, kGroups, *group, "/memory.events"));
  std::string name;
  for (uint64_t count = 0; file >> name >> count;) {
    if (name == "oom_kill") return count;
  }
  return std::nullopt;
}

}  // namespace kiln
