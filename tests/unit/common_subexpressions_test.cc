// Equal nodes become one, but for random ones and outputs that are apart.
#include "compiler/passes/common_subexpressions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "compiler/passes/pinned_layouts.h"
#include "compiler/passes/pipeline.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

using Args = Maker::Args;

TEST(CommonSubexpressions, MergesEqualsButNotRandomOnes) {
  Maker m;
  ValueId x = m.Input({4});
  auto twice = [&](const char* target, const Args& args) {
    ValueId a = m.Node(target, args, m.Type({4})), b = m.Node(target, args, m.Type({4}));
    m.Output(m.Node("aten.add.Tensor", {{"self", T(a)}, {"other", T(b)}}, m.Type({4})));
  };
  twice("aten.exp.default", {{"self", T(x)}});
  twice("aten.rand.default", {{"size", m.Ints({4})}, {"dtype", DTypeArg{v1::F32}}});
  ASSERT_TRUE(MergeCommonSubexpressions(m.graph).ok());
  const std::vector<std::string> targets = Targets(m.graph);
  EXPECT_EQ(std::count(targets.begin(), targets.end(), "aten.exp.default"), 1);
  EXPECT_EQ(std::count(targets.begin(), targets.end(), "aten.rand.default"), 2);
}

TEST(CommonSubexpressions, ScalarsOfDifferentKindsDiffer) {
  Maker m;
  ValueId x = m.Input({4}, v1::I64);
  m.Output(m.Node("aten.mul.Tensor", {{"self", T(x)}, {"other", m.Int(2)}}, m.Type({4}, v1::I64)));
  m.Output(m.Node("aten.mul.Tensor", {{"self", T(x)}, {"other", FloatArg{2.0}}}, m.Type({4})));
  ASSERT_TRUE(MergeCommonSubexpressions(m.graph).ok());
  EXPECT_EQ(m.graph.nodes.size(), 2u);
}

// A caller may write to one of two outputs.
TEST(CommonSubexpressions, OutputsStayApart) {
  Maker m;
  ValueId x = m.Input({4});
  m.Output(m.Node("aten.exp.default", {{"self", T(x)}}, m.Type({4})));
  m.Output(m.Node("aten.exp.default", {{"self", T(x)}}, m.Type({4})));
  ASSERT_TRUE(MergeCommonSubexpressions(m.graph).ok());
  EXPECT_NE(m.graph.outputs[0].value, m.graph.outputs[1].value);
}

// A copy of the graph's own stands for one output at most.
TEST(CommonSubexpressions, OutputsStayApartThatEqualACopyOfTheGraphsOwn) {
  Maker m;
  const ValueId x = m.Input({4});
  const auto copy = [&] { return m.Node("aten.clone.default", {{"self", T(x)}}, m.Type({4})); };
  const ValueId own = copy(), first = copy(), second = copy();
  m.Output(m.Node("aten.exp.default", {{"self", T(own)}}, m.Type({4})));
  m.Output(first);
  m.Output(m.Node("aten.view.default", {{"self", T(second)}, {"size", m.Ints({2, 2})}}, m.Type({2, 2})));
  ASSERT_TRUE(MergeCommonSubexpressions(m.graph).ok());
  const std::vector<ValueId> owners = MemoryOwners(m.graph);
  EXPECT_NE(owners[m.graph.outputs[1].value], owners[m.graph.outputs[2].value]);
  EXPECT_EQ(std::count_if(m.graph.nodes.begin(), m.graph.nodes.end(),
                          [](const GraphNode& node) { return node.target == "aten.clone.default"; }),
            2);
}

}  // namespace
}  // namespace kiln
