#include "compiler/schedule/group_launches.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "compiler/support/member_table.h"
#include "gtest/gtest.h"
#include "tests/unit/loop_graph_maker.h"

namespace kiln {
namespace {

using testing::KernelAt;
using testing::Maker;

// A kernel for each: none reads what another writes, so that fusion leaves them apart.
std::vector<BufferId> Squares(Maker& m, const std::vector<int64_t>& sizes) {
  std::vector<BufferId> results;
  for (int64_t size : sizes) {
    const BufferId x = m.Input({size});
    results.push_back(m.Buffer({size}));
    m.Pointwise({size}, {x, x}, results.back(), LoopOpcode::kMul);
    m.Output(results.back());
  }
  return results;
}

void MoveToGpu(Maker& m) {
  for (LoopBuffer& buffer : m.graph.buffers) buffer.device = v1::CUDA;
}

TEST(GroupLaunches, KernelsOfManySizesAreOneLaunch) {
  Maker m;
  const std::vector<BufferId> results = Squares(m, {64, 128, 64, 1000, 5});
  const Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u);
  const ScheduledKernel& kernel = KernelAt(schedule, 0);
  EXPECT_EQ(kernel.kernel.symbol_count(), 1u);
  EXPECT_EQ(kernel.kernel.schedule().members(), 0u);  // that is a GPU's
  std::vector<int64_t> sizes;
  std::vector<BufferId> stored;
  kernel.ForOperands([&](const LaunchOperands& operands) {
    ASSERT_EQ(operands.symbols.size(), 1u);
    sizes.push_back(m.graph.exprs.AsConst(operands.symbols[0]).value());
    stored.push_back(operands.buffers[1]);
  });
  std::sort(stored.begin(), stored.end());
  EXPECT_EQ(stored, results);
  std::sort(sizes.begin(), sizes.end());
  EXPECT_EQ(sizes, (std::vector<int64_t>{5, 64, 64, 128, 1000}));
}

TEST(GroupLaunches, OfAGpuALaunchHasATable) {
  Maker m;
  Squares(m, {300, 301, 302, 303, 304});
  MoveToGpu(m);
  const Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u);
  const uint32_t members = KernelAt(schedule, 0).kernel.schedule().members();
  EXPECT_EQ(members, MemberTable::MembersThatFit(3));  // two addresses and the size
  EXPECT_LE((MemberTable{members, 3}.Bytes()), MemberTable::kBytesMax);
  EXPECT_GT((MemberTable{members + 1, 3}.Bytes()), MemberTable::kBytesMax);
}

TEST(GroupLaunches, WhatAllHaveInCommonStaysConstant) {
  Maker m;
  Squares(m, {64, 64, 64, 64});
  const Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u);
  EXPECT_EQ(KernelAt(schedule, 0).kernel.symbol_count(), 0u);
}

TEST(GroupLaunches, ReductionsOfManyLengthsAreOneLaunch) {
  Maker m;
  for (int64_t columns : {64, 100, 4096, 77}) {
    const BufferId x = m.Input({5, columns}), y = m.Buffer({5});
    m.RowReduce(5, columns, x, y, v1::REDUCE_SUM);
    m.Output(y);
  }
  MoveToGpu(m);  // on the CPU the length decides how many rows a unit has
  const Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u);
  EXPECT_EQ(KernelAt(schedule, 0).kernel.symbol_count(), 2u);  // the columns, and all elements
}

// Sums of rows of many tensors, each stored to a place of its own in one buffer, or to places that overlap.
TEST(GroupLaunches, StoresToPartsOfOneBuffer) {
  for (const int64_t apart : {2, 1}) {
    Maker m;
    const BufferId all = m.Buffer({16});
    for (int64_t i = 0; i < 6; ++i) {
      const BufferId x = m.Input({2, 50 + i});
      m.Node({2}, {50 + i},
             [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& n) {
               const LoopOpId sum = r.Reduce(v1::REDUCE_SUM, r.Load(x, v1::F32, m.At(x, {o[0], n[0]})));
               r.Store(all, v1::F32, m.graph.exprs.Add(o[0].leaf, m.C(1 + i * apart)), sum);
             });
    }
    m.Output(all);
    MoveToGpu(m);
    EXPECT_EQ(m.Run(/*fuse=*/false).steps.size(), apart == 2 ? 1u : 6u);
  }
}

