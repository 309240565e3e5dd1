// How many random cases a test runs and which: KILN_SEED says where to start, KILN_CASES how many,
// KILN_FULL=1 asks for the whole count.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/numbers.h"

namespace kiln::testing {

struct Campaign {
  uint64_t first;  // seed
  uint64_t cases;
};

// Ends the process for a value that is no number: a mistyped seed must not run another case.
inline uint64_t NumberFromEnv(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = otherwise;
  if (text != nullptr && !absl::SimpleAtoi(text, &value)) {
    std::fprintf(stderr, "%s=%s is no number\n", name, text);
    std::exit(2);
  }
  return value;
}

inline Campaign CampaignFromEnv(uint64_t first, uint64_t cases, uint64_t whole) {
  const bool full = NumberFromEnv("KILN_FULL", 0) != 0;
  return {NumberFromEnv("KILN_SEED", first), NumberFromEnv("KILN_CASES", full ? whole : cases)};
}

}  // namespace kiln::testing
