#include "compiler/lower/lowering.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_proofs.h"
#include "compiler/lower/library_call.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/strides.h"
#include "compiler/lower/value_facts.h"
#include "compiler/lower/verify_loop_graph.h"
#include "compiler/lower/view.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

LoweringTable MakeTable() {
  LoweringTable table;
  RegisterPointwise(table);
  RegisterReductions(table);
  RegisterViews(table);
  RegisterIndexing(table);
  RegisterCopies(table);
  RegisterPadding(table);
  RegisterCreation(table);
  RegisterRandom(table);
  RegisterWindows(table);
  RegisterExterns(table);
  RegisterMutation(table);
  RegisterStorage(table);
  RegisterSymbols(table);
  return table;
}

absl::Status NodeError(const GraphNode& node, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(absl::string_view(status.message().data(), status.message().size()),
                                   " (node ", node.origin, ", ", node.target.text(), ")"));
}

absl::Status ProducerError(const Graph& graph, ValueId value, const absl::Status& status) {
  for (const GraphNode& node : graph.nodes) {
    if (std::find(node.results.begin(), node.results.end(), value) != node.results.end()) {
      return NodeError(node, status);
    }
  }
  return status;
}

absl::Status BindInputs(LoweringContext& context) {
  const Graph& graph = context.graph();
  LoopGraph& out = context.out();
  for (uint32_t i = 0; i < graph.inputs.size(); ++i) {
    const GraphInput& input = graph.inputs[i];
    out.input_types.emplace_back();
    if (input.value == kNoValue) continue;
    const TensorType& type = graph.type(input.value);
    out.input_types.back() = type;
    if (type.sizes.size() != type.strides.size()) {
      return absl::InvalidArgumentError(absl::StrCat("input ", i, ": sizes and strides differ in rank"));
    }
    const BufferId buffer = out.AddBuffer(type.dtype, type.device, type.sizes, type.strides);
    out.buffers[buffer].kind = LoopBuffer::Kind::kInput;
    out.buffers[buffer].input = i;
    context.MutableValue(input.value) = WithView(type, out.Whole(buffer));
    context.storage().SetStart(buffer, type.offset);
  }
  return absl::OkStatus();
}

BufferView OutputView(LoweringContext& context, const GraphOutput& output) {
  ExprPool& exprs = context.exprs();
  const LoopGraph& out = context.out();
  LoweredTensor& tensor = context.MutableValue(output.value);
  const TensorType& type = context.graph().type(output.value);
  const bool dense = IsDense(exprs, type.sizes, type.strides);
  if (!tensor.is_strided() && dense) context.memory().Materialize(tensor);
  // What is saved for a backward graph has the strides that the passes chose for it, without gaps.
  // What the compiler of a backward graph is told of strides has no unbacked sizes in it.
  bool as_declared = output.fact.user_visible() || dense;
  for (ExprId size : type.sizes) as_declared = as_declared || HasUnbacked(exprs, out.symbols, size);
  if (!tensor.is_strided() ||
      (as_declared && !SameLayout(exprs, type.sizes, tensor.view->strides, type.strides)) ||
      out.Reinterprets(*tensor.view)) {
    tensor.view =
        context.memory().CopyTo(tensor, as_declared ? type.strides : ContiguousStrides(exprs, type.sizes));
    tensor.body = nullptr;
  }
  BufferView view = *tensor.view;
  if (output.offset && !ProvablyEqual(exprs, context.storage().OffsetOf(view), *output.offset)) {
    view = context.memory().CopyTo(tensor, view.strides, *output.offset);
  }
  if (as_declared) view.strides = type.strides;  // strides of size-1 dimensions are free
  return view;
}

