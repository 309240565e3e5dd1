// The targets that this machine can run, by /proc/cpuinfo.
#pragma once

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "kiln/v1/artifact.pb.h"

namespace kiln {

inline std::set<std::string> HostCpuFlags() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  std::set<std::string> flags;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::string word;
    while (words >> word) flags.insert(word);
    break;
  }
  return flags;
}

inline bool HostHasAvx512() {
  const std::set<std::string> flags = HostCpuFlags();
  for (const char* flag : {"avx512f", "avx512bw", "avx512dq", "avx512vl"}) {
    if (flags.count(flag) == 0) return false;
  }
  return true;
}

inline v1::Target X86Target(bool avx512) {
  v1::Target target;
  target.set_triple("x86_64-linux-gnu");
  std::set<std::string> features = {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "popcnt"};
  if (avx512) features.insert({"avx512f", "avx512bw", "avx512dq", "avx512vl"});
  for (const std::string& feature : features) target.add_features(feature);
  return target;
}

}  // namespace kiln
