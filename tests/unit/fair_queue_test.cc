// Seconds of workers, shared between tenants and their jobs.
#include "server/schedule/fair_queue.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

FairQueue::Task TaskOf(uint64_t id, const std::string& tenant, const std::string& job, double seconds) {
  FairQueue::Task task;
  task.id = task.program = id;
  task.caller.tenant = tenant;
  task.caller.job = job;
  task.seconds = seconds;
  return task;
}

TEST(FairQueue, SharesSecondsBetweenTenantsWhateverTheyAskFor) {
  // The greedy one asks for ten times as much, in long tasks; estimates are wrong, and set right.
  const std::map<std::string, std::pair<int, double>> tenants = {
      {"greedy", {3000, 4.0}}, {"modest", {1000, 1.0}}, {"small", {3000, 0.25}}};
  FairQueue queue;
  std::map<uint64_t, std::pair<Caller, double>> tasks;
  for (const auto& [tenant, load] : tenants) {
    for (int i = 0; i < load.first; ++i) {
      const FairQueue::Task task = TaskOf(tasks.size() + 1, tenant, absl::StrCat("job", i % 3), 1.0);
      tasks[task.id] = {task.caller, load.second};
      queue.Push(task);
    }
  }
  std::map<std::string, double> served;
  for (double time = 0; time < 1500;) {
    const auto& [caller, seconds] = tasks.at(*queue.Pop());
    queue.Correct(caller, seconds - 1.0);
    served[caller.tenant] += seconds;
    time += seconds;
  }
  for (const auto& [tenant, seconds] : served) EXPECT_NEAR(seconds, 500, 50) << tenant;
}

TEST(FairQueue, WhoWasIdleHasNoCredit) {
  FairQueue queue;
  uint64_t id = 0;
  for (int i = 0; i < 100; ++i) queue.Push(TaskOf(++id, "busy", "", 1));
  for (int i = 0; i < 50; ++i) queue.Pop();
  for (int i = 0; i < 50; ++i) queue.Push(TaskOf(++id, "late", "", 1));
  int late = 0;
  for (int i = 0; i < 20; ++i) late += *queue.Pop() > 100;
  EXPECT_NEAR(late, 10, 1);
}

// It is taken, and others are served while it runs: what it took is known only then, and is charged.
TEST(FairQueue, LongWorkOfWhoDoesNotWaitIsCharged) {
  FairQueue queue;
  const FairQueue::Task slow = TaskOf(1, "slow", "", 1);
  queue.Push(slow);
  EXPECT_EQ(queue.Pop(), 1u);
  for (uint64_t id = 2; id <= 20; ++id) queue.Push(TaskOf(id, "other", "", 1));
  for (int i = 0; i < 5; ++i) queue.Correct(TaskOf(*queue.Pop(), "other", "", 1).caller, 0);
  queue.Correct(slow.caller, 9);
  queue.Push(TaskOf(30, "slow", "", 1));
  int before = 0;
  while (*queue.Pop() != 30) ++before;
  EXPECT_NEAR(before, 5, 1) << "as many seconds as the slow one had more of";
}

TEST(FairQueue, ManyNamesWithATaskEachAreForgotten) {
  FairQueue tenants, jobs;
  for (uint64_t id = 1; id <= 4 * kFairQueueIdleMax; ++id) {
    const std::string name = absl::StrCat(id);
    const FairQueue::Task tenant = TaskOf(id, name, "", 1), job = TaskOf(id, "t", name, 1);
    for (auto& [queue, task] : {std::pair{&tenants, tenant}, std::pair{&jobs, job}}) {
      queue->Push(task);
      EXPECT_EQ(queue->Pop(), id);
      queue->Correct(task.caller, 0);
    }
  }
  // The last is idle since it was taken; a tenant has a job.
  EXPECT_EQ(jobs.remembered(), 1 + kFairQueueIdleMax + 1);
  EXPECT_LE(tenants.remembered(), 2 * (kFairQueueIdleMax + 1));
}

TEST(FairQueue, AJobsFirstProgramFinishesFirst) {
  FairQueue queue;
  queue.Push(TaskOf(1, "t", "job", 1));
  queue.Push(TaskOf(2, "t", "job", 1));
  EXPECT_EQ(queue.Pop(), 1u);
  // What the first one needs next goes before what came meanwhile.
  for (const uint64_t id : {10u, 11u}) {
    FairQueue::Task step = TaskOf(id, "t", "job", 1);
    step.program = 1;
    step.step = 1;
    queue.Push(step);
  }
  EXPECT_TRUE(queue.Remove(11));
  EXPECT_FALSE(queue.Remove(11));
  EXPECT_EQ(queue.Pop(), 10u);
  EXPECT_EQ(queue.Pop(), 2u);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(FairQueue, BackgroundWaitsForItsOwnTenantAlone) {
  FairQueue queue;
  FairQueue::Task background = TaskOf(1, "t", "", 1);
  background.caller.work_class = Caller::Class::kBackground;
  queue.Push(background);
  queue.Push(TaskOf(2, "t", "", 1));
  queue.Push(TaskOf(3, "u", "", 1));
  queue.Push(TaskOf(4, "u", "", 1));
  std::vector<uint64_t> order;
  while (!queue.empty()) order.push_back(*queue.Pop());
  EXPECT_EQ(order, (std::vector<uint64_t>{2, 3, 1, 4}));
}

// Of others no more than of its own: who has nothing waiting is next.
TEST(FairQueue, WhatIsAheadOfACallerIsNoMoreOfOthersThanOfItsOwn) {
  FairQueue queue;
  for (uint64_t id = 1; id <= 10; ++id) queue.Push(TaskOf(id, "greedy", "", 4));
  queue.Push(TaskOf(11, "modest", "", 1));
  const auto ahead = [&queue](const char* tenant, double more = 0) {
    const Caller caller = TaskOf(0, tenant, "", 1).caller;
    return queue.SecondsToServe(caller, queue.SecondsOf(caller) + more);
  };
  EXPECT_DOUBLE_EQ(ahead("new"), 0);
  EXPECT_DOUBLE_EQ(ahead("modest"), 1 + 1);
  EXPECT_DOUBLE_EQ(ahead("greedy"), 40 + 1);
  EXPECT_DOUBLE_EQ(ahead("new", 3), 3 + 3 + 1) << "a third each, while the modest one has some";
  EXPECT_DOUBLE_EQ(queue.SecondsToServe(TaskOf(0, "greedy", "", 1).caller, 4), 4 + 1) << "next of its own";
  Caller background = TaskOf(0, "modest", "", 1).caller;
  background.work_class = Caller::Class::kBackground;
  EXPECT_DOUBLE_EQ(queue.SecondsToServe(background, queue.SecondsOf(background)), 1 + 1);
  while (!queue.empty()) queue.Pop();
  EXPECT_DOUBLE_EQ(ahead("greedy"), 0);
}

}  // namespace
}  // namespace kiln
