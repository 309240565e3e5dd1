// Workers that crash, take all memory, never end or lie, many times in a row and amid good compiles.
// Promises: a fault is its own request's alone; a key that ends two workers is refused without a third; a
// worker dies alone, at its limit of memory or time, leaves no zombie, and the pool is whole again.
// The default run has a tenth of the faults that --full has.
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/worker/sandbox.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/leaks.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

constexpr int kWorkers = 4;

// Calls `run` with 0, 1, … `count` - 1, on `threads` threads.
void Spread(int count, int threads, const std::function<void(int)>& run) {
  std::atomic<int> next{0};
  std::vector<std::thread> runners;
  for (int t = 0; t < threads; ++t) {
    runners.emplace_back([&] {
      for (int i = next++; i < count; i = next++) run(i);
    });
  }
  for (std::thread& runner : runners) runner.join();
}

// Compiles that must be good, until it is told to stop, or so many that they are no load of their own. How
// many were.
class GoodCompiles {
 public:
  explicit GoodCompiles(TestDaemon& daemon) {
    for (int t = 0; t < 2; ++t) {
      threads_.emplace_back([this, &daemon, t] {
        for (int i = 0; !stop_ && i < kMost; ++i) {
          const CompileResult result = daemon.Compile(absl::StrCat("kernels 2\nname good ", t, " ", i));
          EXPECT_TRUE(result.durable) << result.failed_reason << result.status.error_message();
          done_ += result.durable;
          absl::SleepFor(absl::Milliseconds(10));
        }
      });
    }
  }
  int Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return done_;
  }
  ~GoodCompiles() { Stop(); }

 private:
  static constexpr int kMost = 200;
  std::atomic<bool> stop_{false};
  std::atomic<int> done_{0};
  std::vector<std::thread> threads_;
};

// As many living workers as there should be, and no other process.
bool PoolIsWhole(const TestDaemon& daemon, size_t workers) {
  const std::vector<pid_t> zygotes = ChildrenOf(daemon.pid());
  if (zygotes.size() != 1) return false;
  const std::vector<ProcessFacts> members = MembersOf(zygotes[0]);
  return members.size() == workers &&
         absl::c_all_of(members, [](const ProcessFacts& member) { return member.state != 'Z'; });
}

std::string CrashScript(int i) {
  static const char* const kHow[] = {"crash abort", "crash segv", "crash exit", "emit crash"};
  return absl::StrCat(kHow[i % 4], "\nname bad ", i);
}

void RemoveAll(TestDaemon& daemon) {
  grpc::ClientContext context;
  v1::RemoveRequest request;
  v1::RemoveReply reply;
  request.set_all(true);
  ASSERT_TRUE(daemon.admin().Remove(&context, request, &reply).ok());
}

TEST(WorkerFaults, ACrashIsItsOwnKeysAndNoKeyCrashesAThirdWorker) {
  const int keys = Count(50, 500);  // two crashes each
  const int good = Count(1'000, 10'000);
  TestDaemon daemon("", {}, "", kWorkers);
  std::thread bad([&] {
    Spread(keys, 2, [&](int i) {
      const CompileResult result = daemon.Compile(CrashScript(i));
      EXPECT_EQ(result.failed_code, grpc::FAILED_PRECONDITION) << result.failed_reason;
    });
  });
  Spread(good, 4, [&](int i) {
    const CompileResult result = daemon.Compile(absl::StrCat("kernels 2\nname good ", i));
    EXPECT_TRUE(result.durable) << result.failed_reason << result.status.error_message();
  });
  bad.join();
  EXPECT_EQ(daemon.Stats().worker_crashes(), 2 * keys);
  Spread(keys, 2,
         [&](int i) { EXPECT_EQ(daemon.Compile(CrashScript(i)).failed_code, grpc::FAILED_PRECONDITION); });
  EXPECT_EQ(daemon.Stats().worker_crashes(), 2 * keys) << "a third worker for a key that had ended two";
  EXPECT_TRUE(Eventually([&] { return PoolIsWhole(daemon, kWorkers); }));
  // The control: keys that are not known as bad any more end workers again.
  RemoveAll(daemon);
  Spread(4, 2, [&](int i) { daemon.Compile(CrashScript(i)); });
  EXPECT_EQ(daemon.Stats().worker_crashes(), 2 * keys + 8);
}

