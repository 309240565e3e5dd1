#include "compiler/schedule/schedule.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "compiler/schedule/plan_memory.h"
#include "compiler/support/compiler_limits.h"
#include "gtest/gtest.h"
#include "tests/unit/loop_graph_maker.h"

namespace kiln {
namespace {

using testing::KernelAt;
using testing::kUnknown;
using testing::Maker;

int StoresOf(const ScheduledKernel& kernel) {
  int stores = 0;
  for (const v1::Stage& stage : kernel.kernel.stages()) {
    for (const v1::LoopOp& op : stage.ops()) stores += op.op() == static_cast<uint32_t>(LoopOpcode::kStore);
  }
  return stores;
}

bool Uses(const ScheduledKernel& kernel, BufferId buffer) {
  const std::vector<BufferId>& buffers = kernel.operands.buffers;
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

TEST(Schedule, PointwiseLoopsMergeToOne) {
  Maker m;
  BufferId x = m.Input({4, 8, 16});
  BufferId y = m.Buffer({4, 8, 16});
  m.Pointwise({4, 8, 16}, {x}, y, LoopOpcode::kCos);
  m.Output(y);
  Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u);
  const v1::Kernel& kernel = KernelAt(schedule, 0).kernel;
  EXPECT_EQ(kernel.outer_size(), 1);
  EXPECT_EQ(kernel.exprs(static_cast<int>(kernel.outer(0))).value(), 512);
  EXPECT_EQ(kernel.schedule().vector_dim(), v1::VECTOR_OUTER_LAST);
  EXPECT_EQ(kernel.schedule().parallel_dims(), 1u);
}

// Of a transposition nothing merges.
TEST(Schedule, AKernelHasAsManyLoopsAsItMay) {
  for (const size_t rank : {kKernelLoopsMax, kKernelLoopsMax + 1}) {
    Maker m;
    const std::vector<int64_t> sizes(rank, 2);
    const BufferId x = m.Input(sizes), y = m.Buffer(sizes);
    m.Node(sizes, {}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>&) {
      r.Store(y, v1::F32, m.At(y, o), r.Load(x, v1::F32, m.At(x, {o.rbegin(), o.rend()})));
    });
    m.graph.nodes[0].loops.origins = {7};
    m.Output(y);
    const absl::StatusOr<Schedule> schedule = ScheduleLoops(m.graph);
    if (rank == kKernelLoopsMax) {
      ASSERT_TRUE(schedule.ok()) << schedule.status();
      EXPECT_EQ(VerifyKernel(KernelAt(*schedule, 0).kernel), absl::OkStatus());
      continue;
    }
    EXPECT_EQ(schedule.status(),
              absl::UnimplementedError("kernel of loop node 0 (node 7, aten.test.default): unsupported: "
                                       "a single kernel of 17 loops, limit 16"));
  }
}

TEST(Schedule, EqualComputationsAreEqualBytes) {
  Maker m;
  for (int i = 0; i < 2; ++i) {
    BufferId x = m.Input({32, 64});
    BufferId b = m.Input({32});
    BufferId y = m.Buffer({32, 64});
    m.Pointwise({32, 64}, {x, b}, y, LoopOpcode::kMul);
    m.Output(y);
  }
  Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 2u);
  EXPECT_EQ(KernelAt(schedule, 0).kernel.SerializeAsString(),
            KernelAt(schedule, 1).kernel.SerializeAsString());
}

TEST(Schedule, ChainOfPointwiseIsOneKernelAndBuffersVanish) {
  Maker m;
  BufferId x = m.Input({32, 64});
  BufferId a = m.Buffer({32, 64});
  BufferId b = m.Buffer({32, 64});
  m.Pointwise({32, 64}, {x}, a, LoopOpcode::kExp);
  m.Pointwise({32, 64}, {a, x}, b, LoopOpcode::kAdd);
  m.Output(b);
  Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u);
  EXPECT_EQ(KernelAt(schedule, 0).operands.buffers, (std::vector<BufferId>{x, b}));
  EXPECT_EQ(m.Run(false).steps.size(), 2u);
}