TEST(GroupLaunches, FewOrUnlikeKernelsStayAlone) {
  Maker few;
  Squares(few, {64, 128, 256});
  EXPECT_EQ(few.Run().steps.size(), 3u);

  Maker unlike;
  const LoopOpcode ops[] = {LoopOpcode::kExp, LoopOpcode::kCos, LoopOpcode::kSin, LoopOpcode::kTanh,
                            LoopOpcode::kLog};
  for (LoopOpcode op : ops) {
    const BufferId x = unlike.Input({64}), y = unlike.Buffer({64});
    unlike.Pointwise({64}, {x}, y, op);
    unlike.Output(y);
  }
  EXPECT_EQ(unlike.Run().steps.size(), 5u);
}

TEST(GroupLaunches, NoKernelCrossesALibraryCall) {
  Maker m;
  Squares(m, {64, 64});
  const BufferId from = m.Input({8, 8}), to = m.Buffer({8, 8});
  m.Call("aten.mm.default", {from, from}, to);
  m.Output(to);
  Squares(m, {64, 64});
  const Schedule schedule = m.Run();
  EXPECT_EQ(schedule.steps.size(), 5u);
}

TEST(GroupLaunches, MemoryThatMembersHoldIsBounded) {
  for (const int64_t size : {int64_t{1000}, int64_t{100'000}}) {
    Maker m;
    for (int i = 0; i < 4; ++i) {
      const BufferId x = m.Input({size}), y = m.Buffer({size}), to = m.Buffer({8, 8});
      m.Pointwise({size}, {x}, y, LoopOpcode::kExp);
      m.Call("aten.mm.default", {y, y}, to);  // of nothing that this test runs
      m.Output(to);
    }
    // All four before the first call.
    std::stable_partition(m.graph.nodes.begin(), m.graph.nodes.end(),
                          [](const LoopGraphNode& node) { return node.kind == LoopGraphNode::Kind::kLoops; });
    const Schedule schedule = m.Run();
    EXPECT_EQ(schedule.steps.size(), size == 1000 ? 5u : 8u);
  }
}

// Kernels at random, in place and not, that read and write few buffers: every step has to come behind those
// that wrote what it reads or overwrites, and behind those that read what it overwrites, as they were
// recorded.
TEST(GroupLaunches, KeepsTheOrderOfWhatDepends) {
  size_t grouped = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Maker m;
    std::vector<BufferId> inputs;
    for (int i = 0; i < 12; ++i) inputs.push_back(m.Input({int64_t{32} << (i % 3)}));
    struct Written {
      BufferId from, to;
    };
    std::vector<Written> nodes;
    for (int n = 0; n < 25; ++n) {
      const BufferId to = inputs[random() % inputs.size()];
      BufferId from = to;
      while (from == to || m.graph.buffers[from].span != m.graph.buffers[to].span)
        from = inputs[random() % inputs.size()];
      const int64_t size = m.graph.exprs.AsConst(m.graph.buffers[to].span).value();
      m.Pointwise({size}, {from}, to, random() % 3 == 0 ? LoopOpcode::kCos : LoopOpcode::kExp);
      nodes.push_back({from, to});
    }
    const Schedule schedule = m.Run(/*fuse=*/false);
    // Steps are told by what they read and write; of equal ones any may be meant, but in their order.
    std::map<std::pair<BufferId, BufferId>, std::vector<size_t>> steps_of;
    for (size_t step = 0; step < schedule.steps.size(); ++step) {
      const ScheduledKernel& kernel = KernelAt(schedule, step);
      grouped += kernel.others.empty() ? 0 : 1;
      kernel.ForOperands([&](const LaunchOperands& operands) {
        steps_of[{operands.buffers[0], operands.buffers[1]}].push_back(step);
      });
    }
    std::vector<size_t> at;
    std::map<std::pair<BufferId, BufferId>, size_t> met;
    for (const Written& node : nodes) {
      const auto& steps = steps_of[{node.from, node.to}];
      size_t& next = met[{node.from, node.to}];
      ASSERT_LT(next, steps.size()) << seed;
      at.push_back(steps[next++]);
    }
    for (size_t a = 0; a < nodes.size(); ++a) {
      for (size_t b = a + 1; b < nodes.size(); ++b) {
        if (nodes[a].to != nodes[b].from && nodes[a].to != nodes[b].to && nodes[a].from != nodes[b].to)
          continue;
        EXPECT_LT(at[a], at[b]) << "seed " << seed << ", nodes " << a << " and " << b;
      }
    }
  }
  EXPECT_GT(grouped, 100u);
}

}  // namespace
}  // namespace kiln
