// What is removed since nobody sees a difference, and what is not: copies, views, nodes whose results nobody
// reads.
#include "compiler/passes/remove_no_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "compiler/passes/pipeline.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

// Eager draws what nobody reads, too: the next draw is another.
TEST(RemoveDeadCode, KeepsDrawsThatNobodyReadsUnderFallbackRandom) {
  for (bool fallback : {false, true}) {
    Maker m;
    ValueId x = m.Input({16});
    m.Node("aten.bernoulli.p", {{"self", T(x)}, {"p", FloatArg{0.5}}}, m.Type({16}));
    m.Output(m.Node("aten.neg.default", {{"self", T(x)}}, m.Type({16})));
    PassOptions options;
    options.fallback_random = fallback;
    ASSERT_TRUE(RunPasses(m.graph, options).ok());
    EXPECT_EQ(m.graph.nodes.size(), fallback ? 2u : 1u);
  }
}

// A saved activation is the activation, not a copy of it.
TEST(RemoveNoOps, DetachSharesMemory) {
  Maker m;
  ValueId x = m.Input({4});
  ValueId y = m.Node("aten.relu.default", {{"self", T(x)}}, m.Type({4}));
  ValueId saved = m.Node("aten.detach.default", {{"self", T(y)}}, m.Type({4}));
  m.Output(y);
  m.Output(saved);
  ASSERT_TRUE(RunPasses(m.graph, {}).ok());
  EXPECT_EQ(Targets(m.graph), std::vector<std::string>{"aten.relu.default"});
  EXPECT_EQ(m.graph.outputs[0].value, m.graph.outputs[1].value);
}

TEST(RemoveNoOps, ClonesStayWhereTheirMemoryIsVisible) {
  Maker m;
  ValueId x = m.Input({4});
  ValueId inner = m.Node("aten.clone.default", {{"self", T(x)}}, m.Type({4}));
  m.Output(m.Node("aten.exp.default", {{"self", T(inner)}}, m.Type({4})));
  ValueId outer = m.Node("aten.clone.default", {{"self", T(x)}}, m.Type({4}));
  m.Output(m.Node("aten.view.default", {{"self", T(outer)}, {"size", m.Ints({2, 2})}}, m.Type({2, 2})));
  ASSERT_TRUE(RemoveNoOps(m.graph).ok());
  EXPECT_EQ(Targets(m.graph),
            (std::vector<std::string>{"aten.exp.default", "aten.clone.default", "aten.view.default"}));
}

// Swapping two inputs: each copy_ must read what was there before the other one wrote.
TEST(RemoveNoOps, ClonesThatAreCopiedIntoInputsStay) {
  Maker m;
  ValueId a = m.Input({4}), b = m.Input({4});
  ValueId old_a = m.Node("aten.clone.default", {{"self", T(a)}}, m.Type({4}));
  m.Node("aten.copy_.default", {{"self", T(a)}, {"src", T(b)}}, m.Type({4}));
  m.Node("aten.copy_.default", {{"self", T(b)}, {"src", T(old_a)}}, m.Type({4}));
  ASSERT_TRUE(RunPasses(m.graph, {}).ok());
  EXPECT_EQ(Targets(m.graph),
            (std::vector<std::string>{"aten.clone.default", "aten.copy_.default", "aten.copy_.default"}));
}

TEST(RemoveNoOps, SquareTransposesAreNoIdentity) {
  Maker m;
  ValueId x = m.Input({4, 4});
  m.Output(m.Node("aten.permute.default", {{"self", T(x)}, {"dims", m.Ints({1, 0})}}, m.Type({4, 4})));
  ASSERT_TRUE(RemoveNoOps(m.graph).ok());
  EXPECT_EQ(m.graph.nodes.size(), 1u);
}

}  // namespace
}  // namespace kiln
