// The kilnd that serves, killed at any moment and starved of memory, many times over one store. What
// store_crash_test.cc and store_memory_limit_test.cc promise of a store holds for the whole daemon: what
// callers were told is durable is there for the next one, with the same bytes; nothing is damaged; it starts
// again. The oracle is the callers' own, outside the daemon.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "compiler/support/manifest_objects.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

using Told = std::map<std::string, std::string>;  // a script and the manifest that was answered

// What callers count as acknowledged: `durable`, or, as the control, that the compile is in the queue.
enum class Believes { kDurable, kQueued };

// Callers who compile one graph after the other until the daemon goes.
class Load {
 public:
  Load(TestDaemon& daemon, int round, Believes believes) : daemon_(daemon), believes_(believes) {
    for (int caller = 0; caller < kCallers; ++caller)
      threads_.emplace_back([this, round, caller] { Run(absl::StrCat(round, "_", caller)); });
  }
  size_t told() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return told_.size();
  }
  // When the daemon is gone.
  Told Join() {
    for (std::thread& thread : threads_) thread.join();
    absl::MutexLock lock(&mutex_);
    return told_;
  }

 private:
  static constexpr int kCallers = 3;

  void Run(const std::string& name) {
    for (int i = 0;; ++i) {
      // Some have objects that fill the store's buffers.
      const std::string script = absl::StrCat("kernels 2\nsleep_ms ", i % 3 * 4, "\nobject_kib ",
                                              i % 5 == 0 ? 200 : 1, "\nname ", name, "_", i);
      const CompileResult result = daemon_.Compile(script);
      const bool believed = believes_ == Believes::kDurable ? result.durable : !result.job_id.empty();
      absl::MutexLock lock(&mutex_);
      if (believed) told_[script] = result.manifest_bytes;
      if (!result.durable) return;
    }
  }

  TestDaemon& daemon_;
  const Believes believes_;
  absl::Mutex mutex_;
  Told told_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

struct Losses {
  size_t told = 0, lost = 0, wrong = 0;
};

void CountLosses(TestDaemon& daemon, const Told& told, Losses* losses) {
  for (const auto& [script, manifest] : told) {
    ++losses->told;
    const v1::LookupReply reply = daemon.Lookup(script);
    losses->lost += !reply.has_hit();
    if (!reply.has_hit()) continue;
    const std::string& found = reply.hit().manifest().manifest();
    losses->wrong += found != manifest;
    v1::Manifest parsed;
    std::set<std::string> digests;
    grpc::Status status(grpc::DATA_LOSS, "no manifest");
    if (parsed.ParseFromString(found)) {
      for (const v1::ObjectRef* object : ObjectsOf(parsed)) digests.insert(object->digest());
      daemon.Fetch(parsed, {digests.begin(), digests.end()}, &status);  // which compares each with its digest
    }
    losses->wrong += !status.ok();
  }
}

// Nothing in the store is damaged, and no manifest lacks an object.
void ExpectWhole(TestDaemon& daemon) {
  grpc::ClientContext context;
  v1::VerifyReply verified;
  const grpc::Status status = daemon.admin().Verify(&context, {}, &verified);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(verified.corrupt() + verified.missing(), 0u) << verified.DebugString();
}

