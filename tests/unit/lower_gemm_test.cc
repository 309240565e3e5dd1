// Gemms of few rows on a GPU: a loop of our own, which shares its kernel with what follows it and nothing
// else.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "compiler/schedule/gemm_threads.h"
#include "compiler/schedule/schedule.h"
#include "tests/unit/lower_testing.h"

namespace kiln {
namespace {

constexpr int64_t kRows = 4, kColumns = 32, kDepth = 64;

struct Layer : GraphMaker {
  v1::DType dtype = v1::F32;
  v1::DeviceType device = v1::CUDA;
  int64_t rows = kRows, columns = kColumns, depth = kDepth;

  // A linear layer's weights have a row for each column of the gemm.
  ValueId Weights() {
    TensorType type = Type(dtype, Sizes({depth, columns}));
    type.strides = Sizes({1, depth});
    return InputOf(std::move(type));
  }
  ValueId X() { return Input(dtype, {rows, depth}); }
  ValueId Gemm(ValueId a, ValueId b, std::optional<ValueId> c = std::nullopt, Args more = {}) {
    Args args = {{"a", T(a)}, {"b", T(b)}};
    if (c) args.emplace_back("c", T(*c));
    for (auto& argument : more) args.push_back(std::move(argument));
    return NodeOf("kiln.gemm.default", std::move(args),
                  Type(dtype, {graph.type(a).sizes[0], graph.type(b).sizes[1]}));
  }
  ValueId Unary(const std::string& name, ValueId x) {
    return NodeOf("aten." + name + ".default", {{"self", T(x)}}, graph.type(x));
  }
  LoopGraph Lowered() {
    for (TensorType& type : graph.values) type.device = device;
    return Lower(*this);
  }
};

std::vector<float> Numbers(size_t count, int step, int most) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i)
    numbers[i] = static_cast<float>(static_cast<int>(i) * step % most - most / 2);
  return numbers;
}

struct Kernels {
  int gemms = 0, others = 0, calls = 0;
  bool operator==(const Kernels&) const = default;
};
Kernels KernelsOf(LoopGraph& graph) {
  Kernels kernels;
  const absl::StatusOr<Schedule> schedule = ScheduleLoops(graph, {});
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  if (!schedule.ok()) return kernels;
  for (const ScheduledStep& step : schedule->steps) {
    kernels.calls += std::holds_alternative<CallNode>(step);
    const auto* kernel = std::get_if<ScheduledKernel>(&step);
    if (kernel == nullptr) continue;
    const bool gemm = ChooseGemmThreads(KernelFacts(kernel->kernel), {}).has_value();
    ++(gemm ? kernels.gemms : kernels.others);
  }
  return kernels;
}

TEST(LowerGemm, OfFewRowsIsALoopOnAGpu) {
  const std::vector<float> x = Numbers(kRows * kDepth, 7, 11), w = Numbers(kColumns * kDepth, 5, 7);
  for (const char* adds : {"nothing", "a row", "a matrix", "a number"}) {
    Layer m;
    const ValueId a = m.X(), b = m.Weights();
    const std::string what = adds;
    const std::vector<int64_t> sizes = what == "a row"      ? std::vector<int64_t>{kColumns}
                                       : what == "a matrix" ? std::vector<int64_t>{kRows, kColumns}
                                                            : std::vector<int64_t>{};
    std::optional<ValueId> c;
    if (what != "nothing") c = m.Input(v1::F32, sizes);
    m.Output(m.Gemm(a, b, c, {{"beta", FloatArg{3}}, {"alpha", FloatArg{0.5}}}));
    const LoopGraph graph = m.Lowered();
    EXPECT_EQ(LoopCount(graph), what == "nothing" ? 1u : 2u) << graph.ToString();
    const std::vector<float> added = Numbers(sizes.empty()       ? 1
                                             : sizes.size() == 1 ? kColumns
                                                                 : kRows * kColumns,
                                             3, 5);
    std::vector<BufferBytes> inputs = {Bytes<float>(x), Bytes<float>(w)};
    if (c) inputs.push_back(Bytes<float>(added));
    const std::vector<float> got = Values<float>(Eval(graph, inputs).outputs[0]);
    ASSERT_EQ(got.size(), static_cast<size_t>(kRows * kColumns));
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < kDepth; ++k) sum += x[i * kDepth + k] * w[j * kDepth + k];
        const size_t at = sizes.empty() ? 0 : sizes.size() == 1 ? j : i * kColumns + j;
        ASSERT_EQ(got[i * kColumns + j], 0.5f * sum + (c ? 3 * added[at] : 0))
            << what << " " << i << " " << j;
      }
    }
  }
}

TEST(LowerGemm, OfOthersIsACall) {
  for (const v1::DeviceType device : {v1::CPU, v1::CUDA}) {
    Layer m;
    m.device = device;
    m.Output(m.Gemm(m.X(), m.Weights()));
    LoopGraph graph = m.Lowered();
    EXPECT_EQ(KernelsOf(graph).calls, device == v1::CPU ? 1 : 0);
  }
  Layer m;
  m.columns += 2;  // no whole tiles
  m.Output(m.Gemm(m.X(), m.Weights()));
  LoopGraph graph = m.Lowered();
  EXPECT_EQ(KernelsOf(graph).calls, 1);
}