TEST(Schedule, SoftmaxIsOneKernel) {
  Maker m;
  BufferId x = m.Input({64, 512});
  BufferId amax = m.Buffer({64});
  BufferId shifted = m.Buffer({64, 512});
  BufferId e = m.Buffer({64, 512});
  BufferId sum = m.Buffer({64});
  BufferId y = m.Buffer({64, 512});
  m.RowReduce(64, 512, x, amax, v1::REDUCE_MAX);
  m.Pointwise({64, 512}, {x, amax}, shifted, LoopOpcode::kSub);
  m.Pointwise({64, 512}, {shifted}, e, LoopOpcode::kExp);
  m.RowReduce(64, 512, e, sum, v1::REDUCE_SUM);
  m.Pointwise({64, 512}, {e, sum}, y, LoopOpcode::kDiv);
  m.Output(y);
  Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u) << schedule.ToString(m.graph);
  const v1::Kernel& kernel = KernelAt(schedule, 0).kernel;
  EXPECT_EQ(kernel.outer_size(), 1);
  int inner_stages = 0;
  for (const v1::Stage& stage : kernel.stages()) inner_stages += stage.inner_size() > 0;
  EXPECT_EQ(inner_stages, 3);
  EXPECT_EQ(kernel.schedule().vector_dim(), v1::VECTOR_INNER_LAST);
  EXPECT_LE(StoresOf(KernelAt(schedule, 0)), 2);  // the result, and exp kept for reading back
  // That lies in the result's memory until the result is known: no bytes of its own.
  EXPECT_EQ(KernelAt(schedule, 0).operands.buffers, (std::vector<BufferId>{x, y}));
  EXPECT_EQ(m.graph.exprs.AsConst(KernelAt(schedule, 0).bytes_read), 4 * 64 * 512);
  EXPECT_EQ(m.graph.exprs.AsConst(KernelAt(schedule, 0).bytes_written), 4 * 64 * 512);
}

// Values that are read again after a result was written can't lie in its memory, but in a later one's.
TEST(Schedule, ScratchThatOutlivesAResultLiesElsewhere) {
  for (const bool later : {false, true}) {
    Maker m;
    BufferId x = m.Input({64, 512});
    BufferId e = m.Buffer({64, 512});
    BufferId sum = m.Buffer({64});
    BufferId y = m.Buffer({64, 512});
    BufferId sum_of_y = m.Buffer({64});
    BufferId z = m.Buffer({64, 512});
    BufferId last = m.Buffer({64});
    m.Pointwise({64, 512}, {x}, e, LoopOpcode::kExp);
    m.RowReduce(64, 512, e, sum, v1::REDUCE_SUM);
    m.Pointwise({64, 512}, {e, sum}, y, LoopOpcode::kDiv);
    m.RowReduce(64, 512, y, sum_of_y, v1::REDUCE_SUM);
    m.Pointwise({64, 512}, {e, sum_of_y}, z, LoopOpcode::kSub);
    m.RowReduce(64, 512, z, last, v1::REDUCE_SUM);
    m.Output(y);
    m.Output(later ? z : last);
    Schedule schedule = m.Run();
    ASSERT_EQ(schedule.steps.size(), 1u) << schedule.ToString(m.graph);
    EXPECT_EQ(Uses(KernelAt(schedule, 0), e), !later) << schedule.ToString(m.graph);
    EXPECT_EQ(Uses(KernelAt(schedule, 0), z), later) << schedule.ToString(m.graph);
  }
}

// A result written in another order would overwrite what a later point still reads.
TEST(Schedule, ScratchAtOtherPlacesThanTheResultLiesElsewhere) {
  Maker m;
  BufferId x = m.Input({64, 512});
  BufferId e = m.Buffer({64, 512});
  BufferId sum = m.Buffer({64});
  BufferId y = m.Buffer({64, 512});
  m.Pointwise({64, 512}, {x}, e, LoopOpcode::kExp);
  m.RowReduce(64, 512, e, sum, v1::REDUCE_SUM);
  m.Node({64, 512}, {}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>&) {
    const ExprId mirrored = m.graph.exprs.Sub(m.C(511), o[1].leaf);
    const ExprId index = m.graph.exprs.Add(m.graph.exprs.Mul(o[0].leaf, m.C(512)), mirrored);
    r.Store(y, v1::F32, index,
            r.Binary(LoopOpcode::kDiv, r.Load(e, v1::F32, m.At(e, o)), r.Load(sum, v1::F32, o[0].leaf)));
  });
  m.Output(y);
  Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u) << schedule.ToString(m.graph);
  EXPECT_TRUE(Uses(KernelAt(schedule, 0), e)) << schedule.ToString(m.graph);
}

