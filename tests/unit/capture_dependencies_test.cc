// The order of recorded steps: who waits for whom in the graph that comes of it.
#include "client/runtime/capture_dependencies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/unit/recorded_graph.h"

namespace kiln::runtime {
namespace {

using Graph = RecordedGraph;

char memory[1024];

MemoryRange Reads(int64_t at, int64_t bytes = 16) { return {memory + at, bytes, false}; }
MemoryRange Writes(int64_t at, int64_t bytes = 16) { return {memory + at, bytes, true}; }

size_t Step(CaptureDependencies& order, Graph& graph, const std::vector<MemoryRange>& ranges) {
  EXPECT_TRUE(order.Begin(ranges).ok());
  const size_t node = graph.Record();
  EXPECT_TRUE(order.End().ok());
  return node;
}

TEST(CaptureDependencies, GemmsOfOneInputWaitForItAndNotForEachOther) {
  Graph graph;
  const size_t first = graph.Record();
  size_t after = 0;
  {
    CaptureDependencies order(graph);
    const size_t input = Step(order, graph, {Writes(0)});
    const size_t q = Step(order, graph, {Reads(0), Writes(100)}),
                 k = Step(order, graph, {Reads(0), Writes(200)});
    const size_t sum = Step(order, graph, {Reads(100), Reads(200), Writes(300)});
    const size_t other = Step(order, graph, {Reads(500), Writes(600)});
    EXPECT_TRUE(graph.Waits(input, first));
    EXPECT_TRUE(graph.Waits(q, input));
    EXPECT_TRUE(graph.Waits(k, input));
    EXPECT_FALSE(graph.Waits(k, q));
    EXPECT_TRUE(graph.Waits(sum, q));
    EXPECT_TRUE(graph.Waits(sum, k));
    EXPECT_TRUE(graph.Waits(other, first));
    EXPECT_FALSE(graph.Waits(other, input));
  }
  after = graph.Record();
  for (size_t node = 1; node < after; ++node) EXPECT_TRUE(graph.Waits(after, node)) << node;
}

TEST(CaptureDependencies, MemoryThatIsUsedAgainWaitsForItsReaders) {
  Graph graph;
  CaptureDependencies order(graph);
  const size_t made = Step(order, graph, {Writes(0)});
  const size_t one = Step(order, graph, {Reads(0), Writes(100)}),
               two = Step(order, graph, {Reads(8), Writes(200)});
  const size_t again = Step(order, graph, {Writes(12, 2)});
  EXPECT_TRUE(graph.Waits(again, made));
  EXPECT_TRUE(graph.Waits(again, one));
  EXPECT_TRUE(graph.Waits(again, two));
  const size_t beside = Step(order, graph, {Reads(0, 12), Writes(300)});
  EXPECT_FALSE(graph.Waits(beside, again));
}

TEST(CaptureDependencies, WhatIsTouchedLateIsWaitedFor) {
  Graph graph;
  CaptureDependencies order(graph);
  const size_t one = Step(order, graph, {Writes(0)}), two = Step(order, graph, {Writes(100)});
  ASSERT_TRUE(order.Begin({{Writes(200)}}).ok());
  const size_t early = graph.Record();
  ASSERT_TRUE(order.Touch(Writes(100)).ok());
  const size_t late = graph.Record();
  ASSERT_TRUE(order.End().ok());
  EXPECT_FALSE(graph.Waits(early, two));
  EXPECT_TRUE(graph.Waits(late, early));
  EXPECT_TRUE(graph.Waits(late, two));
  EXPECT_FALSE(graph.Waits(late, one));
  EXPECT_TRUE(graph.Waits(Step(order, graph, {Reads(100)}), late));
}

TEST(CaptureDependencies, AFencedStepIsBetweenAllOthers) {
  Graph graph;
  CaptureDependencies order(graph);
  const size_t one = Step(order, graph, {Writes(0)}), two = Step(order, graph, {Writes(100)});
  ASSERT_TRUE(order.Begin({{Writes(200)}}).ok());
  ASSERT_TRUE(order.Fence().ok());
  const size_t fenced = graph.Record();
  ASSERT_TRUE(order.End().ok());
  EXPECT_TRUE(graph.Waits(fenced, one));
  EXPECT_TRUE(graph.Waits(fenced, two));
  const size_t after = Step(order, graph, {Writes(300)}), beside = Step(order, graph, {Writes(400)});
  EXPECT_TRUE(graph.Waits(after, fenced));
  EXPECT_TRUE(graph.Waits(beside, fenced));
  EXPECT_FALSE(graph.Waits(beside, after));
}

TEST(CaptureDependencies, WhatFillsTheDeviceRunsAlone) {
  Graph graph;
  CaptureDependencies order(graph);
  const size_t one = Step(order, graph, {Writes(0)});
  const size_t large = Step(order, graph, {{memory + 512, CaptureDependencies::kAloneBytes, false}});
  EXPECT_TRUE(graph.Waits(large, one));
  EXPECT_TRUE(graph.Waits(Step(order, graph, {Writes(100)}), large));
}

TEST(CaptureDependencies, WithoutTheDriversWordAllStaysInARow) {
  for (const bool from_start : {true, false}) {
    Graph graph;
    graph.tells = !from_start;
    CaptureDependencies order(graph);
    size_t last = Step(order, graph, {Writes(0)});
    Step(order, graph, {Writes(100)});
    graph.tells = false;
    std::vector<size_t> nodes;
    for (int i = 0; i < 3; ++i) nodes.push_back(Step(order, graph, {Writes(200 + 100 * i)}));
    // From the step on that could not be asked after.
    for (size_t i = 1; i < nodes.size(); ++i) EXPECT_TRUE(graph.Waits(nodes[i], nodes[i - 1]));
    EXPECT_TRUE(graph.Waits(nodes[1], last));
    EXPECT_TRUE(graph.Waits(nodes[1], last + 1));
  }
}

TEST(CaptureDependencies, ADriverThatTakesNothingIsAnErrorOnlyWhereStepsRanBesideEachOther) {
  Graph graph;
  graph.takes = false;
  CaptureDependencies order(graph);
  const size_t one = Step(order, graph, {Writes(0)}), two = Step(order, graph, {Writes(100)});
  EXPECT_TRUE(graph.Waits(two, one));
  graph.takes = true;
  Graph other;
  CaptureDependencies beside(other);
  Step(beside, other, {Writes(0)});
  Step(beside, other, {Writes(100)});
  other.takes = false;
  EXPECT_EQ(beside.Fence().code(), absl::StatusCode::kInternal);
  other.takes = true;
}

// Steps at random: two wait for each other exactly where one writes what the other touches, or a chain of
// such leads from one to the other.
TEST(CaptureDependencies, RandomStepsWaitExactlyForWhatTheyMust) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Graph graph;
    CaptureDependencies order(graph);
    std::vector<std::vector<MemoryRange>> steps;
    std::vector<std::vector<bool>> must;
    for (size_t i = 0; i < 30; ++i) {
      std::vector<MemoryRange> ranges;
      for (size_t k = 0; k < 1 + random() % 3; ++k) {
        ranges.push_back({memory + random() % 200, static_cast<int64_t>(random() % 20), random() % 3 == 0});
      }
      const size_t known = random() % (ranges.size() + 1);
      ASSERT_TRUE(order.Begin(absl::MakeSpan(ranges).first(known)).ok());
      for (size_t k = known; k < ranges.size(); ++k) ASSERT_TRUE(order.Touch(ranges[k]).ok());
      graph.Record();
      ASSERT_TRUE(order.End().ok());
      must.emplace_back(i);
      for (size_t j = 0; j < i; ++j) {
        for (const MemoryRange& a : ranges) {
          for (const MemoryRange& b : steps[j]) {
            const auto *a0 = static_cast<const char*>(a.data), *b0 = static_cast<const char*>(b.data);
            if ((a.written || b.written) && std::max(a0, b0) < std::min(a0 + a.bytes, b0 + b.bytes))
              must[i][j] = true;
          }
        }
        if (!must[i][j]) continue;
        for (size_t before = 0; before < j; ++before) {
          if (must[j][before]) must[i][before] = true;
        }
      }
      // Chains that end in a later step.
      for (size_t j = i; j-- > 0;) {
        if (!must[i][j]) continue;
        for (size_t before = 0; before < j; ++before) {
          if (must[j][before]) must[i][before] = true;
        }
      }
      steps.push_back(ranges);
      for (size_t j = 0; j < i; ++j) {
        ASSERT_EQ(graph.Waits(i + 1, j + 1), must[i][j]) << "round " << round << ", " << i << " for " << j;
      }
    }
  }
}

}  // namespace
}  // namespace kiln::runtime
