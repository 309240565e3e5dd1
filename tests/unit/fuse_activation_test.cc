// Which gemms of a GPU take their activation along.
#include "compiler/passes/fuse_activation.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/graph/verify_graph.h"
#include "compiler/library/gemm.h"
#include "compiler/passes/pipeline.h"
#include "gtest/gtest.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

constexpr char kGemm[] = "kiln.gemm.default";

// activation(x w (+ b)) of [8, 4], which another gemm reads.
struct Layer : Maker {
  v1::DType dtype = v1::BF16;
  v1::DeviceType device = v1::CUDA;
  bool biased = true, viewed = true, tf32 = false, needed = true, weights_of_points = false;
  std::vector<int64_t> bias_sizes = {4};
  Args more;  // arguments of the gemm
  std::function<ValueId(Layer&, ValueId)> activation;
  ValueId x, w, b, gemm, term, result;

  TensorType Of(const std::vector<int64_t>& sizes) {
    TensorType type = Type(sizes, dtype);
    type.device = device;
    return type;
  }
  ValueId In(const std::vector<int64_t>& sizes) {
    const ValueId value = Input(sizes, dtype);
    graph.values[value].device = device;
    return value;
  }
  // Of the sizes of `a`.
  ValueId Point(const std::string& target, ValueId a, Argument other) {
    return Node("aten." + target, {{"self", T(a)}, {"other", std::move(other)}}, graph.type(a));
  }
  ValueId Point(const std::string& target, ValueId a) {
    return Node("aten." + target, {{"self", T(a)}}, graph.type(a));
  }
  ValueId Power(ValueId a, double exponent) {
    return Node("aten.pow.Tensor_Scalar", {{"self", T(a)}, {"exponent", FloatArg{exponent}}}, graph.type(a));
  }

  void Make() {
    x = In({8, 5});
    w = In({5, 4});
    b = In(bias_sizes);
    ValueId factor = weights_of_points ? Point("exp.default", w) : w;
    Args args = biased ? Args{{"self", T(b)}, {"mat1", T(x)}, {"mat2", T(factor)}}
                       : Args{{"self", T(x)}, {"mat2", T(factor)}};
    args.insert(args.end(), more.begin(), more.end());
    term = gemm = Node(biased ? "aten.addmm.default" : "aten.mm.default", args, Of({8, 4}));
    if (viewed)
      term = Node("aten.view.default", {{"self", T(gemm)}, {"size", Ints({2, 4, 4})}}, Of({2, 4, 4}));
    result = activation(*this, term);
    if (!needed) {
      Output(Node("aten.sum.dim_IntList", {{"self", T(result)}, {"dim", Ints({0})}},
                  viewed ? Of({4, 4}) : Of({4})));
      return;
    }
    const ValueId rows =
        viewed ? Node("aten.view.default", {{"self", T(result)}, {"size", Ints({8, 4})}}, Of({8, 4}))
               : result;
    Output(Node("aten.mm.default", {{"self", T(rows)}, {"mat2", T(In({4, 3}))}}, Of({8, 3})));
  }
  // The activated gemm in the graph that all passes leave; nullptr where it stayed apart.
  const GraphNode* Run() {
    PassOptions options;
    options.machine.gpu_libraries.tf32 = tf32;
    EXPECT_TRUE(RunPasses(graph, options).ok());
    for (const GraphNode& node : graph.nodes) {
      if (node.Find("activation") != nullptr) return &node;
    }
    return nullptr;
  }
  // Whether no kernel channels-last is left.
  bool IsWhole() const {
    for (const GraphNode& node : graph.nodes) {
      if (node.target != kGemm && node.target != "aten.view.default" && node.target != "aten.select.int") {
        return false;
      }
    }
    return true;
  }
};

ValueId Relu(Layer& m, ValueId x) { return m.Point("relu.default", x); }

ValueId Gelu(Layer& m, ValueId x) {
  return m.Node("aten.gelu.default", {{"self", T(x)}, {"approximate", StringArg{"tanh"}}}, m.graph.type(x));
}

ValueId GeluByErf(Layer& m, ValueId x) { return m.Point("gelu.default", x); }

// 0.5 * x * (1 + tanh(factor * (x + cubic * pow(x, 3)))), as transformers' gelu_new.
ValueId GeluNew(Layer& m, ValueId x, double factor, double cubic, double half, double one) {
  const ValueId cube = m.Point("mul.Tensor", m.Power(x, 3), FloatArg{cubic});
  const ValueId inner = m.Point("mul.Tensor", m.Point("add.Tensor", x, T(cube)), FloatArg{factor});
  const ValueId slope = m.Point("add.Tensor", m.Point("tanh.default", inner), FloatArg{one});
  return m.Point("mul.Tensor", m.Point("mul.Tensor", x, FloatArg{half}), T(slope));
}
ValueId GeluNew(Layer& m, ValueId x) { return GeluNew(m, x, 0.7978845608028654, 0.044715, 0.5, 1); }

// 0.5 * x * (1 + tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))), as transformers' gelu_fast.
ValueId GeluFast(Layer& m, ValueId x) {
  const ValueId square = m.Point("mul.Tensor", m.Point("mul.Tensor", x, FloatArg{0.044715}), T(x));
  const ValueId left = m.Point("mul.Tensor", x, FloatArg{0.7978845608});
  const ValueId inner = m.Point("mul.Tensor", left, T(m.Point("add.Tensor", square, FloatArg{1})));
  const ValueId slope = m.Point("add.Tensor", m.Point("tanh.default", inner), FloatArg{1});
  return m.Point("mul.Tensor", slope, T(m.Point("mul.Tensor", x, FloatArg{0.5})));
}