TEST(Schedule, NormalisationOfAFlattenedViewIsOneKernel) {
  Maker m;
  BufferId x = m.Input({4, 16, 96});
  BufferId h = m.Buffer({4, 16, 96});
  BufferId mean = m.Buffer({64});
  BufferId y = m.Buffer({64, 96});
  m.Pointwise({4, 16, 96}, {x}, h, LoopOpcode::kTanh);
  m.Node({64}, {96}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
    ExprId index = m.graph.exprs.Add(m.graph.exprs.Mul(o[0].leaf, m.C(96)), i[0].leaf);
    r.Store(mean, v1::F32, m.At(mean, o), r.Reduce(v1::REDUCE_SUM, r.Load(h, v1::F32, index)));
  });
  m.Node({64, 96}, {}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>&) {
    LoopOpId value = r.Load(h, v1::F32, m.At(y, o));
    r.Store(y, v1::F32, m.At(y, o), r.Sub(value, r.Load(mean, v1::F32, o[0].leaf)));
  });
  m.Output(y);
  Schedule schedule = m.Run();
  EXPECT_EQ(schedule.steps.size(), 1u) << schedule.ToString(m.graph);
}

TEST(Schedule, TransposedReaderIsReordered) {
  Maker m;
  BufferId x = m.Input({32, 64});
  BufferId a = m.Buffer({32, 64});
  BufferId b = m.Buffer({32, 64});
  m.Pointwise({32, 64}, {x}, a, LoopOpcode::kExp);
  // The same elements in column order.
  m.Node({64, 32}, {}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>&) {
    ExprId index = m.At(a, {o[1], o[0]});
    r.Store(b, v1::F32, index, r.Unary(LoopOpcode::kNeg, r.Load(a, v1::F32, index)));
  });
  m.Output(b);
  Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u);
  EXPECT_EQ(KernelAt(schedule, 0).kernel.outer_size(), 1);
}

TEST(Schedule, ShiftedReadIsNotFused) {
  Maker m;
  BufferId x = m.Input({65});
  BufferId a = m.Buffer({65});
  BufferId b = m.Buffer({64});
  m.Pointwise({65}, {x}, a, LoopOpcode::kExp);
  m.Node({64}, {}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>&) {
    r.Store(b, v1::F32, o[0].leaf, r.Load(a, v1::F32, m.graph.exprs.Add(o[0].leaf, m.C(1))));
  });
  m.Output(b);
  EXPECT_EQ(m.Run().steps.size(), 2u);
}

// Bytes are the least that must move: a buffer counts once, and for no more than the loops can touch of it.
TEST(Schedule, BytesOfAPartAndOfRowsReadAgain) {
  Maker m;
  BufferId table = m.Input({1000, 512});
  BufferId scale = m.Input({8});
  BufferId sums = m.Buffer({8});
  BufferId y = m.Buffer({8, 512});
  m.RowReduce(8, 512, table, sums, v1::REDUCE_SUM);
  m.Node({8, 512}, {}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>&) {
    LoopOpId value = r.Binary(LoopOpcode::kDiv, r.Load(table, v1::F32, m.At(table, o)),
                              r.Load(sums, v1::F32, m.At(sums, {o[0]})));
    r.Store(y, v1::F32, m.At(y, o),
            r.Binary(LoopOpcode::kMul, value, r.Load(scale, v1::F32, m.At(scale, {o[0]}))));
  });
  m.Output(y);
  Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u);
  const ScheduledKernel& kernel = KernelAt(schedule, 0);
  EXPECT_EQ(m.graph.exprs.AsConst(kernel.bytes_read), 4 * (8 * 512 + 8));
  EXPECT_EQ(m.graph.exprs.AsConst(kernel.bytes_written), 4 * 8 * 512);
}

TEST(Schedule, TwoReadersOfOneBufferShareAKernel) {
  Maker m;
  BufferId x = m.Input({32, 64});
  BufferId a = m.Buffer({32, 64});
  BufferId b = m.Buffer({32, 64});
  m.Pointwise({32, 64}, {x}, a, LoopOpcode::kExp);
  m.Pointwise({32, 64}, {x}, b, LoopOpcode::kTanh);
  m.Output(a);
  m.Output(b);
  Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u);
  EXPECT_EQ(KernelAt(schedule, 0).operands.buffers.size(), 3u);
}

