// What an error may not tell who caused it: paths of the host, addresses in memory, pids, secrets. Digests
// and names that the caller sent are no secrets.
// Threads: pure functions.
#pragma once

#include <sys/types.h>

#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kiln {

struct Untold {
  std::vector<pid_t> pids = {};
  std::vector<std::string> secrets = {};  // literally
};

// The first of each kind, with its kind; empty: none is there.
inline std::vector<std::string> LeaksIn(const std::string& text, const Untold& untold = {}) {
  static const std::regex path(R"((^|[^\w./:-])(/[\w.+-]+){2,})");
  static const std::regex address("\\b0x[0-9a-fA-F]{6,}");
  std::vector<std::string> found;
  std::smatch match;
  if (std::regex_search(text, match, path)) found.push_back(absl::StrCat("path ", match.str()));
  if (std::regex_search(text, match, address)) found.push_back(absl::StrCat("address ", match.str()));
  for (const pid_t pid : untold.pids) {
    if (std::regex_search(text, std::regex(absl::StrCat("\\b", pid, "\\b"))))
      found.push_back(absl::StrCat("pid ", pid));
  }
  for (const std::string& secret : untold.secrets) {
    if (absl::StrContains(text, secret)) found.push_back("a secret");
  }
  return found;
}

}  // namespace kiln
