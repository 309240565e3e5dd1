// All the work of a daemon in one queue: workers, GPUs, what is urgent, what is typical.
#include "server/schedule/task_queue.h"

#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kiln {
namespace {

TaskQueue::Task Work(TaskQueue::Kind kind, const std::string& tenant, bool urgent = false) {
  TaskQueue::Task task;
  task.kind = kind;
  task.caller.tenant = tenant;
  task.urgent = urgent;
  return task;
}

TEST(TaskQueue, WorkersAndGpusAreTakenApart) {
  TaskQueue queue({1, 1});
  const auto tune = queue.Push(Work(TaskQueue::Kind::kTune, "t"));
  const auto second = queue.Push(Work(TaskQueue::Kind::kTune, "t"));
  const auto emit = queue.Push(Work(TaskQueue::Kind::kEmit, "t"));
  EXPECT_EQ(queue.Take(), emit);
  EXPECT_EQ(queue.Take(), tune);
  EXPECT_EQ(queue.Take(), std::nullopt) << "there is one GPU";
  queue.Ended(emit, 1, true);
  EXPECT_EQ(queue.Take(), std::nullopt) << "what waits for a GPU takes no worker";
  EXPECT_FALSE(queue.Remove(tune)) << "it runs";
  queue.Ended(tune, 1, true);
  EXPECT_EQ(queue.Take(), second);
}

TEST(TaskQueue, UrgentGoesFirstAndIsCharged) {
  TaskQueue queue({1, 0});
  for (int i = 0; i < 40; ++i) {
    queue.Push(Work(TaskQueue::Kind::kEmit, "a"));
    queue.Push(Work(TaskQueue::Kind::kEmit, "b"));
  }
  const auto urgent = queue.Push(Work(TaskQueue::Kind::kEmit, "a", /*urgent=*/true));
  EXPECT_EQ(queue.Take(), urgent);
  queue.Ended(urgent, 0.5, false);
  // Ten of b's, each of 0.05 s, before they are even. The odd ids are a's.
  int of_b = 0;
  for (int i = 0; i < 10; ++i) {
    const auto id = *queue.Take();
    of_b += id % 2 == 0;
    queue.Ended(id, 0.05, true);
  }
  EXPECT_GE(of_b, 9);
}

// The others are the controls: another tenant's comes in its turn, and one that stays background comes last.
TEST(TaskQueue, WhatBecomesInteractiveOvertakes) {
  TaskQueue queue({1, 0});
  TaskQueue::Task background = Work(TaskQueue::Kind::kPlan, "t");
  background.caller.work_class = Caller::Class::kBackground;
  const auto stays = queue.Push(background);
  const auto raised = queue.Push(background);
  const auto interactive = queue.Push(Work(TaskQueue::Kind::kPlan, "t"));
  const auto other = queue.Push(Work(TaskQueue::Kind::kPlan, "u"));
  queue.MakeInteractive(raised);
  queue.MakeInteractive(4711);
  std::vector<TaskQueue::TaskId> order;
  while (const auto id = queue.Take()) {
    order.push_back(*id);
    queue.Ended(*id, 1, true);
  }
  EXPECT_EQ(order, (std::vector<TaskQueue::TaskId>{raised, other, interactive, stays}));
}

TEST(TaskQueue, TheFirstOnesSayWhatIsTypical) {
  TaskQueue queue({1, 0});
  for (const double seconds : {4.0, 2.0}) {
    const auto id = queue.Push(Work(TaskQueue::Kind::kEmit, "t"));
    ASSERT_EQ(queue.Take(), id);
    queue.Ended(id, seconds, /*typical=*/true);
  }
  const auto typical = [&queue](TaskQueue::Kind kind, const Caller& of) { return queue.Typical(kind, of); };
  const Caller background{"t", "", Caller::Class::kBackground};
  EXPECT_DOUBLE_EQ(typical(TaskQueue::Kind::kEmit, {"t", "any job"}), 3);
  // Nothing is said of what is none of these.
  EXPECT_DOUBLE_EQ(typical(TaskQueue::Kind::kPlan, {"t"}), TaskQueue::Options().plan_seconds);
  EXPECT_DOUBLE_EQ(typical(TaskQueue::Kind::kEmit, {"u"}), TaskQueue::Options().emit_seconds);
  EXPECT_DOUBLE_EQ(typical(TaskQueue::Kind::kEmit, background), TaskQueue::Options().emit_seconds);
}

}  // namespace
}  // namespace kiln