TEST(Schedule, ColumnSumsShareAKernelWithTheirPrologue) {
  Maker m;
  BufferId g = m.Input({128, 256});
  BufferId x = m.Input({128, 256});
  BufferId p = m.Buffer({128, 256});
  BufferId s1 = m.Buffer({256});
  BufferId s2 = m.Buffer({256});
  m.Pointwise({128, 256}, {g, x}, p, LoopOpcode::kMul);
  for (auto [from, to] : {std::pair(p, s1), std::pair(g, s2)}) {
    m.Node({256}, {128}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
      LoopOpId value = r.Load(from, v1::F32, m.At(from, {i[0], o[0]}));
      r.Store(to, v1::F32, o[0].leaf, r.Reduce(v1::REDUCE_SUM, value));
    });
  }
  m.Output(s1);
  m.Output(s2);
  Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u) << schedule.ToString(m.graph);
  const v1::Kernel& kernel = KernelAt(schedule, 0).kernel;
  EXPECT_EQ(kernel.schedule().vector_dim(), v1::VECTOR_OUTER_LAST);
  EXPECT_EQ(kernel.buffers_size(), 4);
}

TEST(Schedule, LargeColumnSumsRunInBlocksOfRowsWithTheirPrologue) {
  Maker m;
  BufferId x = m.Input({2048, 1024});
  BufferId y = m.Input({2048, 1024});
  BufferId p = m.Buffer({2048, 1024});
  BufferId s = m.Buffer({1024});
  m.Pointwise({2048, 1024}, {x, y}, p, LoopOpcode::kMul);
  m.Node({1024}, {2048}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
    LoopOpId sum = r.Reduce(v1::REDUCE_SUM, r.Load(p, v1::F32, m.At(p, {i[0], o[0]})));
    r.Store(s, v1::F32, o[0].leaf, r.Mul(sum, r.Constant(0.5, v1::F32)));
  });
  m.Output(p);
  m.Output(s);
  Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 2u) << schedule.ToString(m.graph);
  const v1::Kernel& first = KernelAt(schedule, 0).kernel;
  EXPECT_EQ(first.outer_size(), 2);
  EXPECT_EQ(first.buffers_size(), 4);  // x, y, p and the partial sums
  EXPECT_EQ(first.schedule().vector_dim(), v1::VECTOR_OUTER_LAST);
  EXPECT_EQ(KernelAt(schedule, 1).kernel.buffers_size(), 2);
}

// Whole blocks, and a pass over the rows behind the last one, which adds one more row of partial sums.
TEST(Schedule, LargeColumnSumsOfUnknownRowsRunInBlocksToo) {
  const auto schedule = [](int64_t columns, v1::DeviceType device) {
    Maker m;
    const BufferId x = m.Input({kUnknown, columns}), s = m.Buffer({columns});
    m.Node({columns}, {kUnknown},
           [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
             const LoopOpId value = r.Load(x, v1::F32, m.At(x, {i[0], o[0]}));
             r.Store(s, v1::F32, m.At(s, o), r.Reduce(v1::REDUCE_SUM, value));
           });
    m.Output(s);
    for (LoopBuffer& buffer : m.graph.buffers) buffer.device = device;
    return m.Run();
  };
  const Schedule large = schedule(4096, v1::CPU);
  ASSERT_EQ(large.steps.size(), 3u);
  const v1::Kernel &blocks = KernelAt(large, 0).kernel, &rest = KernelAt(large, 1).kernel;
  EXPECT_EQ(blocks.outer_size(), 2);
  EXPECT_EQ(blocks.schedule().vector_dim(), v1::VECTOR_OUTER_LAST);
  EXPECT_EQ(rest.outer_size(), 1);
  EXPECT_EQ(rest.schedule().vector_dim(), v1::VECTOR_OUTER_LAST);
  EXPECT_EQ(schedule(1024, v1::CPU).steps.size(), 1u);  // a symbol counts as 256 rows
  EXPECT_EQ(schedule(4096, v1::CUDA).steps.size(), 1u);
}

TEST(Schedule, RowSumsOfALayoutAndOfItsTransposeStayApart) {
  Maker m;
  BufferId x = m.Input({256, 256});
  BufferId y = m.Input({256, 256});
  BufferId a = m.Buffer({256});
  BufferId b = m.Buffer({256, 256});
  BufferId c = m.Buffer({256});
  m.RowReduce(256, 256, x, a, v1::REDUCE_SUM);
  m.Pointwise({256, 256}, {x, a}, b, LoopOpcode::kSub);
  // Sums over the second dimension of a tensor that lies the other way.
  m.Node({256}, {256}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
    LoopOpId value = r.Mul(r.Load(y, v1::F32, m.At(y, {i[0], o[0]})), r.Load(a, v1::F32, o[0].leaf));
    r.Store(c, v1::F32, o[0].leaf, r.Reduce(v1::REDUCE_SUM, value));
  });
  m.Output(b);
  m.Output(c);
  EXPECT_EQ(m.Run().steps.size(), 2u);
}

