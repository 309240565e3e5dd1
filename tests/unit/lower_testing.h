// Graphs for tests of lowering: made by hand, lowered, and evaluated without scheduling or code generation.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "compiler/lower/lowering.h"
#include "gtest/gtest.h"
#include "tests/unit/loop_eval.h"

namespace kiln {

// Builds graphs by hand. Sizes are expressions of `graph.exprs`.
class GraphMaker {
 public:
  Graph graph;

  std::vector<ExprId> Sizes(const std::vector<int64_t>& sizes) {
    std::vector<ExprId> ids;
    for (int64_t size : sizes) ids.push_back(graph.exprs.Const(size));
    return ids;
  }

  TensorType Type(v1::DType dtype, std::vector<ExprId> sizes) {
    TensorType type;
    type.dtype = dtype;
    type.strides = ContiguousStrides(graph.exprs, sizes);
    type.sizes = std::move(sizes);
    return type;
  }

  ValueId Value(TensorType type) {
    graph.values.push_back(std::move(type));
    return static_cast<ValueId>(graph.values.size() - 1);
  }

  ValueId InputOf(TensorType type) {
    const ValueId value = Value(std::move(type));
    GraphInput input;
    input.value = value;
    graph.inputs.push_back(input);
    return value;
  }
  ValueId Input(v1::DType dtype, const std::vector<int64_t>& sizes) {
    return InputOf(Type(dtype, Sizes(sizes)));
  }

  using Args = std::vector<std::pair<std::string, Argument>>;
  ValueId NodeOf(const std::string& target, Args args, TensorType type) {
    GraphNode node;
    node.target = target;
    node.args = std::move(args);
    node.results = {Value(std::move(type))};
    node.origin = static_cast<uint32_t>(graph.nodes.size());
    graph.nodes.push_back(node);
    return node.results[0];
  }
  ValueId Node(const std::string& target, Args args, v1::DType dtype, const std::vector<int64_t>& sizes) {
    return NodeOf(target, std::move(args), Type(dtype, Sizes(sizes)));
  }

  void Output(ValueId value, bool visible = true) {
    GraphOutput output;
    output.value = value;
    output.fact.set_user_visible(visible);
    graph.outputs.push_back(output);
  }

  Argument Ints(const std::vector<int64_t>& values) { return IntListArg{Sizes(values)}; }
  Argument Int(int64_t value) { return IntArg{graph.exprs.Const(value)}; }
};

inline Argument T(ValueId value) { return TensorArg{value}; }

template <typename X>
BufferBytes Bytes(const std::vector<X>& values) {
  return BufferBytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(X));
}

template <typename X>
std::vector<X> Values(const BufferBytes& bytes) {
  std::vector<X> values(bytes.size() / sizeof(X));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline size_t LoopCount(const LoopGraph& graph) {
  size_t count = 0;
  for (const LoopGraphNode& node : graph.nodes) count += node.kind == LoopGraphNode::Kind::kLoops;
  return count;
}

inline LoopGraph Lower(const GraphMaker& maker, LowerOptions options = {}) {
  absl::StatusOr<LoopGraph> lowered = LowerGraph(maker.graph, options);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return lowered.ok() ? *std::move(lowered) : LoopGraph{};
}

inline LoopEvalResult Eval(const LoopGraph& graph, const std::vector<BufferBytes>& inputs,
                           const std::vector<int64_t>& symbols = {}, int64_t seed = 1) {
  absl::StatusOr<LoopEvalResult> result = EvalLoopGraph(graph, inputs, symbols, seed);
  EXPECT_TRUE(result.ok()) << result.status() << "\n" << graph.ToString();
  return result.ok() ? *std::move(result) : LoopEvalResult{};
}

}  // namespace kiln