TEST(LowerGemm, SharesItsKernelWithWhatFollows) {
  for (const v1::DType dtype : {v1::F32, v1::BF16}) {
    Layer m;
    m.dtype = dtype;
    // Large enough for the layout of what follows to matter, were it not a gemm.
    m.rows = 16;
    m.columns = m.depth = 1024;
    const ValueId bias = m.Input(dtype, {m.columns}), residual = m.Input(dtype, {m.rows, m.columns});
    const ValueId sum = m.Gemm(m.X(), m.Weights(), bias);
    const ValueId gated = m.NodeOf(
        "aten.mul.Tensor", {{"self", T(sum)}, {"other", T(m.Unary("sigmoid", sum))}}, m.graph.type(sum));
    m.Output(m.NodeOf("aten.add.Tensor", {{"self", T(gated)}, {"other", T(residual)}}, m.graph.type(sum)));
    m.Output(sum);
    LoopGraph graph = m.Lowered();
    EXPECT_EQ(KernelsOf(graph), (Kernels{.gemms = 1})) << graph.ToString();
  }
}

// A head's columns are a loop of their own behind the view.
TEST(LowerGemm, SharesItsKernelWithWhatFollowsAView) {
  Layer m;
  const ValueId sum = m.Gemm(m.X(), m.Weights());
  const ValueId heads = m.NodeOf("aten.view.default", {{"self", T(sum)}, {"size", m.Ints({2, 2, 4, 8})}},
                                 m.Type(v1::F32, m.Sizes({2, 2, 4, 8})));
  const ValueId scale = m.Input(v1::F32, {2, 1, 4, 8});
  m.Output(m.NodeOf("aten.mul.Tensor", {{"self", T(heads)}, {"other", T(scale)}}, m.graph.type(heads)));
  LoopGraph graph = m.Lowered();
  EXPECT_EQ(KernelsOf(graph), (Kernels{.gemms = 1})) << graph.ToString();
}

// Of one size, and of one left factor: neither they nor what makes that factor share a kernel.
TEST(LowerGemm, SharesItsKernelWithNoOtherLoop) {
  Layer m;
  const ValueId x = m.Unary("sigmoid", m.X());
  const ValueId gate = m.Unary("sigmoid", m.Gemm(x, m.Weights())), up = m.Gemm(x, m.Weights());
  const ValueId product =
      m.NodeOf("aten.mul.Tensor", {{"self", T(gate)}, {"other", T(up)}}, m.graph.type(up));
  m.Output(product);
  m.Output(m.NodeOf("aten.sum.dim_IntList", {{"self", T(product)}, {"dim", m.Ints({1})}},
                    m.Type(v1::F32, m.Sizes({kRows}))));
  LoopGraph graph = m.Lowered();
  EXPECT_EQ(KernelsOf(graph), (Kernels{.gemms = 2, .others = 2})) << graph.ToString();
}

// Weights of 8 bits with a scale for each, and what is cheap of the rows, are made where they are read.
TEST(LowerGemm, MakesFactorsWhereItReadsThem) {
  for (const bool cheap : {true, false}) {
    for (const bool columns_beside : {false, true}) {
      Layer m;
      m.dtype = v1::BF16;
      const ValueId x = m.X(), double_x = m.NodeOf("aten.add.Tensor", {{"self", T(x)}, {"other", T(x)}},
                                                   m.graph.type(x));
      const ValueId a = cheap ? double_x : m.Unary("tanh", double_x);
      TensorType stored = m.Type(v1::I8, m.Sizes({kDepth, kColumns}));
      if (!columns_beside) stored.strides = m.Sizes({1, kDepth});
      TensorType made = stored;
      made.dtype = v1::BF16;
      const ValueId wide = m.NodeOf("aten._to_copy.default",
                                    {{"self", T(m.InputOf(stored))}, {"dtype", DTypeArg{v1::BF16}}}, made);
      const ValueId scale = m.Input(v1::BF16, {kColumns});
      const ValueId b = m.NodeOf("aten.mul.Tensor", {{"self", T(wide)}, {"other", T(scale)}}, made);
      m.Output(m.Gemm(a, b));
      LoopGraph graph = m.Lowered();
      const int stored_factors = (cheap ? 0 : 1) + (columns_beside ? 1 : 0);
      EXPECT_EQ(KernelsOf(graph), (Kernels{.gemms = 1, .others = stored_factors})) << graph.ToString();
    }
  }
}

// Alike kernels become members of one launch, but gemms, which are many blocks each.
TEST(LowerGemm, IsNoMemberOfALaunch) {
  Layer m;
  for (int k = 0; k < 8; ++k) m.Output(m.Gemm(m.X(), m.Weights()));
  LoopGraph graph = m.Lowered();
  EXPECT_EQ(KernelsOf(graph), (Kernels{.gemms = 8}));
}

}  // namespace
}  // namespace kiln