// A layer norm that hands out its means, of more rows than a kernel of small work has elements.
TEST(Schedule, ManyRowsShareAKernelWithTheirNumbers) {
  Maker m;
  BufferId x = m.Input({65536, 256});
  BufferId sum = m.Buffer({65536});
  BufferId mean = m.Buffer({65536});
  BufferId y = m.Buffer({65536, 256});
  m.RowReduce(65536, 256, x, sum, v1::REDUCE_SUM);
  m.Pointwise({65536}, {sum}, mean, LoopOpcode::kExp);
  m.Pointwise({65536, 256}, {x, mean}, y, LoopOpcode::kSub);
  m.Output(mean);
  m.Output(y);
  Schedule schedule = m.Run();
  EXPECT_EQ(schedule.steps.size(), 1u) << schedule.ToString(m.graph);
}

// What the graph's end makes of an early value would keep that alive to the end.
TEST(Schedule, LoopsThatNothingWaitsForGoWhereTheyFreeMemory) {
  for (const bool frees : {true, false}) {
    Maker m;
    BufferId x = m.Input({64, 512});
    BufferId early = m.Buffer({64, 512});
    BufferId a = m.Buffer({64, 512});
    BufferId b = m.Buffer({64, 512});
    BufferId late = frees ? m.Buffer({64}) : m.Buffer({64, 512});
    m.Pointwise({64, 512}, {x}, early, LoopOpcode::kExp);
    m.Pointwise({64, 512}, {early}, a, LoopOpcode::kNeg);
    m.Pointwise({64, 512}, {a}, b, LoopOpcode::kExp);
    if (frees) {
      m.RowReduce(64, 512, early, late, v1::REDUCE_SUM);
    } else {
      m.Pointwise({64, 512}, {early}, late, LoopOpcode::kExp);
    }
    m.Output(b);
    m.Output(late);
    const Schedule schedule = m.Run(false);
    ASSERT_EQ(schedule.steps.size(), 4u);
    const std::vector<BufferId>& buffers = KernelAt(schedule, frees ? 2 : 3).operands.buffers;
    EXPECT_NE(std::find(buffers.begin(), buffers.end(), late), buffers.end()) << schedule.ToString(m.graph);
  }
}

// Both kernels free what the call reads, so they would come before the checks; the second stores to an input.
TEST(Schedule, UsesOfASymbolFollowItsChecks) {
  Maker m;
  m.graph.symbols.emplace_back();
  m.graph.symbols[0].set_kind(v1::SYMBOL_UNBACKED);
  m.graph.symbols[0].set_max(64);
  m.graph.symbols[0].mutable_binding()->set_source(v1::SymbolBinding::VALUE_SIZE);
  const ExprId size = m.graph.exprs.Symbol(0, {0, 64});
  const BufferId x = m.Input({64}), written = m.Input({64}), big = m.Buffer({64, 64}), found = m.Buffer({1}),
                 used = m.Buffer({1});
  for (const BufferId b : {found, used}) m.graph.buffers[b].sizes[0] = m.graph.buffers[b].span = size;
  const auto reads_big = [&](BufferId to) {
    m.Node({64}, {}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>&) {
      r.Store(to, v1::F32, o[0].leaf, r.Load(big, v1::F32, o[0].leaf));
    });
  };
  m.Node({64, 64}, {}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>&) {
    r.Store(big, v1::F32, m.At(big, o), r.Load(x, v1::F32, o[1].leaf));
  });
  m.Call("aten.nonzero.default", {big}, found);
  m.graph.nodes.back().call.binds = {{0, 0, 0}};
  reads_big(used);
  m.graph.nodes.back().loops.outer[0].extent = size;
  reads_big(written);
  m.Output(used);
  for (const int64_t bound : {7, 9})
    EXPECT_TRUE(m.graph.Require(m.graph.exprs.Ne(size, m.graph.exprs.Const(bound))));
  EXPECT_TRUE(m.graph.guards.empty());
  m.graph.PlaceChecks();
  EXPECT_TRUE(m.graph.checks.empty());
  const Schedule schedule = m.Run(false);
  std::string kinds;  // kernels, library calls, checks
  for (const ScheduledStep& step : schedule.steps) {
    kinds += std::holds_alternative<ScheduledKernel>(step) ? 'k'
             : std::holds_alternative<CallNode>(step)      ? 'l'
                                                           : 'c';
  }
  EXPECT_EQ(kinds, "klcckk") << schedule.ToString(m.graph);
  EXPECT_TRUE(PlanMemory(m.graph, schedule).ok());
}

