// Which gemms take a bias along that is added to them.
#include "compiler/passes/fuse_bias.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "compiler/graph/arguments.h"
#include "compiler/graph/verify_graph.h"
#include "compiler/library/gemm.h"
#include "compiler/passes/pipeline.h"
#include "gtest/gtest.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

// view(a b) + bias, as torch writes a linear layer on an input that is not contiguous.
struct BiasedGemm : Maker {
  v1::DType dtype = v1::F32;
  std::vector<int64_t> viewed = {2, 4, 4};  // of [8, 4]; empty: no view
  std::vector<int64_t> bias_sizes = {4};
  v1::DType bias_dtype = v1::F32, sum_dtype = v1::F32;
  bool bias_first = false, bias_late = false, pointwise_bias = false;
  Args more;  // arguments of the sum
  ValueId a, b, bias, gemm, term, sum;

  void SetDType(v1::DType all) { dtype = bias_dtype = sum_dtype = all; }
  void MakeBias() {
    bias = Input(bias_sizes, bias_dtype);
    if (bias_late)
      bias = Node("aten.slice.Tensor",
                  {{"self", T(Input({8}, bias_dtype))},
                   {"dim", Int(0)},
                   {"start", Int(0)},
                   {"end", Int(4)},
                   {"step", Int(1)}},
                  Type(bias_sizes, bias_dtype));
    if (pointwise_bias) bias = Node("aten.exp.default", {{"self", T(bias)}}, Type(bias_sizes, bias_dtype));
  }
  void Make() {
    a = Input({8, 5}, dtype);
    b = Input({5, 4}, dtype);
    if (!bias_late) MakeBias();
    term = gemm = Node("kiln.gemm.default", GemmArguments({.a = a, .b = b}), Type({8, 4}, dtype));
    if (!viewed.empty())
      term = Node("aten.view.default", {{"self", T(gemm)}, {"size", Ints(viewed)}}, Type(viewed, dtype));
    if (bias_late) MakeBias();
    Args args = {{"self", T(bias_first ? bias : term)}, {"other", T(bias_first ? term : bias)}};
    args.insert(args.end(), more.begin(), more.end());
    sum =
        Node("aten.add.Tensor", args, Type(viewed.empty() ? std::vector<int64_t>{8, 4} : viewed, sum_dtype));
    Output(sum);
  }
  std::vector<std::string> Run() {
    EXPECT_TRUE(FuseBias(graph).ok());
    EXPECT_TRUE(VerifyGraph(graph).ok());
    return Targets(graph);
  }
};

const std::vector<std::string> kFused = {"kiln.gemm.default", "aten.view.default"};

TEST(FuseBias, AddsItInTheGemm) {
  for (v1::DType dtype : {v1::F32, v1::F64, v1::F16, v1::BF16}) {
    for (bool bias_first : {false, true}) {
      BiasedGemm m;
      m.SetDType(dtype);
      m.bias_first = bias_first;
      m.Make();
      EXPECT_EQ(m.Run(), kFused);
      const GraphNode& sum = m.graph.nodes[0];
      EXPECT_EQ(TensorOf(sum, "c"), m.bias);
      EXPECT_EQ(TensorOf(sum, "a"), m.a);
      EXPECT_EQ(TensorOf(sum, "b"), m.b);
      const TensorType& out = m.graph.type(m.graph.outputs[0].value);
      EXPECT_EQ(out.sizes, m.graph.type(m.sum).sizes);
      EXPECT_EQ(out.strides, m.graph.type(m.sum).strides);
    }
  }
}

TEST(FuseBias, NeedsNoView) {
  BiasedGemm m;
  m.viewed = {};
  m.Make();
  EXPECT_EQ(m.Run(), std::vector<std::string>{"kiln.gemm.default"});
}

