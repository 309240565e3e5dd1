// Whose memory results lie in, and what reads it by strides and storage offset.
#include "absl/strings/match.h"
#include "tests/unit/lower_testing.h"

namespace kiln {
namespace {

TensorType Strided(GraphMaker& maker, const std::vector<int64_t>& sizes,
                   const std::vector<int64_t>& strides) {
  TensorType type = maker.Type(v1::F32, maker.Sizes(sizes));
  type.strides = maker.Sizes(strides);
  return type;
}

struct Window {
  std::vector<int64_t> sizes, strides;
  int64_t offset = -1;  // none is said
};

GraphMaker::Args Arguments(GraphMaker& maker, ValueId self, const Window& window) {
  GraphMaker::Args args = {
      {"self", T(self)}, {"size", maker.Ints(window.sizes)}, {"stride", maker.Ints(window.strides)}};
  if (window.offset >= 0) args.emplace_back("storage_offset", maker.Int(window.offset));
  return args;
}

ValueId AsStrided(GraphMaker& maker, ValueId self, const Window& window) {
  return maker.NodeOf("aten.as_strided.default", Arguments(maker, self, window),
                      Strided(maker, window.sizes, window.strides));
}

// Rows 1 and 2 of 2 x, transposed; x is 4 × 3 and counts from 0.
struct Rows : GraphMaker {
  ValueId x = Input(v1::F32, {4, 3});
  ValueId twice = Node("aten.add.Tensor", {{"self", T(x)}, {"other", T(x)}}, v1::F32, {4, 3});
  ValueId rows =
      Node("aten.slice.Tensor", {{"self", T(twice)}, {"dim", Int(0)}, {"start", Int(1)}, {"end", Int(3)}},
           v1::F32, {2, 3});
  ValueId transposed = NodeOf("aten.permute.default", {{"self", T(rows)}, {"dims", Ints({1, 0})}},
                              Strided(*this, {3, 2}, {1, 3}));

  std::vector<float> Result() {
    const LoopEvalResult result = Eval(Lower(*this), {Bytes<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})});
    return result.outputs.empty() ? std::vector<float>() : Values<float>(result.outputs[0]);
  }
};

// The offset that as_strided says counts from the storage's beginning, whatever part of it the argument
// views.
TEST(LowerStorage, WindowsSeeTheMemoryThatTheArgumentViews) {
  for (const auto& [window, seen] :
       std::vector<std::pair<Window, std::vector<float>>>{{{{4}, {3}, 0}, {0, 6, 12, 18}},
                                                          {{{2, 2}, {1, 2}, 8}, {16, 20, 18, 22}},
                                                          {{{3}, {2}}, {6, 10, 14}},
                                                          {{{2}, {0}, 11}, {22, 22}}}) {
    Rows m;
    m.Output(AsStrided(m, m.transposed, window));
    EXPECT_EQ(m.Result(), seen);
  }
}

