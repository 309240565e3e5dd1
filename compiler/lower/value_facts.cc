#include "compiler/lower/value_facts.h"

#include <algorithm>
#include <variant>

#include "compiler/lower/lowering.h"
#include "compiler/lower/padding.h"
#include "compiler/lower/view.h"
#include "compiler/passes/pinned_layouts.h"

namespace kiln {
namespace {

constexpr uint32_t kManyUses = 1u << 20;

void CountUses(const Graph& graph, ValueFacts* facts) {
  const LoweringTable& table = Lowerings();
  LoweringTable calls;
  RegisterExterns(calls);
  std::vector<uint32_t>& uses_of = facts->uses;
  std::vector<bool>& memory_uses = facts->memory_uses;
  uses_of.resize(graph.values.size(), 0);
  memory_uses.resize(graph.values.size(), false);
  for (const GraphOutput& output : graph.outputs) {
    if (output.value == kNoValue) continue;
    uses_of[output.value] += 1;
    memory_uses[output.value] = true;
  }
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const GraphNode& node = graph.nodes[i];
    uint32_t uses = 1;
    bool memory = false;
    if (IsViewOp(node.target)) {
      uses = 0;
      for (ValueId result : node.results) {
        uses = std::min(uses + uses_of[result], kManyUses);
        memory = memory || memory_uses[result];
      }
    } else {
      memory = !table.contains(node.target) || calls.contains(node.target);
    }
    VisitTensors(node, [&](ValueId value) {
      uses_of[value] = std::min(uses_of[value] + uses, kManyUses);
      memory_uses[value] = memory_uses[value] || memory;
    });
  }
}

// As the importer makes such nodes; the number of another one is 0.
uint32_t NumberOf(const Graph& graph, const GraphNode& node, absl::string_view name) {
  const Argument* argument = node.Find(name);
  const auto* number = argument == nullptr ? nullptr : std::get_if<IntArg>(argument);
  return number == nullptr ? 0 : static_cast<uint32_t>(graph.exprs.AsConst(number->value).value_or(0));
}

void FindBinds(const Graph& graph, ValueFacts* facts) {
  for (const GraphNode& node : graph.nodes) {
    if (node.target != Op::kSymbolOfSize) continue;
    const SizeBind bind = {NumberOf(graph, node, "symbol"), 0, NumberOf(graph, node, "dim")};
    const Argument* self = node.Find("self");
    const auto* tensor = self == nullptr ? nullptr : std::get_if<TensorArg>(self);
    if (tensor != nullptr) facts->binds[tensor->value].push_back(bind);
  }
}

}  // namespace

void VisitTensors(const GraphNode& node, absl::FunctionRef<void(ValueId)> visit) {
  for (const auto& [name, argument] : node.args) {
    if (const auto* tensor = std::get_if<TensorArg>(&argument)) visit(tensor->value);
    if (const auto* list = std::get_if<TensorListArg>(&argument)) {
      for (ValueId value : list->values) {
        if (value != kNoValue) visit(value);
      }
    }
  }
}

ValueFacts FindValueFacts(const Graph& graph) {
  ValueFacts facts;
  CountUses(graph, &facts);
  FindBinds(graph, &facts);
  facts.pinned = PinnedLayouts(graph);
  facts.shared = SharedByOutputs(graph);
  facts.owners = MemoryOwners(graph);
  facts.padded_row_length = FindRowPadding(graph, facts);
  return facts;
}

}  // namespace kiln