absl::Status BindOutputs(LoweringContext& context) {
  const Graph& graph = context.graph();
  LoopGraph& out = context.out();
  absl::flat_hash_map<BufferId, ValueId> memory;  // of the graph as traced, by storage
  for (const GraphInput& input : graph.inputs) {
    if (input.value != kNoValue) memory[context.value(input.value).view->buffer] = input.value;
  }
  for (const GraphOutput& output : graph.outputs) {
    LoopGraphOutput bound;
    if (output.sym_int.has_value()) {
      bound.kind = LoopGraphOutput::Kind::kSymInt;
      bound.sym_int = *output.sym_int;
    } else if (output.value != kNoValue && context.IsDefined(output.value)) {
      bound.kind = LoopGraphOutput::Kind::kView;
      bound.view = OutputView(context, output);
      // Of other graphs autograd sets results apart, and counts who holds a gradient.
      if (graph.kind == v1::INFERENCE) bound.seen_as = output.traced;
      // Passes keep memory apart that is apart as traced; what they did not, a copy does.
      const auto [held, first] = memory.try_emplace(out.StorageOf(bound.view.buffer), output.memory);
      if (output.memory != kNoValue && held->second != output.memory) {
        const LoweredTensor& value = context.value(output.value);
        bound.view = output.offset ? context.memory().CopyTo(value, bound.view.strides, *output.offset)
                                   : context.memory().CopyTo(value, bound.view.strides);
        memory[bound.view.buffer] = output.memory;
      }
    }
    out.outputs.push_back(std::move(bound));
    if (!context.status().ok()) return ProducerError(graph, output.value, context.status());
  }
  return absl::OkStatus();
}

absl::Status LowerNode(LoweringContext& context, const GraphNode& node) {
  const Graph& graph = context.graph();
  bool complex = false;
  VisitTensors(node, [&](ValueId value) { complex = complex || IsComplex(graph.type(value).dtype); });
  for (ValueId result : node.results) complex = complex || IsComplex(graph.type(result).dtype);
  const LoweringTable& table = Lowerings();
  auto found = table.find(node.target);
  if (complex && !IsViewOp(node.target) && node.target != Op::kCopyInPlace &&
      node.target != Op::kSymbolOfSize)
    found = table.end();
  if (found != table.end()) return found->second(context, node);
  return CallLibrary(context, node,
                     complex                 ? "complex numbers"
                     : IsCustom(node.target) ? "custom operator"
                                             : "no lowering",
                     false);
}

// Values with a pinned layout, and those that several results share, get memory in their declared layout.
void PinResults(LoweringContext& context, const GraphNode& node) {
  if (IsViewNode(node)) return;
  const ValueFacts& facts = context.facts();
  for (ValueId result : node.results) {
    if (result == kNoValue || !context.IsDefined(result) || !(facts.pinned[result] || facts.shared[result]))
      continue;
    const TensorType& type = context.graph().type(result);
    if (type.strides.size() == type.rank()) context.storage().Pin(context.MutableValue(result), type);
  }
}

void MaterializeReused(LoweringContext& context, const GraphNode& node) {
  const ValueFacts& facts = context.facts();
  for (ValueId result : node.results) {
    LoweredTensor& tensor = context.MutableValue(result);
    if (tensor.body == nullptr) continue;
    const VirtualBody& body = *tensor.body;
    const cost::BodyCost cost = {body.ops.size(), body.loads, body.heavy};
    if (!cost::PaysStoring(cost, facts.uses[result], facts.memory_uses[result])) continue;
    if (facts.padded_row_length[result] != 0) {
      context.memory().MaterializeWithRowPadding(tensor, facts.padded_row_length[result]);
    } else {
      context.memory().Materialize(tensor);
    }
  }
}

absl::Status LowerNodes(LoweringContext& context) {
  const std::vector<GraphNode>& nodes = context.graph().nodes;
  for (uint32_t index = 0; index < nodes.size(); ++index) {
    const GraphNode& node = nodes[index];
    context.loops().SetNode(index);
    absl::Status status = LowerNode(context, node);
    if (status.ok()) status = context.status();
    if (status.ok()) PinResults(context, node);
    if (status.ok()) MaterializeReused(context, node);
    if (status.ok()) status = context.status();
    if (!status.ok()) return NodeError(node, status);
  }
  context.loops().SetNode(nodes.size());  // outputs are the work of none
  return absl::OkStatus();
}

}  // namespace

const LoweringTable& Lowerings() {
  static const LoweringTable* table = new LoweringTable(MakeTable());
  return *table;
}

absl::StatusOr<LoopGraph> LowerGraph(const Graph& graph, const LowerOptions& options) {
  const ValueFacts facts = FindValueFacts(graph);
  LoweringContext context(graph, facts, options);
  for (ExprId condition : graph.conditions) context.out().Require(condition);  // never known to be false
  KILN_RETURN_IF_ERROR(BindInputs(context));
  KILN_RETURN_IF_ERROR(LowerNodes(context));
  KILN_RETURN_IF_ERROR(BindOutputs(context));
  KILN_RETURN_IF_ERROR(context.exprs().status());
  LoopGraph lowered = context.Take();
  KILN_RETURN_IF_ERROR(VerifyLoopGraph(lowered));
  return lowered;
}

}  // namespace kiln
