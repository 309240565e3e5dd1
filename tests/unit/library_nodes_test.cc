// Behind the pass no operator of ATen's is a gemm or attention: it is kiln's node.
#include "compiler/passes/library_nodes.h"

#include <string>
#include <vector>

#include "compiler/graph/verify_graph.h"
#include "compiler/library/attention.h"
#include "compiler/library/gemm.h"
#include "compiler/passes/pipeline.h"
#include "gtest/gtest.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

bool IsForm(const GraphNode& node) {
  return GemmFormOf(node.target) != nullptr || AttentionFormOf(node.target) != nullptr;
}

size_t Forms(const Graph& graph) {
  size_t forms = 0;
  for (const GraphNode& node : graph.nodes) forms += IsForm(node);
  return forms;
}

// A layer of each kind that becomes gemms: as they are called, by decompositions, by passes.
struct Layers : Maker {
  TensorType Of(const std::vector<int64_t>& sizes) { return Type(sizes); }

  void Make(v1::DeviceType device) {
    const ValueId x = Input({64, 512}), w = Input({512, 512}), row = Input({512}),
                  transposed = Input({512, 512});
    Output(Node("aten.mm.default", {{"self", T(x)}, {"mat2", T(w)}}, Of({64, 512})));
    Output(Node("aten.addmm.default",
                {{"self", T(row)}, {"mat1", T(x)}, {"mat2", T(w)}, {"beta", FloatArg{2}}}, Of({64, 512})));
    Output(Node("aten.linear.default", {{"input", T(x)}, {"weight", T(transposed)}, {"bias", T(row)}},
                Of({64, 512})));
    const ValueId many = Input({3, 8, 16}), others = Input({3, 16, 4}), sum = Input({3, 8, 4});
    Output(Node("aten.bmm.default", {{"self", T(many)}, {"mat2", T(others)}}, Of({3, 8, 4})));
    Output(Node("aten.baddbmm.default", {{"self", T(sum)}, {"batch1", T(many)}, {"batch2", T(others)}},
                Of({3, 8, 4})));
    const ValueId query = Input({2, 3, 8, 16});
    Output(Node("aten._scaled_dot_product_flash_attention_for_cpu.default",
                {{"query", T(query)}, {"key", T(query)}, {"value", T(query)}}, Of({2, 3, 8, 16})));
    for (TensorType& type : graph.values) type.device = device;
  }
};

TEST(LibraryNodes, AreAllThatIsLeftOfGemmsAndAttention) {
  for (const v1::DeviceType device : {v1::CPU, v1::CUDA}) {
    for (const bool onednn : {false, true}) {
      Layers m;
      m.Make(device);
      EXPECT_EQ(Forms(m.graph), 5u);
      PassOptions options;
      options.machine.cpu_libraries.onednn = options.machine.cpu_libraries.mkl_leaves_avx512_unused = onednn;
      ASSERT_TRUE(RunPasses(m.graph, options).ok());
      EXPECT_EQ(Forms(m.graph), 0u) << m.graph.ToString();
      size_t gemms = 0, attentions = 0;
      for (const GraphNode& node : m.graph.nodes) {
        gemms += GemmOf(m.graph, node).has_value();
        attentions += AttentionOf(m.graph, node).has_value();
      }
      EXPECT_EQ(gemms, 5u) << m.graph.ToString();
      EXPECT_EQ(attentions, 1u) << m.graph.ToString();
    }
  }
}

// A call of what no node says stays a call, of ATen's operator.
TEST(LibraryNodes, LeaveWhatTheyCannotSay) {
  Maker m;
  const ValueId x = m.Input({4, 4}, v1::C64);
  m.Output(m.Node("aten.mm.default", {{"self", T(x)}, {"mat2", T(x)}}, m.Type({4, 4}, v1::C64)));
  const ValueId y = m.Input({4, 4});
  m.Output(m.Node("aten.mm.default", {{"self", T(y)}, {"mat2", T(y)}, {"unheard_of", BoolArg{true}}},
                  m.Type({4, 4})));
  MakeLibraryNodes(m.graph);
  EXPECT_EQ(Forms(m.graph), 2u);
}

}  // namespace
}  // namespace kiln