TEST(LowerStorage, WindowsPastTheMemoryAreRefused) {
  Rows m;
  m.Output(AsStrided(m, m.transposed, {{4}, {3}, 3}));
  EXPECT_EQ(LowerGraph(m.graph, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

// An input's first element need not be its storage's.
TEST(LowerStorage, OffsetsOfInputsCount) {
  GraphMaker m;
  TensorType type = m.Type(v1::F32, m.Sizes({4}));
  type.offset = m.graph.exprs.Const(5);
  m.Output(AsStrided(m, m.InputOf(type), {{2}, {1}, 6}));
  EXPECT_EQ(Values<float>(Eval(Lower(m), {Bytes<float>({0, 1, 2, 3})}).outputs[0]),
            (std::vector<float>{1, 2}));
}

TEST(LowerStorage, ScattersIntoACopyOfTheMemory) {
  Rows m;
  const Window window{{2}, {4}, 4};
  const ValueId source =
      m.Node("aten.full.default", {{"size", m.Ints({2})}, {"fill_value", FloatArg{-1}}}, v1::F32, {2});
  GraphMaker::Args args = Arguments(m, m.transposed, window);
  args.emplace_back("src", T(source));
  const ValueId scattered = m.NodeOf("aten.as_strided_scatter.default", args, Strided(m, {3, 2}, {1, 3}));
  m.Output(scattered);
  EXPECT_EQ(m.Result(), (std::vector<float>{6, 12, -1, 14, 10, -1}));
  // What is viewed by storage afterwards has the old one's offset.
  m.graph.outputs.clear();
  m.Output(AsStrided(m, scattered, {{3}, {4}, 0}));
  EXPECT_EQ(m.Result(), (std::vector<float>{0, -1, -1}));
}

// Whoever makes a result again, as a view of another tensor, reads its offset off it: a copy has the one of
// the view that was traced.
TEST(LowerStorage, AResultLiesAtTheOffsetThatItIsSaidToHave) {
  for (const int64_t offset : {0, 5}) {
    GraphMaker m;
    const ValueId x = m.Input(v1::F32, {2, 3});
    const ValueId twice = m.Node("aten.add.Tensor", {{"self", T(x)}, {"other", T(x)}}, v1::F32, {2, 3});
    const ValueId turned = m.NodeOf("aten.permute.default", {{"self", T(twice)}, {"dims", m.Ints({1, 0})}},
                                    Strided(m, {3, 2}, {1, 3}));
    m.Output(turned);
    m.graph.outputs[0].offset = m.graph.exprs.Const(offset);
    const LoopGraph graph = Lower(m);
    EXPECT_EQ(graph.exprs.AsConst(graph.outputs[0].view.offset), offset);
    EXPECT_EQ(graph.exprs.AsConst(graph.buffers[graph.outputs[0].view.buffer].span), offset + 6);
    EXPECT_EQ(Values<float>(Eval(graph, {Bytes<float>({0, 1, 2, 3, 4, 5})}).outputs[0]),
              (std::vector<float>{0, 6, 2, 8, 4, 10}));
  }
}

TEST(LowerStorage, AViewThatLiesThereIsNoCopy) {
  GraphMaker m;
  TensorType type = m.Type(v1::F32, m.Sizes({4, 3}));
  type.offset = m.graph.exprs.Const(7);
  const ValueId x = m.InputOf(type);
  m.Output(m.Node("aten.slice.Tensor",
                  {{"self", T(x)}, {"dim", m.Int(0)}, {"start", m.Int(1)}, {"end", m.Int(3)}}, v1::F32,
                  {2, 3}));
  m.graph.outputs[0].offset = m.graph.exprs.Const(10);
  const LoopGraph graph = Lower(m);
  EXPECT_EQ(graph.buffers[graph.outputs[0].view.buffer].kind, LoopBuffer::Kind::kInput);
  EXPECT_TRUE(graph.nodes.empty());
}

// The elements of an expanded argument share places; those of the copy do not.
TEST(LowerStorage, ScattersIntoADenseCopyOfWhatIsExpanded) {
  GraphMaker m;
  const ValueId row = m.Input(v1::F32, {1, 3});
  const ValueId expanded = m.NodeOf("aten.expand.default", {{"self", T(row)}, {"size", m.Ints({2, 3})}},
                                    Strided(m, {2, 3}, {0, 1}));
  const ValueId source =
      m.Node("aten.full.default", {{"size", m.Ints({2})}, {"fill_value", FloatArg{-1}}}, v1::F32, {2});
  GraphMaker::Args args = Arguments(m, expanded, {{2}, {3}, 1});
  args.emplace_back("src", T(source));
  m.Output(m.NodeOf("aten.as_strided_scatter.default", args, Strided(m, {2, 3}, {3, 1})));
  EXPECT_EQ(Values<float>(Eval(Lower(m), {Bytes<float>({0, 1, 2})}).outputs[0]),
            (std::vector<float>{0, -1, 2, 0, -1, 2}));
}

// A value that the loops would have computed where it is read gets memory as soon as two results show it.
TEST(LowerStorage, ResultsShareMemoryAsViewsDo) {
  for (const bool view_first : {false, true}) {
    GraphMaker m;
    const ValueId zeros =
        m.Node("aten.full.default", {{"size", m.Ints({4, 3})}, {"fill_value", FloatArg{0}}}, v1::F32, {4, 3});
    const ValueId transposed = m.NodeOf(
        "aten.permute.default", {{"self", T(zeros)}, {"dims", m.Ints({1, 0})}}, Strided(m, {3, 4}, {1, 3}));
    const ValueId flat =
        m.Node("aten.view.default", {{"self", T(zeros)}, {"size", m.Ints({12})}}, v1::F32, {12});
    for (const ValueId value : {view_first ? transposed : zeros, flat}) m.Output(value);
    const LoopGraph graph = Lower(m);
    EXPECT_EQ(graph.outputs[0].view.buffer, graph.outputs[1].view.buffer);
  }
}

// The last line, where a pass has merged what was apart.
TEST(LowerStorage, ResultsThatWereApartAreCopied) {
  for (const bool apart : {false, true}) {
    GraphMaker m;
    const ValueId x = m.Input(v1::F32, {4});
    const ValueId y = m.Node("aten.add.Tensor", {{"self", T(x)}, {"other", T(x)}}, v1::F32, {4});
    for (const ValueId value : {y, y, x}) m.Output(value);
    for (size_t i = 0; i < 3; ++i)
      m.graph.outputs[i].memory = static_cast<ValueId>(apart ? 7 + i : i < 2 ? 7 : x);
    const LoopGraph graph = Lower(m);
    EXPECT_EQ(graph.outputs[0].view.buffer != graph.outputs[1].view.buffer, apart);
    EXPECT_EQ(graph.buffers[graph.outputs[2].view.buffer].kind == LoopBuffer::Kind::kInput, !apart);
    const LoopEvalResult result = Eval(graph, {Bytes<float>({0, 1, 2, 3})});
    EXPECT_EQ(result.outputs[0], result.outputs[1]);
    EXPECT_EQ(result.outputs[2], Bytes<float>({0, 1, 2, 3}));
  }
}

// A library's view of an input must have been read before the input is written.
TEST(LowerStorage, WhatViewsAnInputIsSavedBeforeItIsWritten) {
  GraphMaker m;
  const ValueId x = m.Input(v1::F32, {4}), y = m.Input(v1::F32, {4});
  const ValueId bits =
      m.Node("aten.view.dtype", {{"self", T(x)}, {"dtype", DTypeArg{v1::I16}}}, v1::I16, {8});
  const ValueId kept = m.Node("aten.clone.default", {{"self", T(bits)}}, v1::I16, {8});
  m.Node("aten.copy_.default", {{"self", T(x)}, {"src", T(y)}}, v1::F32, {4});
  m.Output(kept);
  const LoopGraph graph = Lower(m);
  ASSERT_EQ(graph.nodes.size(), 3u);
  EXPECT_EQ(graph.nodes[0].kind, LoopGraphNode::Kind::kCall);
  EXPECT_EQ(graph.buffers[graph.nodes[0].call.results[0]].shares, 0);
  const auto stores_to = [&](const LoopGraphNode& node) {
    BufferId stored = 0;
    for (size_t i = 0; i < node.loops.body.size(); ++i) {
      const LoopOpData& op = node.loops.body.op(static_cast<LoopOpId>(i));
      if (op.op == LoopOpcode::kStore) stored = op.buffer;
    }
    return stored;
  };
  EXPECT_EQ(stores_to(graph.nodes[1]), graph.outputs[0].view.buffer);
  EXPECT_EQ(stores_to(graph.nodes[2]), 0u);
}

}  // namespace
}  // namespace kiln
