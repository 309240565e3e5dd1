// What is kept between calls; each case in a process of its own, since thresholds are the process's.
#include "client/runtime/heap.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace kiln::runtime {
namespace {

constexpr size_t kBlock = 2 << 20;
constexpr int kBlocks = 8;
constexpr long kPages = kBlock * kBlocks / 4096;

long Faults() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Page faults of a call that takes blocks and frees them, after two like it.
long FaultsOfACall() {
  long before = 0;
  for (int call = 0; call < 3; ++call) {
    before = Faults();
    std::vector<char*> blocks;
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(static_cast<char*>(std::malloc(kBlock)));
      std::memset(blocks.back(), i, kBlock);
    }
    for (char* block : blocks) std::free(block);
  }
  return Faults() - before;
}

// Whether `holds` in a process of its own.
template <typename Condition>
bool InAProcess(Condition holds) {
  const pid_t child = fork();
  if (child == 0) _exit(holds() ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class Heap : public testing::Test {
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the sanitizer's allocator";
#endif
  }
};

TEST_F(Heap, TakesPagesAnewByItself) {
  EXPECT_TRUE(InAProcess([] { return FaultsOfACall() > kPages / 2; }));
}

TEST_F(Heap, KeepsWhatACallFreed) {
  EXPECT_TRUE(InAProcess([] { return KeepFreedMemory() && FaultsOfACall() < kPages / 100; }));
}

TEST_F(Heap, LeavesTheUsersSettingsAlone) {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_"}) {
    EXPECT_TRUE(InAProcess([&] { return setenv(name, "131072", 1) == 0 && !KeepFreedMemory(); })) << name;
  }
  EXPECT_TRUE(InAProcess([] {
    return setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072", 1) == 0 && !KeepFreedMemory();
  }));
}

}  // namespace
}  // namespace kiln::runtime
