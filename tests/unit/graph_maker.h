// A graph written by hand, for tests of passes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/graph/graph.h"
#include "compiler/passes/graph_builder.h"

namespace kiln {

struct Maker {
  using Args = GraphBuilder::Args;
  Graph graph;

  TensorType Type(const std::vector<int64_t>& sizes, v1::DType dtype = v1::F32) {
    TensorType type;
    type.dtype = dtype;
    for (int64_t size : sizes) type.sizes.push_back(graph.exprs.Const(size));
    type.strides = ContiguousStrides(graph.exprs, type.sizes);
    type.offset = graph.exprs.Const(0);
    return type;
  }
  ValueId Input(const std::vector<int64_t>& sizes, v1::DType dtype = v1::F32) {
    GraphInput input;
    input.value = graph.NewValue(Type(sizes, dtype));
    graph.inputs.push_back(input);
    return input.value;
  }
  ValueId Node(std::string target, Args args, TensorType type) {
    return Nodes(std::move(target), std::move(args), {std::move(type)})[0];
  }
  std::vector<ValueId> Nodes(std::string target, Args args, std::vector<TensorType> types) {
    GraphNode node;
    node.target = std::move(target);
    node.args = std::move(args);
    node.origin = static_cast<uint32_t>(graph.nodes.size());
    for (TensorType& type : types) node.results.push_back(graph.NewValue(std::move(type)));
    graph.nodes.push_back(node);
    return node.results;
  }
  void Output(ValueId value, bool visible = true) {
    GraphOutput output;
    output.value = value;
    output.fact.set_user_visible(visible);
    graph.outputs.push_back(output);
  }
  Argument Ints(const std::vector<int64_t>& values) {
    IntListArg list;
    for (int64_t value : values) list.values.push_back(graph.exprs.Const(value));
    return list;
  }
  Argument Int(int64_t value) { return IntArg{graph.exprs.Const(value)}; }
};

inline Argument T(ValueId value) { return TensorArg{value}; }

// Of the graph's nodes, in their order.
inline std::vector<std::string> Targets(const Graph& graph) {
  std::vector<std::string> targets;
  for (const GraphNode& node : graph.nodes) targets.emplace_back(node.target.text());
  return targets;
}

}  // namespace kiln
