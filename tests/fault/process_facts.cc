#include "tests/fault/process_facts.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "compiler/worker/namespaces.h"

namespace kiln {

std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> pids;
  std::ifstream list(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
  for (pid_t child; list >> child;) pids.push_back(child);
  return pids;
}

std::vector<ProcessFacts> MembersOf(pid_t session) {
  std::vector<ProcessFacts> members;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    ProcessFacts facts;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &facts.pid)) continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;  // it has ended meanwhile
    // "pid (name) state parent group session …": a name may hold anything, so what follows the last bracket.
    const std::vector<std::string> words = absl::StrSplit(line.substr(line.rfind(')') + 2), ' ');
    pid_t its_session = -1;
    if (words.size() < 17 || !absl::SimpleAtoi(words[3], &its_session) || its_session != session) continue;
    facts.state = words[0][0];
    if (!absl::SimpleAtoi(words[1], &facts.parent) || !absl::SimpleAtoi(words[16], &facts.niceness)) continue;
    const bool first = absl::StrContains(line, absl::StrCat("(", kFirstProcess, ")"));
    if (facts.pid != session && !first) members.push_back(facts);
  }
  return members;
}

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  uint64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t PeakResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; file >> word;) {
    uint64_t kib = 0;
    if (word == "VmHWM:" && file >> kib) return kib << 10;
  }
  return 0;
}

size_t OpenDescriptors(pid_t pid, const std::string& except) {
  size_t count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), ignored)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (!absl::StartsWith(target, except)) ++count;
  }
  return count;
}

int Count(int few, int all) { return std::getenv("KILN_FULL") != nullptr ? all : few; }

}  // namespace kiln