// The first call's operand is made in one kernel with what comes last. The control: calls that do not draw.
TEST(Schedule, DrawsKeepTheirOrder) {
  for (const bool draws : {true, false}) {
    Maker m;
    BufferId x = m.Input({64, 64});
    BufferId a = m.Buffer({64, 64}), first = m.Buffer({64, 64}), second = m.Buffer({64, 64});
    BufferId b = m.Buffer({64, 64});
    m.Pointwise({64, 64}, {x}, a, LoopOpcode::kExp);
    m.Call("aten.bernoulli.default", {a}, first);
    m.Call("aten.bernoulli.default", {x}, second);
    for (size_t n : {1, 2}) m.graph.nodes[n].call.draws = draws;
    m.Pointwise({64, 64}, {x}, b, LoopOpcode::kNeg);
    for (BufferId result : {first, second, b}) m.Output(result);
    std::vector<int64_t> called;
    for (const ScheduledStep& step : m.Run().steps) {
      if (const auto* call = std::get_if<CallNode>(&step)) called.push_back(call->results[0]);
    }
    EXPECT_EQ(called, draws ? (std::vector<int64_t>{first, second}) : (std::vector<int64_t>{second, first}));
  }
}

TEST(Schedule, NoFusionAcrossACallThatNeedsTheFirst) {
  Maker m;
  BufferId x = m.Input({32, 32});
  BufferId a = m.Buffer({32, 32});
  BufferId c = m.Buffer({32, 32});
  BufferId b = m.Buffer({32, 32});
  m.Pointwise({32, 32}, {x}, a, LoopOpcode::kExp);
  m.Call("aten.mm.default", {a, x}, c);
  m.Pointwise({32, 32}, {a, c}, b, LoopOpcode::kAdd);
  m.Output(b);
  Schedule schedule = m.Run();
  EXPECT_EQ(schedule.steps.size(), 3u);
}

TEST(Schedule, WholeSumDoesNotSwallowParallelWork) {
  Maker m;
  BufferId x = m.Input({1024, 1024});
  BufferId a = m.Buffer({1024, 1024});
  BufferId s = m.Buffer({});
  m.Pointwise({1024, 1024}, {x}, a, LoopOpcode::kExp);
  m.Node({}, {1024, 1024}, [&](LoopRecorder& r, const std::vector<LoopVar>&, const std::vector<LoopVar>& i) {
    r.Store(s, v1::F32, m.C(0), r.Reduce(v1::REDUCE_SUM, r.Load(a, v1::F32, m.At(a, i))));
  });
  m.Output(a);
  m.Output(s);
  EXPECT_GE(m.Run().steps.size(), 2u);
}

TEST(Schedule, InPlaceUpdateOfAnInputStaysInOrder) {
  Maker m;
  BufferId x = m.Input({64});
  BufferId y = m.Buffer({64});
  m.Pointwise({64}, {x}, y, LoopOpcode::kExp);
  m.Pointwise({64}, {y}, x, LoopOpcode::kNeg);
  m.Output(y);
  Schedule schedule = m.Run();
  ASSERT_EQ(schedule.steps.size(), 1u);
  const v1::Stage& stage = KernelAt(schedule, 0).kernel.stages(0);
  bool stored = false;
  for (const v1::LoopOp& op : stage.ops()) {
    bool on_x = KernelAt(schedule, 0).operands.buffers[op.buffer()] == x;
    if (op.op() == static_cast<uint32_t>(LoopOpcode::kStore) && on_x) stored = true;
    bool load = op.op() == static_cast<uint32_t>(LoopOpcode::kLoad);
    EXPECT_FALSE(stored && load && on_x);
  }
  EXPECT_TRUE(stored);
}

