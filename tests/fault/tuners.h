// The processes that measure for a daemon, as /proc has them.
#pragma once

#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/fault/test_daemon.h"

namespace kiln {

inline std::set<pid_t> TunersOf(const TestDaemon& daemon) {
  std::set<pid_t> tuners;
  for (const pid_t pid : daemon.Workers()) {
    std::error_code error;
    const auto program = std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/exe"), error);
    if (absl::EndsWith(program.string(), "/scripted_tuner")) tuners.insert(pid);
  }
  return tuners;
}

}  // namespace kiln
