#include "compiler/artifact/program_calls.h"

#include <utility>

#include "absl/base/casts.h"
#include "compiler/passes/library_nodes.h"

namespace kiln {
namespace {

// One expression, one symbol: what is equal stays so.
ExprId SizeOf(const v1::SymInt& size, ExprPool& exprs) {
  return size.has_expr() ? exprs.Symbol(size.expr(), {}) : exprs.Const(size.value());
}

ValueId ValueOf(const Graph& graph, int64_t buffer) {
  const bool exists = buffer >= 0 && static_cast<uint64_t>(buffer) < graph.values.size();
  return exists ? static_cast<ValueId>(buffer) : kNoValue;
}

// No value for a kind that no description reads.
std::optional<Argument> ArgumentOf(const v1::Argument& argument, Graph& graph) {
  switch (argument.kind_case()) {
    case v1::Argument::kAsTensor: return TensorArg{ValueOf(graph, argument.as_tensor())};
    case v1::Argument::kAsInt: return IntArg{graph.exprs.Const(argument.as_int())};
    case v1::Argument::kAsSymInt: return IntArg{SizeOf(argument.as_sym_int(), graph.exprs)};
    case v1::Argument::kAsFloat: return FloatArg{absl::bit_cast<double>(argument.as_float())};
    case v1::Argument::kAsBool: return BoolArg{argument.as_bool()};
    case v1::Argument::kAsInts: {
      IntListArg list;
      for (const int64_t value : argument.as_ints().values()) list.values.push_back(graph.exprs.Const(value));
      return list;
    }
    case v1::Argument::kAsSymInts: {
      IntListArg list;
      for (const v1::SymInt& value : argument.as_sym_ints().values())
        list.values.push_back(SizeOf(value, graph.exprs));
      return list;
    }
    default: return std::nullopt;
  }
}

GraphNode NodeOf(const v1::Call& call, Graph& graph) {
  GraphNode node;
  node.target = call.target();
  for (const v1::NamedArgument& named : call.args()) {
    if (std::optional<Argument> argument = ArgumentOf(named.value(), graph))
      node.args.emplace_back(named.name(), *std::move(argument));
  }
  for (const int64_t result : call.results()) node.results.push_back(ValueOf(graph, result));
  return node;
}

}  // namespace

Graph CallsOf(const v1::Program& program) {
  Graph graph;
  for (const v1::ProgramBuffer& buffer : program.buffers()) {
    TensorType& type = graph.values.emplace_back();
    type.dtype = buffer.dtype();
    type.device = buffer.device().type();
    for (const v1::SymInt& size : buffer.sizes()) type.sizes.push_back(SizeOf(size, graph.exprs));
    for (const v1::SymInt& stride : buffer.strides()) type.strides.push_back(SizeOf(stride, graph.exprs));
  }
  for (const v1::Step& step : program.steps()) {
    if (step.has_call()) graph.nodes.push_back(NodeOf(step.call(), graph));
  }
  MakeLibraryNodes(graph);
  return graph;
}

}  // namespace kiln