TEST(WorkerFaults, AMemoryBombDiesAlone) {
  if (!kBoundAddressSpace) GTEST_SKIP() << "a sanitizer's workers have no memory limit";
  constexpr uint64_t kGrowthMax = 16u << 20;
  const int bombs = Count(20, 200);  // each touches 256 MiB, which takes a loaded machine seconds
  // A store with small buffers: what is measured is not what the good compiles leave in them.
  TestDaemon daemon(
      "workers { memory_bytes: 268435456 } store { memory_bytes: 1048576 budget_bytes: 67108864 }");
  ASSERT_TRUE(daemon.Compile("name first").durable);
  const uint64_t before = ResidentBytes(daemon.pid());
  uint64_t peak = before;
  {
    GoodCompiles others(daemon);
    for (int i = 0; i < bombs; ++i) {
      const CompileResult result =
          daemon.Compile(absl::StrCat(i % 2 == 0 ? "exhaust" : "emit exhaust", "\nname bomb ", i));
      // Not RESOURCE_EXHAUSTED, at which clients come again.
      EXPECT_EQ(result.failed_code, grpc::FAILED_PRECONDITION) << result.failed_reason;
      EXPECT_TRUE(absl::StrContains(result.failed_reason, "out of its memory of 256 MiB"));
      peak = std::max(peak, ResidentBytes(daemon.pid()));
      EXPECT_TRUE(daemon.Compile(absl::StrCat("name after bomb ", i)).durable);
    }
    EXPECT_GT(others.Stop(), 0);
  }
  std::printf("%d bombs: kilnd grew by %.1f MiB\n", bombs, static_cast<double>(peak - before) / (1 << 20));
  EXPECT_LT(peak - before, kGrowthMax);
  EXPECT_EQ(daemon.Stats().worker_crashes(), 0);
  EXPECT_TRUE(Eventually([&] { return PoolIsWhole(daemon, 2); }));
}

// The control: it is the limit that ends them.
TEST(WorkerFaults, WhatFitsTheLimitOfMemoryIsCompiled) {
  if (!kBoundAddressSpace) GTEST_SKIP() << "a sanitizer's workers have no memory limit";
  const std::string script = "take_mib 400";
  TestDaemon little("workers { memory_bytes: 268435456 }"), enough("workers { memory_bytes: 1073741824 }");
  EXPECT_EQ(little.Compile(script).failed_code, grpc::FAILED_PRECONDITION);
  EXPECT_TRUE(enough.Compile(script).durable);
}

TEST(WorkerFaults, AnEndlessCompileDiesAtItsDeadlineAndLeavesNoZombie) {
  constexpr int kLoops = 10;  // at a time
  const int loops = Count(10, 100);
  TestDaemon daemon("workers { plan_seconds_max: 1 emit_seconds_max: 1 }", {}, "", kLoops);
  ASSERT_TRUE(Eventually([&] { return PoolIsWhole(daemon, kLoops); }));
  Spread(loops, kLoops, [&](int i) {
    const CompileResult result =
        daemon.Compile(absl::StrCat(i % 2 == 0 ? "hang" : "emit hang", "\nname loop ", i));
    EXPECT_EQ(result.failed_code, grpc::DEADLINE_EXCEEDED) << result.failed_reason;
  });
  EXPECT_EQ(daemon.Stats().worker_timeouts(), loops);
  EXPECT_EQ(daemon.Stats().worker_crashes(), 0);
  EXPECT_TRUE(Eventually([&] { return PoolIsWhole(daemon, kLoops); }));
  EXPECT_TRUE(daemon.Compile("name after").durable);
}

// The control: a later deadline has not ended it in the same time.
TEST(WorkerFaults, BeforeItsDeadlineACompileGoesOn) {
  TestDaemon daemon("workers { plan_seconds_max: 60 }");
  EXPECT_EQ(daemon.Compile("hang", {}, absl::Seconds(3)).status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(daemon.Stats().worker_timeouts(), 0);
}

// Frames of which a few bits are others: some are as good as before, others make no sense.
TEST(WorkerFaults, AWorkerThatLiesIsRefusedOrHarmless) {
  const int lies = Count(100, 1'000);
  TestDaemon daemon("workers { plan_seconds_max: 1 }", {}, "", kWorkers);
  std::atomic<int> taken{0}, refused{0};
  {
    GoodCompiles others(daemon);
    Spread(lies, kWorkers, [&](int i) {
      const CompileResult result =
          daemon.Compile(absl::StrCat("kernels 3\nguarded\nname l\nlie ", i + 1), {5});
      (result.done ? taken : refused)++;
      EXPECT_TRUE(result.done || result.failed_code != 0 || !result.status.ok());
    });
    EXPECT_GT(others.Stop(), 0);
  }
  std::printf("%d lies: %d refused, %d taken\n", lies, refused.load(), taken.load());
  EXPECT_GT(refused, lies / 4);
  EXPECT_TRUE(Eventually([&] { return PoolIsWhole(daemon, kWorkers); }));
}

// ---- What errors tell -------------------------------------------------------------------------

// All that a caller is told of a compile that failed, or was not kept.
std::string ToldOf(const CompileResult& result) {
  std::string told = absl::StrCat(result.failed_reason, "\n", result.status.error_message(), "\n",
                                  result.status.error_details());
  for (const v1::CompileEvent& event : result.events) absl::StrAppend(&told, "\n", event.done().not_kept());
  return told;
}

// The lines between the first and the last of a PEM.
std::vector<std::string> SecretsIn(const std::string& pem_file) {
  std::ifstream file(pem_file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "-----")) lines.push_back(line);
  }
  return lines;
}

