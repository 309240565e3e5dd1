// A pool's account of a worker that was killed.
#include "server/pool/worker_pool.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

// Kills the worker in its plan; meanwhile the kernel has killed so many.
WorkerResult Killed(Zygote* zygote, uint64_t by_the_kernel) {
  Stats stats;
  std::atomic<uint64_t> kills{7};
  WorkerPool::Options options;
  options.oom_kills = [&kills] { return std::optional<uint64_t>(kills); };
  auto pool = WorkerPool::Start(options, zygote, &stats);
  EXPECT_TRUE(pool.ok()) << pool.status();
  if (!pool.ok()) return {};
  absl::Notification done, asked;
  WorkerResult result;
  WorkerTask task;
  task.tenant = "red";
  task.request = [&asked] {
    v1::Frame frame;
    frame.mutable_plan()->set_graph("sleep_ms 60000");
    asked.Notify();
    return frame;
  };
  task.time_limit = absl::Seconds(60);
  task.done = [&](WorkerResult end) {
    result = std::move(end);
    done.Notify();
  };
  (*pool)->Submit(std::move(task));
  asked.WaitForNotification();
  kills += by_the_kernel;
  kill((*pool)->pids().front(), SIGKILL);
  done.WaitForNotification();
  return result;
}

TEST(WorkerPool, TellsAKillForWantOfMemoryFromAPersons) {
  auto zygote = Zygote::Fork({.binary = SCRIPTED_WORKER});
  ASSERT_TRUE(zygote.ok()) << zygote.status();
  const WorkerResult person = Killed(zygote->get(), 0);
  EXPECT_EQ(person.status.code(), absl::StatusCode::kUnavailable) << person.status;
  EXPECT_TRUE(person.crashed && person.killed);
  const WorkerResult kernel = Killed(zygote->get(), 1);
  EXPECT_EQ(kernel.status.code(), absl::StatusCode::kFailedPrecondition) << kernel.status;
  EXPECT_TRUE(absl::StrContains(kernel.status.message(), "workers.count")) << kernel.status;
  EXPECT_FALSE(kernel.crashed) << "it would be tried again, on the same host";
}

// Keys are of kilnd's formats: what such a worker makes would be stored under a wrong one.
TEST(WorkerPool, RefusesWorkersOfOtherFormats) {
  const std::string worker = absl::StrCat(testing::TempDir(), "/worker_of_other_formats");
  unlink(worker.c_str());
  ASSERT_EQ(symlink(SCRIPTED_WORKER, worker.c_str()), 0);
  auto zygote = Zygote::Fork({.binary = worker});
  ASSERT_TRUE(zygote.ok()) << zygote.status();
  Stats stats;
  const auto pool = WorkerPool::Start({}, zygote->get(), &stats);
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kFailedPrecondition) << pool.status();
  EXPECT_TRUE(absl::StrContains(pool.status().message(), "of one version")) << pool.status();
  unlink(worker.c_str());
}

}  // namespace
}  // namespace kiln
