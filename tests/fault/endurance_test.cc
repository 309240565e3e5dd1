// Tens of thousands of compiles by one kilnd. Promises: its memory and descriptors do not grow with them, but
// for what its budgets allow; a worker is replaced after its jobs, and when it holds too much.
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

struct Growth {
  double bytes_a_compile = 0;
  int descriptors = 0;
};

// Numbered by what they are, so that none is known.
void CompileMany(TestDaemon& daemon, int first, int last, const std::string& more) {
  constexpr int kCallers = 4;
  std::atomic<int> next{first};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      for (int i = next++; i < last; i = next++) {
        const CompileResult result = daemon.Compile(absl::StrCat("name ", i, more));
        EXPECT_TRUE(result.durable) << result.failed_reason << result.status.error_message();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// After a first part that fills buffers and budgets.
Growth GrowthOf(TestDaemon& daemon, int compiles, const std::string& more) {
  const int warm = compiles / 4;
  CompileMany(daemon, 0, warm, more);
  const uint64_t bytes = ResidentBytes(daemon.pid());
  const size_t descriptors = OpenDescriptors(daemon.pid(), daemon.directory() + "/store");
  CompileMany(daemon, warm, compiles, more);
  Growth growth;
  growth.bytes_a_compile =
      (static_cast<double>(ResidentBytes(daemon.pid())) - static_cast<double>(bytes)) / (compiles - warm);
  growth.descriptors = static_cast<int>(OpenDescriptors(daemon.pid(), daemon.directory() + "/store")) -
                       static_cast<int>(descriptors);
  return growth;
}

// A compile's entries cost a kilobyte of the catalogue's memory, and the database's buffers fill up.
constexpr double kBytesMax = 8'192;
constexpr int kDescriptorsMax = 4;  // connections that come and go

// With little for caches, so that what they may take is taken soon.
constexpr char kSmallBudgets[] =
    "store { memory_bytes: 1048576 hit_index_bytes: 1048576 budget_bytes: 268435456 }";

TEST(Endurance, CompilesLeaveNothingInTheDaemon) {
  const int compiles = Count(5'000, 50'000);
  TestDaemon daemon(kSmallBudgets);
  const Growth growth = GrowthOf(daemon, compiles, "");
  std::printf("%d compiles: %.0f bytes a compile, %d descriptors more\n", compiles, growth.bytes_a_compile,
              growth.descriptors);
  EXPECT_LT(growth.bytes_a_compile, kBytesMax);
  EXPECT_LE(growth.descriptors, kDescriptorsMax);
}

// The control: what caches may take is seen to be taken.
TEST(Endurance, WhatADaemonKeepsIsSeen) {
  TestDaemon daemon;
  std::string noise = "\nname ";
  for (int i = 0; i < 512; ++i) noise += ToHex(Sha256(absl::StrCat(i)));
  const auto compile = [&](int i) { return absl::StrCat(noise, i); };
  ASSERT_TRUE(daemon.Compile(compile(-1)).durable);
  const uint64_t before = ResidentBytes(daemon.pid());
  constexpr int kCompiles = 200;
  for (int i = 0; i < kCompiles; ++i) ASSERT_TRUE(daemon.Compile(compile(i)).durable);
  EXPECT_GT(static_cast<double>(ResidentBytes(daemon.pid()) - before) / kCompiles, kBytesMax);
}

std::vector<pid_t> WorkersAfter(TestDaemon& daemon, int compiles, const std::string& more) {
  CompileMany(daemon, 0, compiles, more);
  EXPECT_TRUE(Eventually([&] { return daemon.Workers().size() == 1; }));
  return daemon.Workers();
}

TEST(Endurance, AWorkerIsReplacedAfterItsJobs) {
  for (const int jobs_max : {10, 1'000}) {  // the second is the control
    TestDaemon daemon(absl::StrCat("workers { jobs_max: ", jobs_max, " }"), {}, "", 1);
    const std::vector<pid_t> first = WorkersAfter(daemon, 1, "");
    const std::vector<pid_t> later = WorkersAfter(daemon, 20, " later");
    EXPECT_EQ(first != later, jobs_max == 10);
    EXPECT_EQ(daemon.Stats().worker_crashes(), 0);
  }
}

TEST(Endurance, AWorkerThatHoldsTooMuchIsReplaced) {
  for (const int mib : {40, 400}) {  // the second is the control
    TestDaemon daemon(absl::StrCat("workers { resident_bytes_max: ", mib << 20, " }"), {}, "", 1);
    const std::vector<pid_t> first = WorkersAfter(daemon, 1, "");
    // Released, it is nobody's.
    EXPECT_EQ(WorkersAfter(daemon, 4, "\ntake_mib 1"), first);
    const std::vector<pid_t> later = WorkersAfter(daemon, 8, "\nkeep_mib 8");
    EXPECT_EQ(first != later, mib == 40);
    EXPECT_LT(ResidentBytes(later.at(0)), uint64_t{100} << 20);
    EXPECT_EQ(daemon.Stats().worker_crashes(), 0);
  }
}

}  // namespace
}  // namespace kiln
