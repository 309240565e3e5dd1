// kilnctl as a person runs it: a command line, and what came of it.
#pragma once

#include <string>

namespace kiln {

struct KilnctlOutput {
  int code = -1;
  std::string text;  // both streams
};

// `binary` is kilnctl's file. Without an address it finds the daemon by itself.
KilnctlOutput RunKilnctl(const std::string& binary, const std::string& address, const std::string& words);

}  // namespace kiln