TEST(FuseActivation, TakesReluAndGeluByTanh) {
  using Activation = ValueId (*)(Layer&, ValueId);
  for (const auto& [activation, gelu] : std::vector<std::pair<Activation, bool>>{
           {Relu, false}, {Gelu, true}, {GeluNew, true}, {GeluFast, true}}) {
    for (v1::DType dtype : {v1::F32, v1::F16, v1::BF16}) {
      for (bool biased : {false, true}) {
        for (bool viewed : {false, true}) {
          Layer m;
          m.activation = activation;
          m.dtype = dtype;
          m.biased = biased;
          m.viewed = viewed;
          m.tf32 = true;
          m.Make();
          const GraphNode* node = m.Run();
          ASSERT_NE(node, nullptr) << m.graph.ToString();
          EXPECT_TRUE(m.IsWhole()) << m.graph.ToString();
          const std::optional<Gemm> activated = GemmOf(m.graph, *node);
          ASSERT_TRUE(activated.has_value()) << m.graph.ToString();
          EXPECT_EQ(activated->activation, gelu ? Gemm::Activation::kGeluTanh : Gemm::Activation::kRelu);
          EXPECT_EQ(activated->a, m.x);
          EXPECT_EQ(activated->b, m.w);
          EXPECT_EQ(node->results[0], m.gemm);
          if (biased) {
            EXPECT_EQ(activated->c, m.b);
            EXPECT_EQ(node->Find("beta"), nullptr);
          } else {  // a row of the weights, and nothing of it
            EXPECT_EQ(m.graph.type(activated->c).rank(), 1u);
            EXPECT_EQ(activated->beta, 0);
          }
        }
      }
    }
  }
}

TEST(FuseActivation, LeavesWhatItShould) {
  const std::vector<std::pair<const char*, std::function<void(Layer&)>>> cases = {
      {"control: nothing", [](Layer&) {}},
      {"the CPU's", [](Layer& m) { m.device = v1::CPU; }},
      {"F64", [](Layer& m) { m.dtype = v1::F64; }},
      {"what kernels read", [](Layer& m) { m.needed = false; }},
      {"a matrix added", [](Layer& m) { m.bias_sizes = {8, 4}; }},
      {"one number added", [](Layer& m) { m.bias_sizes = {1}; }},
      {"a bias that is scaled", [](Layer& m) { m.more = {{"beta", FloatArg{2}}}; }},
      {"weights channels-last, no bias", [](Layer& m) { m.biased = false, m.weights_of_points = true; }},
      {"GELU by erf", [](Layer& m) { m.activation = GeluByErf; }},
      {"GELU of exact F32", [](Layer& m) { m.activation = Gelu, m.dtype = v1::F32; }},
      {"another activation",
       [](Layer& m) { m.activation = [](Layer& l, ValueId x) { return l.Point("tanh.default", x); }; }}};
  for (const auto& [name, change] : cases) {
    Layer m;
    m.activation = Relu;
    change(m);
    m.Make();
    EXPECT_EQ(m.Run() != nullptr, std::string(name) == "control: nothing") << name << m.graph.ToString();
  }
}

TEST(FuseActivation, KnowsOtherNumbersFromGelus) {
  const std::vector<std::vector<double>> numbers = {{0.7978845608028654, 0.044715, 0.5, 1},
                                                    {0.8, 0.044715, 0.5, 1},
                                                    {0.7978845608028654, 0.0447, 0.5, 1},
                                                    {0.7978845608028654, 0.044715, 1, 1},
                                                    {0.7978845608028654, 0.044715, 0.5, 2}};
  for (size_t i = 0; i < numbers.size(); ++i) {
    Layer m;
    m.activation = [&](Layer& l, ValueId x) {
      return GeluNew(l, x, numbers[i][0], numbers[i][1], numbers[i][2], numbers[i][3]);
    };
    m.Make();
    EXPECT_EQ(m.Run() != nullptr, i == 0) << i;
  }
}

// As a gradient does; control: the result alone.
TEST(FuseActivation, LeavesGemmsThatOthersRead) {
  using Activation = ValueId (*)(Layer&, ValueId);
  for (Activation activation : {Activation{Relu}, Activation{Gelu}, Activation{GeluNew}}) {
    for (const ValueId Layer::* other : {&Layer::result, &Layer::term, &Layer::gemm}) {
      Layer m;
      m.activation = activation;
      m.Make();
      m.Output(m.*other);
      EXPECT_EQ(m.Run() != nullptr, other == &Layer::result);
    }
  }
}

// A part of the GELU is read too: tanh's value, say.
TEST(FuseActivation, LeavesAGeluWhosePartsOthersRead) {
  Layer m;
  ValueId part = kNoValue;
  m.activation = [&](Layer& l, ValueId x) {
    const ValueId result = GeluNew(l, x);
    for (const GraphNode& node : l.graph.nodes) {
      if (node.target == "aten.tanh.default") part = node.results[0];
    }
    return result;
  };
  m.Make();
  m.Output(part);
  EXPECT_EQ(m.Run(), nullptr);
}

// Squares of squares: as many factors as 2^40.
TEST(FuseActivation, EndsOnProductsWithoutEnd) {
  Layer m;
  m.activation = [](Layer& l, ValueId x) {
    for (int i = 0; i < 40; ++i) x = l.Point("mul.Tensor", x, T(x));
    return x;
  };
  m.Make();
  EXPECT_EQ(m.Run(), nullptr);
}

}  // namespace
}  // namespace kiln