// x - max(x) could be had again in the last stage, but x is another by then.
TEST(Schedule, ValueOfAnOverwrittenInputIsKept) {
  Maker m;
  BufferId x = m.Input({64, 512});
  BufferId amax = m.Buffer({64});
  BufferId shifted = m.Buffer({64, 512});
  BufferId sum = m.Buffer({64});
  BufferId y = m.Buffer({64, 512});
  m.RowReduce(64, 512, x, amax, v1::REDUCE_MAX);
  m.Pointwise({64, 512}, {x, amax}, shifted, LoopOpcode::kSub);
  m.RowReduce(64, 512, shifted, sum, v1::REDUCE_SUM);
  m.Pointwise({64, 512}, {x, amax}, x, LoopOpcode::kMul);
  m.Pointwise({64, 512}, {shifted, sum}, y, LoopOpcode::kDiv);
  m.Output(y);
  Schedule schedule = m.Run();
  ASSERT_FALSE(schedule.steps.empty());
  // The result, x, and the shifted values for reading back (in the result's memory).
  EXPECT_EQ(StoresOf(KernelAt(schedule, schedule.steps.size() - 1)), 3) << schedule.ToString(m.graph);
}

TEST(PlanMemory, DeadBufferIsOverwrittenInPlace) {
  enum class Result { kInto, kOwn, kAnybodys };
  for (const Result result : {Result::kInto, Result::kOwn, Result::kAnybodys}) {
    Maker m;
    BufferId x = m.Input({64, 64});
    BufferId a = m.Buffer({64, 64});
    BufferId c = m.Buffer({64, 64});
    BufferId d = m.Buffer({64, 64});
    m.Call("aten.mm.default", {x, x}, a);
    m.graph.nodes.back().call.into_results = result == Result::kInto;
    m.graph.nodes.back().call.own_results = result == Result::kOwn;
    m.Pointwise({64, 64}, {a}, c, LoopOpcode::kExp);
    m.Call("aten.mm.default", {c, x}, d);
    m.Output(d);
    Schedule schedule = m.Run();
    absl::StatusOr<MemoryPlan> plan = PlanMemory(m.graph, schedule);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_EQ(plan->steps.size(), 3u);
    ASSERT_EQ(plan->steps[1].allocate.size(), 1u);
    const bool in_place = result != Result::kAnybodys;
    EXPECT_EQ(plan->steps[1].allocate[0].reuse, in_place ? int64_t{a} : -1);
    EXPECT_EQ(plan->in_place, in_place ? 1u : 0u);
    // c goes after the last call, a's storage went with it; x is an input and is released, too.
    EXPECT_EQ(plan->steps[2].release, (std::vector<BufferId>{x, c}));
  }
}

TEST(PlanMemory, OutputsAndStaticInputsStay) {
  Maker m;
  BufferId x = m.Input({64});
  BufferId w = m.Input({64});
  m.graph.inputs[1].fact.set_is_static(true);
  BufferId y = m.Buffer({64});
  m.Pointwise({64}, {x, w}, y, LoopOpcode::kMul);
  m.Output(y);
  Schedule schedule = m.Run();
  absl::StatusOr<MemoryPlan> plan = PlanMemory(m.graph, schedule);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->steps[0].release, (std::vector<BufferId>{x}));
}

