#include "tests/fault/kilnctl.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace kiln {

KilnctlOutput RunKilnctl(const std::string& binary, const std::string& address, const std::string& words) {
  const std::string command =
      absl::StrCat(binary, address.empty() ? "" : absl::StrCat(" --address ", address), " ", words, " 2>&1");
  KilnctlOutput output;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> block;
  while (size_t got = fread(block.data(), 1, block.size(), pipe)) output.text.append(block.data(), got);
  output.code = WEXITSTATUS(pclose(pipe));
  return output;
}

}  // namespace kiln
