// Which gemms of a CPU become oneDNN's.
#include "compiler/passes/gemm_to_onednn.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/graph/verify_graph.h"
#include "compiler/library/gemm.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/library_nodes.h"
#include "compiler/passes/pipeline.h"
#include "gtest/gtest.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

// x w (+ b), w as it is in memory or transposed.
struct GemmMaker : Maker {
  v1::DType dtype = v1::F32;
  v1::DeviceType device = v1::CPU;
  int64_t rows = 64, summed = 512, columns = 512;
  bool biased = true, transposed_left = false, transposed_right = false;
  bool any_rows = false, rows_squared = false, any_sum = false;
  std::vector<int64_t> bias_sizes = {512};
  Args more;  // arguments of the gemm
  ValueId x, w, b;

  ValueId Transposed(ValueId matrix) {
    TensorType type = graph.type(matrix);
    std::swap(type.sizes[0], type.sizes[1]);
    std::swap(type.strides[0], type.strides[1]);
    return Node("aten.permute.default", {{"self", T(matrix)}, {"dims", Ints({1, 0})}}, type);
  }
  ValueId Matrix(int64_t height, int64_t width, bool transposed) {
    if (!transposed) return Input({height, width}, dtype);
    return Transposed(Input({width, height}, dtype));
  }
  void Make() {
    x = Matrix(rows, summed, transposed_left);
    w = Matrix(summed, columns, transposed_right);
    b = Input(bias_sizes, dtype);
    if (any_rows) graph.values[x].sizes[0] = graph.exprs.Symbol(0, {2, 1 << 20});
    if (rows_squared)
      graph.values[x].sizes[0] = graph.exprs.Mul(graph.type(x).sizes[0], graph.type(x).sizes[0]);
    if (any_sum) {
      const ExprId points = graph.exprs.Symbol(1, {2, 1 << 20});
      graph.values[x].sizes[1] = graph.values[x].strides[0] = graph.values[w].sizes[0] = points;
    }
    TensorType type = Type({rows, columns}, dtype);
    type.sizes[0] = graph.type(x).sizes[0];
    Args args =
        biased ? Args{{"self", T(b)}, {"mat1", T(x)}, {"mat2", T(w)}} : Args{{"self", T(x)}, {"mat2", T(w)}};
    args.insert(args.end(), more.begin(), more.end());
    Output(Node(biased ? "aten.addmm.default" : "aten.mm.default", args, type));
    for (TensorType& value : graph.values) value.device = device;
  }
  // The gemm in the graph that is oneDNN's; nullptr where there is none.
  const GraphNode* Onednn() const {
    for (const GraphNode& node : graph.nodes) {
      const std::optional<Gemm> gemm = GemmOf(graph, node);
      if (gemm && gemm->form->onednn) return &node;
    }
    return nullptr;
  }
  // That in the graph that the pass leaves.
  const GraphNode* Run() {
    Machine machine;
    machine.cpu_libraries.onednn = machine.cpu_libraries.mkl_leaves_avx512_unused = true;
    MakeLibraryNodes(graph);
    EXPECT_TRUE(GemmToOnednn(graph, machine).ok());
    EXPECT_TRUE(VerifyGraph(graph).ok()) << graph.ToString();
    return Onednn();
  }
};

TEST(GemmToOnednn, TakesTheMatrixTransposed) {
  for (bool biased : {false, true}) {
    for (bool transposed : {false, true}) {
      GemmMaker m;
      m.biased = biased;
      m.transposed_right = transposed;
      m.Make();
      const GraphNode* made = m.Run();
      ASSERT_NE(made, nullptr) << m.graph.ToString();
      EXPECT_EQ(TensorOf(*made, "a"), m.x);
      const ValueId weight = TensorOf(*made, "b");
      const TensorType& type = m.graph.type(weight);
      EXPECT_EQ(m.graph.exprs.AsConst(type.sizes[0]), m.columns);
      EXPECT_EQ(m.graph.exprs.AsConst(type.sizes[1]), m.summed);
      // What was transposed is not transposed twice.
      EXPECT_EQ(weight == m.graph.inputs[1].value, transposed);
      EXPECT_EQ(m.graph.nodes.size(), transposed ? 1u : 2u) << m.graph.ToString();
      EXPECT_EQ(TensorOf(*made, "c") != kNoValue, biased);
    }
  }
}

TEST(GemmToOnednn, LeavesWhatItShould) {
  const std::vector<std::pair<const char*, std::function<void(GemmMaker&)>>> cases = {
      {"control: nothing", [](GemmMaker&) {}},
      {"control: any number of rows", [](GemmMaker& m) { m.any_rows = true; }},
      {"a GPU's", [](GemmMaker& m) { m.device = v1::CUDA; }},
      {"F64", [](GemmMaker& m) { m.dtype = v1::F64; }},
      {"BF16", [](GemmMaker& m) { m.dtype = v1::BF16; }},
      {"rows that are columns", [](GemmMaker& m) { m.transposed_left = true; }},
      {"control: enough work", [](GemmMaker& m) { m.rows = 12; }},
      {"little work", [](GemmMaker& m) { m.rows = 11; }},
      {"control: the weights suffice for 256 rows", [](GemmMaker& m) { m.any_rows = true, m.summed = 24; }},
      {"few weights for any number of rows", [](GemmMaker& m) { m.any_rows = true, m.summed = 23; }},
      {"control: few weights for rows that are a square",
       [](GemmMaker& m) { m.any_rows = true, m.rows_squared = true, m.summed = 23; }},
      {"control: a weight's gradient over 256 points", [](GemmMaker& m) { m.any_sum = true, m.rows = 24; }},
      {"a small weight's gradient", [](GemmMaker& m) { m.any_sum = true, m.rows = 23; }},
      {"a matrix added", [](GemmMaker& m) { m.bias_sizes = {64, 512}; }},
      {"one number added", [](GemmMaker& m) { m.bias_sizes = {1}; }},
      {"a bias that is scaled", [](GemmMaker& m) { m.more = {{"beta", FloatArg{2}}}; }},
      {"a gemm that is scaled", [](GemmMaker& m) { m.more = {{"alpha", FloatArg{2}}}; }}};
  for (const auto& [name, change] : cases) {
    GemmMaker m;
    change(m);
    m.Make();
    EXPECT_EQ(m.Run() != nullptr, std::string(name).substr(0, 7) == "control") << name << m.graph.ToString();
  }
}

// A slice of wider columns: its rows are apart, its columns beside each other.
TEST(GemmToOnednn, TakesWeightsWithGaps) {
  GemmMaker m;
  m.Make();
  m.graph.values[m.w].strides[0] = m.graph.exprs.Const(4 * m.columns);
  EXPECT_NE(m.Run(), nullptr);
  GemmMaker every_second;
  every_second.Make();
  every_second.graph.values[every_second.w].strides[1] = every_second.graph.exprs.Const(2);
  EXPECT_EQ(every_second.Run(), nullptr);
}

TEST(GemmToOnednn, OnlyWhereTheyAreWanted) {
  for (const auto& [onednn, unused] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    GemmMaker m;
    m.Make();
    PassOptions options;
    options.machine.cpu_libraries.onednn = onednn;
    options.machine.cpu_libraries.mkl_leaves_avx512_unused = unused;
    ASSERT_TRUE(RunPasses(m.graph, options).ok());
    EXPECT_EQ(m.Onednn() != nullptr, onednn && unused);
  }
}

}  // namespace
}  // namespace kiln