// Sums down a matrix in two passes: on a GPU, where columns alone are too few threads, of smaller ones too.
TEST(Schedule, SumsOfLongColumnsTakeTwoPasses) {
  const auto passes = [](int64_t rows, v1::DeviceType device, int64_t columns = 512) {
    Maker m;
    const BufferId x = m.Input({rows, columns}), y = m.Buffer({columns});
    m.Node({columns}, {rows},
           [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
             const LoopOpId value = r.Load(x, v1::F32, m.At(x, {i[0], o[0]}));
             r.Store(y, v1::F32, m.At(y, o), r.Reduce(v1::REDUCE_SUM, value));
           });
    m.Output(y);
    for (LoopBuffer& buffer : m.graph.buffers) buffer.device = device;
    return m.Run().steps.size();
  };
  EXPECT_EQ(passes(4096, v1::CPU), passes(1024, v1::CUDA));
  EXPECT_GT(passes(1024, v1::CUDA), passes(1024, v1::CPU));
  EXPECT_EQ(passes(256, v1::CUDA), passes(1024, v1::CPU));
  EXPECT_EQ(passes(12'544, v1::CUDA, 16), passes(4096, v1::CPU));
}

// Threads of a GPU that share a column leave to one of them what it stores, at the end.
TEST(Schedule, StoresOfAPointWaitForItsLastStageOnAGpu) {
  for (const v1::DeviceType device : {v1::CPU, v1::CUDA}) {
    Maker m;
    const BufferId x = m.Input({64, 16}), mean = m.Buffer({16}), squares = m.Buffer({16});
    m.Node({16}, {64}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
      const LoopOpId value = r.Load(x, v1::F32, m.At(x, {i[0], o[0]}));
      r.Store(mean, v1::F32, m.At(mean, o), r.Reduce(v1::REDUCE_SUM, value));
    });
    m.Node({16}, {64}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
      const LoopOpId value = r.Load(x, v1::F32, m.At(x, {i[0], o[0]}));
      const LoopOpId apart = r.Sub(value, r.Load(mean, v1::F32, m.At(mean, o)));
      r.Store(squares, v1::F32, m.At(squares, o), r.Reduce(v1::REDUCE_SUM, r.Mul(apart, apart)));
    });
    m.Output(mean);
    m.Output(squares);
    for (LoopBuffer& buffer : m.graph.buffers) buffer.device = device;
    const Schedule schedule = m.Run();
    ASSERT_EQ(schedule.steps.size(), 1u);
    const v1::Kernel& kernel = KernelAt(schedule, 0).kernel;
    int storing = 0;
    for (const v1::Stage& stage : kernel.stages()) {
      storing += std::any_of(stage.ops().begin(), stage.ops().end(), [](const v1::LoopOp& op) {
        return static_cast<LoopOpcode>(op.op()) == LoopOpcode::kStore;
      });
    }
    EXPECT_EQ(storing, device == v1::CUDA ? 1 : 2);
  }
}

// A layer norm's backward on a GPU: what reduces rows and what sums the same rows down their columns is one
// kernel, between one of zeros and one that adds up the strips.
TEST(Schedule, RowsAndTheirColumnsOnAGpuShareAKernelOfStrips) {
  for (const int64_t columns : {1024, 1028}) {  // of the second a row is not of whole vectors
    for (const v1::DeviceType device : {v1::CPU, v1::CUDA}) {
      Maker m;
      const int64_t rows = 4100;
      const BufferId x = m.Input({rows, columns}), largest = m.Buffer({rows}), y = m.Buffer({rows, columns}),
                     sums = m.Buffer({columns}), squares = m.Buffer({columns});
      m.Node({rows}, {columns},
             [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
               const LoopOpId value = r.Load(x, v1::F32, m.At(x, {o[0], i[0]}));
               r.Store(largest, v1::F32, m.At(largest, o), r.Reduce(v1::REDUCE_MAX, value));
             });
      for (const BufferId to : {sums, squares}) {
        m.Node({columns}, {rows},
               [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
                 const LoopOpId value = r.Load(x, v1::F32, m.At(x, {i[0], o[0]}));
                 r.Store(to, v1::F32, m.At(to, o),
                         r.Reduce(v1::REDUCE_SUM, to == sums ? value : r.Mul(value, value)));
               });
      }
      m.Node({rows, columns}, {},
             [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>&) {
               const LoopOpId most = r.Load(largest, v1::F32, m.At(largest, {o[0]}));
               r.Store(y, v1::F32, m.At(y, o), r.Sub(r.Load(x, v1::F32, m.At(x, o)), most));
             });
      for (const BufferId b : {y, sums, squares}) m.Output(b);
      for (LoopBuffer& buffer : m.graph.buffers) buffer.device = device;
      const Schedule schedule = m.Run();
      const bool strips = device == v1::CUDA && columns == 1024;
      EXPECT_EQ(schedule.steps.size(), 4u) << schedule.ToString(m.graph);
      int64_t reading = 0;
      for (size_t step = 0; step < schedule.steps.size(); ++step) {
        const ScheduledKernel& kernel = KernelAt(schedule, step);
        if (!Uses(kernel, x)) continue;
        ++reading;
        if (!strips) continue;
        EXPECT_EQ(kernel.kernel.schedule().chunk(), 16u);  // 264 strips, or fewer
        EXPECT_EQ(m.graph.exprs.AsConst(kernel.operands.units), 257);
      }
      EXPECT_EQ(reading, strips ? 1 : 2);
      EXPECT_TRUE(PlanMemory(m.graph, schedule).ok());
    }
  }
}

}  // namespace
}  // namespace kiln
