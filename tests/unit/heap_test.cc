// What the heap keeps of freed memory, told by the pages that a step meets anew.
#include "client/runtime/heap.h"

#include <sys/resource.h>

#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace kiln::runtime {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnAllocator = true;
#else
constexpr bool kOwnAllocator = false;
#endif

long Faults() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Pages that are new in one step of some 24 MB: fewest of five.
long FaultsOfAStep() {
  constexpr size_t kBytes = size_t{6} << 20;
  long fewest = -1;
  for (int step = 0; step < 5; ++step) {
    const long before = Faults();
    std::vector<std::unique_ptr<char[]>> blocks;
    for (int k = 0; k < 4; ++k) {
      blocks.emplace_back(new char[kBytes]);
      std::memset(blocks.back().get(), step, kBytes);
    }
    blocks.clear();
    const long met = Faults() - before;
    if (fewest < 0 || met < fewest) fewest = met;
  }
  return fewest;
}

TEST(Heap, KeepsWhatAStepFrees) {
  if (kOwnAllocator) GTEST_SKIP() << "a sanitizer's allocator";
  EXPECT_GT(FaultsOfAStep(), 4000);  // control: glibc trims it each time
  KeepFreedMemory();
  EXPECT_LT(FaultsOfAStep(), 100);
}

}  // namespace
}  // namespace kiln::runtime