TEST(FuseBias, KnowsSymbolicSizes) {
  BiasedGemm m;
  m.Make();
  ExprPool& exprs = m.graph.exprs;
  const ExprId batch = exprs.Symbol(0, {2, 64}), length = exprs.Symbol(1, {2, 512}),
               columns = exprs.Symbol(2, {2, 64});
  auto set = [&](ValueId value, std::vector<ExprId> sizes) {
    m.graph.values[value].strides = ContiguousStrides(exprs, sizes);
    m.graph.values[value].sizes = std::move(sizes);
  };
  set(m.a, {exprs.Mul(batch, length), exprs.Const(5)});
  set(m.b, {exprs.Const(5), columns});
  set(m.bias, {columns});
  set(m.gemm, {exprs.Mul(batch, length), columns});
  for (ValueId value : {m.term, m.sum}) set(value, {batch, length, columns});
  ASSERT_TRUE(FuseBias(m.graph).ok());
  EXPECT_EQ(Targets(m.graph), kFused);
}

TEST(FuseBias, LeavesOtherSums) {
  const std::vector<std::pair<const char*, std::function<void(BiasedGemm&)>>> cases = {
      {"a matrix", [](BiasedGemm& m) { m.bias_sizes = {4, 4}; }},
      {"one number", [](BiasedGemm& m) { m.bias_sizes = {1}; }},
      {"split columns", [](BiasedGemm& m) { m.viewed = {8, 2, 2}, m.bias_sizes = {2}; }},
      {"split columns, a bias of all", [](BiasedGemm& m) { m.viewed = {8, 2, 2}; }},
      {"a wide bias", [](BiasedGemm& m) { m.SetDType(v1::BF16), m.bias_dtype = m.sum_dtype = v1::F32; }},
      {"a narrow bias", [](BiasedGemm& m) { m.bias_dtype = v1::BF16; }},
      {"a wide sum", [](BiasedGemm& m) { m.SetDType(v1::BF16), m.sum_dtype = v1::F32; }},
      {"integers", [](BiasedGemm& m) { m.SetDType(v1::I64); }},
      {"alpha", [](BiasedGemm& m) { m.more = {{"alpha", FloatArg{2}}}; }},
      {"computed channels-last", [](BiasedGemm& m) { m.pointwise_bias = true; }},
      {"known later", [](BiasedGemm& m) { m.bias_late = true; }},
  };
  for (const auto& [name, change] : cases) {
    BiasedGemm m;
    change(m);
    m.Make();
    ASSERT_TRUE(FuseBias(m.graph).ok()) << name;
    const std::vector<std::string> targets = Targets(m.graph);
    EXPECT_EQ(std::count(targets.begin(), targets.end(), "kiln.gemm.default"), 1) << name;
    EXPECT_EQ(targets.back(), "aten.add.Tensor") << name;
  }
}

TEST(FuseBias, LeavesGemmsThatOthersRead) {
  for (bool of_view : {false, true}) {
    BiasedGemm m;
    m.Make();
    m.Output(of_view ? m.term : m.gemm);
    EXPECT_EQ(m.Run(),
              (std::vector<std::string>{"kiln.gemm.default", "aten.view.default", "aten.add.Tensor"}));
  }
}

// What reads the sum was traced with its layout.
TEST(FuseBias, LeavesSumsInAnotherLayout) {
  BiasedGemm m;
  m.Make();
  std::vector<ExprId>& strides = m.graph.values[m.sum].strides;
  strides = {m.graph.exprs.Const(4), m.graph.exprs.Const(8), m.graph.exprs.Const(1)};
  EXPECT_EQ(m.Run().back(), "aten.add.Tensor");
}

// In the pipeline alpha is a product channels-last.
TEST(FuseBias, LeavesAlphaToTheSumsKernel) {
  for (bool alpha : {false, true}) {
    BiasedGemm m;
    if (alpha) m.more = {{"alpha", m.Int(2)}};
    m.Make();
    ASSERT_TRUE(RunPasses(m.graph, {}).ok());
    const std::vector<std::string> targets = Targets(m.graph);
    EXPECT_EQ(targets[0], "kiln.gemm.default");
    EXPECT_EQ(TensorOf(m.graph.nodes[0], "c"), alpha ? kNoValue : m.bias);
  }
}

}  // namespace
}  // namespace kiln