TEST(WorkerFaults, ErrorsTellNothingOfTheHost) {
  TestDaemon daemon("workers { plan_seconds_max: 1 emit_seconds_max: 1 memory_bytes: 268435456 }");
  Untold untold;
  untold.pids = daemon.Workers();
  untold.pids.push_back(daemon.pid());
  for (const auto& file : std::filesystem::recursive_directory_iterator(daemon.directory())) {
    if (file.path().extension() == ".pem") untold.secrets = SecretsIn(file.path());
  }
  ASSERT_FALSE(untold.secrets.empty()) << "where is its key?";
  std::vector<std::string> scripts = {"crash abort",
                                      "crash segv",
                                      "crash exit",
                                      "emit crash",
                                      "hang",
                                      "emit hang",
                                      "refuse 3 no such operator"};
  if (kBoundAddressSpace) scripts.insert(scripts.end(), {"exhaust", "emit exhaust"});
  for (int lie = 1; lie <= 30; ++lie)
    scripts.push_back(absl::StrCat("kernels 3\nguarded\nname l\nlie ", lie));
  int failed = 0;
  for (const std::string& script : scripts) {
    const CompileResult result = daemon.Compile(script, {5});
    failed += result.failed_code != 0 || !result.status.ok();
    EXPECT_THAT(LeaksIn(ToldOf(result), untold), testing::IsEmpty()) << script << ": " << ToldOf(result);
  }
  EXPECT_GE(failed, 9) << "they are errors";
}

// Of a store above its budget, without memory for entries.
TEST(WorkerFaults, WhyNothingIsKeptIsToldWithoutThePlace) {
  TestDaemon daemon("store { budget_bytes: 1048576 memory_bytes: 1 }");
  std::ofstream(daemon.directory() + "/store/db/filler") << std::string(2u << 20, 'f');
  ASSERT_TRUE(Eventually([&] { return daemon.Stats().bytes() > 2u << 20; }));
  const CompileResult result = daemon.Compile("name a");
  EXPECT_TRUE(result.done && !result.durable);
  EXPECT_GT(ToldOf(result).size(), 10u) << "it says why";
  EXPECT_THAT(LeaksIn(ToldOf(result), {{daemon.pid()}, {}}), testing::IsEmpty()) << ToldOf(result);
}

// The control: what is planted is found, and what callers are to be told is not.
TEST(WorkerFaults, PlantedLeaksAreFound) {
  TestDaemon daemon;
  const CompileResult planted = daemon.Compile("refuse 3 cannot open /root/.cache/kiln/store");
  EXPECT_THAT(LeaksIn(ToldOf(planted)), testing::ElementsAre(testing::HasSubstr("/root/.cache/kiln/store")));
  for (const char* text :
       {"at 0x7f3a12345678", "process 4711 ended", "\"/var/lib/kiln/000012.log\"", "MC4CAQAwBQ="})
    EXPECT_THAT(LeaksIn(text, {{4711}, {"MC4CAQAwBQ="}}), testing::SizeIs(1)) << text;
  for (const char* text :
       {"aten.div.Tensor: 3/4 of 10/s", "node 47110 of model/layer/0", "0x1f",
        "key 0123456789abcdef0123456789abcdef", "https://example.org/kiln/docs", "and/or"}) {
    EXPECT_THAT(LeaksIn(text, {{4711}, {"MC4CAQAwBQ="}}), testing::IsEmpty()) << text;
  }
}

TEST(WorkerFaults, WorkersYieldToTheDaemon) {
  TestDaemon daemon;
  ASSERT_TRUE(Eventually([&] { return PoolIsWhole(daemon, 2); }));
  const pid_t zygote = ChildrenOf(daemon.pid())[0];
  const int own = getpriority(PRIO_PROCESS, static_cast<id_t>(daemon.pid()));
  EXPECT_EQ(getpriority(PRIO_PROCESS, static_cast<id_t>(zygote)), own);
  std::string group, word, niceness;  // "/autogroup-25 nice 5", where the kernel groups by session
  if (std::ifstream(absl::StrCat("/proc/", zygote, "/autogroup")) >> group >> word >> niceness) {
    EXPECT_EQ(niceness, absl::StrCat(kWorkerNiceness)) << group;
  }
  EXPECT_TRUE(Eventually([&] {
    return absl::c_all_of(MembersOf(zygote), [&](const ProcessFacts& worker) {
      return worker.niceness == std::min(19, own + kWorkerNiceness);
    });
  }));
}

}  // namespace
}  // namespace kiln
