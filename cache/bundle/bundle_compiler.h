// What a daemon's keys depend on besides the programs and the namespace: a bundle of another compiler's
// programs would be found by nobody. Threads: plain data.
#pragma once

#include <cstdint>
#include <string>

namespace kiln {

struct BundleCompiler {
  std::string fingerprint;
  uint32_t program_format = 0;
  uint32_t kernel_abi = 0;
  std::string tuning_policy;  // Tuner's
  std::string kiln_version;   // for people
};

}  // namespace kiln
