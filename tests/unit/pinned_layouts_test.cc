// Which results share memory, and whose layout is read and stays.
#include "compiler/passes/pinned_layouts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "compiler/passes/remove_no_ops.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

TEST(Memory, OutputsAreRelatedByWhatTheyAreViewsOf) {
  Maker m;
  const ValueId x = m.Input({4, 4});
  const auto turn = [&](ValueId value) {
    return m.Node("aten.permute.default", {{"self", T(value)}, {"dims", m.Ints({1, 0})}}, m.Type({4, 4}));
  };
  const ValueId y = m.Node("aten.relu.default", {{"self", T(x)}}, m.Type({4, 4}));
  const ValueId z = m.Node("aten.clone.default", {{"self", T(turn(y))}}, m.Type({4, 4}));
  for (const ValueId value : {y, turn(turn(y)), z, turn(x), x}) m.Output(value);
  RelateOutputs(m.graph);
  std::vector<ValueId> memory;
  for (const GraphOutput& output : m.graph.outputs) memory.push_back(output.memory);
  EXPECT_EQ(memory, (std::vector<ValueId>{y, y, z, x, x}));
  const std::vector<bool> shared = SharedByOutputs(m.graph);
  EXPECT_TRUE(shared[y]);
  EXPECT_FALSE(shared[z]);
}

TEST(Memory, WhatIsReadByStorageKeepsItsLayoutAndItsOwnMemory) {
  for (const char* reader : {"aten.as_strided.default", "aten.as_strided_copy.default", "aten.view.dtype",
                             "aten.as_strided_scatter.default", "mine.reads.default", "aten.exp.default"}) {
    Maker m;
    const ValueId x = m.Input({4, 4});
    const ValueId copy = m.Node("aten.clone.default", {{"self", T(x)}}, m.Type({4, 4}));
    const ValueId part =
        m.Node("aten.view.default", {{"self", T(copy)}, {"size", m.Ints({16})}}, m.Type({16}));
    const ValueId read = m.Node(reader, {{"self", T(part)}}, m.Type({16}));
    m.Output(m.Node("aten.exp.default", {{"self", T(read)}}, m.Type({16})));
    const bool reads = std::string(reader) != "aten.exp.default";
    const std::vector<bool> pinned = PinnedLayouts(m.graph);
    EXPECT_EQ(pinned[copy], reads) << reader;
    EXPECT_EQ(pinned[part], reads) << reader;
    EXPECT_FALSE(pinned[x]) << reader;
    ASSERT_TRUE(RemoveNoOps(m.graph).ok());
    EXPECT_EQ(Targets(m.graph)[0] == "aten.clone.default", reads) << reader;
  }
}

}  // namespace
}  // namespace kiln