Losses KillAgainAndAgain(int rounds, Believes believes) {
  std::mt19937 random(20261127);
  TestDaemon daemon;
  Losses losses;
  Told all;
  for (int round = 0; round < rounds; ++round) {
    Load load(daemon, round, believes);
    // So many are told, whatever the machine takes; then at any moment of what follows.
    const size_t enough = 1 + random() % 6;
    EXPECT_TRUE(Eventually([&] { return load.told() >= enough; }, absl::Seconds(60)));
    absl::SleepFor(absl::Microseconds(random() % 20'000));
    const int status = daemon.Stop(SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(status)) << "round " << round << ": it ended by itself, " << status;
    const Told told = load.Join();
    daemon.Start();  // which has to answer
    CountLosses(daemon, told, &losses);
    all.insert(told.begin(), told.end());
    if (testing::Test::HasFailure()) break;
  }
  ExpectWhole(daemon);
  if (believes == Believes::kDurable) CountLosses(daemon, all, &losses);  // those of the first rounds too
  std::printf("%d kills: %zu programs told, %zu lost, %zu wrong\n", rounds, losses.told, losses.lost,
              losses.wrong);
  return losses;
}

TEST(DaemonCrash, KilledAtAnyMomentNothingAcknowledgedIsLost) {
  const int rounds = Count(100, 1'000);
  const Losses losses = KillAgainAndAgain(rounds, Believes::kDurable);
  EXPECT_GT(losses.told, static_cast<size_t>(2 * rounds));
  EXPECT_EQ(losses.lost, 0u);
  EXPECT_EQ(losses.wrong, 0u);
}

TEST(DaemonCrash, ControlThatBelievesTooEarlyLoses) {
  const Losses losses = KillAgainAndAgain(10, Believes::kQueued);
  EXPECT_GT(losses.told, 0u);
  EXPECT_GT(losses.lost, 0u);
}

// ---- Out of memory ---------------------------------------------------------------------------

constexpr uint64_t kStepBytes = 1u << 20;
constexpr int kLevels = 50;
constexpr int kCompiles = 40;    // of 1.2 MB each
constexpr int kFailuresMax = 2;  // in a row: no more comes of it

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimitsWork = false;  // their shadow memory is beyond any limit
#else
constexpr bool kLimitsWork = true;
#endif

// The memory that kilnd itself may write to may grow by so much and no more, what malloc has in reserve
// included; its workers have limits of their own.
void LimitGrowth(const TestDaemon& daemon, uint64_t more) {
  std::ifstream statm(absl::StrCat("/proc/", daemon.pid(), "/statm"));
  uint64_t size, resident, shared, text, library, data = 0;
  statm >> size >> resident >> shared >> text >> library >> data;
  ASSERT_GT(data, 0u);
  const rlim_t most = data * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + more;
  const rlimit limit = {most, most};
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_DATA, &limit, nullptr), 0);
}

struct Outcome {
  bool ended = false;  // by itself
  size_t told = 0;
};

Outcome ServeWithin(uint64_t growth) {
  TestDaemon daemon;
  EXPECT_TRUE(daemon.Compile("name first").durable);  // its threads are there
  LimitGrowth(daemon, growth);
  Told told;
  int failures = 0;
  for (int i = 0; i < kCompiles; ++i) {
    const std::string script = absl::StrCat("kernels 2\nobject_kib 600\nname starved_", i);
    const CompileResult result = daemon.Compile(script, {}, absl::Seconds(10));
    if (result.durable) told[script] = result.manifest_bytes;
    failures = result.durable ? 0 : failures + 1;
    if (failures == kFailuresMax || daemon.Wait(absl::ZeroDuration()) != -1) break;
  }
  const bool ended = daemon.pid() < 0;
  if (!ended) daemon.Stop(SIGKILL);
  daemon.Start();
  Losses losses;
  CountLosses(daemon, told, &losses);
  EXPECT_EQ(losses.lost + losses.wrong, 0u);
  ExpectWhole(daemon);
  EXPECT_TRUE(daemon.Compile("name after").durable);
  return {ended, told.size()};
}

TEST(DaemonCrash, OutOfMemoryItMayEndAndIsWholeAfterwards) {
  if (!kLimitsWork) GTEST_SKIP() << "not under a sanitizer";
  const int step = Count(10, 1);
  int short_of = 0;
  size_t told = 0;
  for (int level = 0; level < kLevels; level += step) {
    SCOPED_TRACE(level);
    const Outcome outcome = ServeWithin(static_cast<uint64_t>(level) * kStepBytes);
    short_of += outcome.ended || outcome.told < kCompiles;
    told += outcome.told;
  }
  // The controls: some limits were too tight, and with plenty all is kept.
  EXPECT_GT(short_of, 0);
  EXPECT_GT(told, 0u);
  const Outcome plenty = ServeWithin(uint64_t{64} << 30);
  EXPECT_FALSE(plenty.ended);
  EXPECT_EQ(plenty.told, static_cast<size_t>(kCompiles));
}

}  // namespace
}  // namespace kiln
