#include "compiler/lower/lowering.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/lower/library_call.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/strides.h"
#include "compiler/lower/value_facts.h"
#include "compiler/lower/verify_loop_graph.h"
#include "compiler/lower/view.h"
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

}  // namespace

const LoweringTable& Lowerings() {
  static const LoweringTable* table = new LoweringTable(MakeTable());
  return *table;
}

// ---- the driver

absl::Status LoweringContext::BindInputs() {
  for (uint32_t i = 0; i < graph_.inputs.size(); ++i) {
    const GraphInput& input = graph_.inputs[i];
    out_.input_types.emplace_back();
    if (input.value == kNoValue) continue;
    const TensorType& type = graph_.type(input.value);
    out_.input_types.back() = type;
    if (type.sizes.size() != type.strides.size()) {
      return absl::InvalidArgumentError(absl::StrCat("input ", i, ": sizes and strides differ in rank"));
    }
    const BufferId buffer = out_.AddBuffer(type.dtype, type.device, type.sizes, type.strides);
    out_.buffers[buffer].kind = LoopBuffer::Kind::kInput;
    out_.buffers[buffer].input = i;
    values_[input.value] = WithView(type, out_.Whole(buffer));
    starts_[buffer] = type.offset;
  }
  return absl::OkStatus();
}

absl::Status LoweringContext::BindOutputs() {
  absl::flat_hash_map<BufferId, ValueId> memory;  // of the graph as traced, by storage
  for (const GraphInput& input : graph_.inputs) {
    if (input.value != kNoValue) memory[values_[input.value].view->buffer] = input.value;
  }
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    const GraphOutput& output = graph_.outputs[i];
    LoopGraphOutput bound;
    if (output.sym_int.has_value()) {
      bound.kind = LoopGraphOutput::Kind::kSymInt;
      bound.sym_int = *output.sym_int;
    } else if (output.value != kNoValue && IsDefined(output.value)) {
      bound.kind = LoopGraphOutput::Kind::kView;
      bound.view = OutputView(output);
      // Passes keep memory apart that is apart as traced; what they did not, a copy does.
      const auto [held, first] = memory.try_emplace(out_.StorageOf(bound.view.buffer), output.memory);
      if (output.memory != kNoValue && held->second != output.memory) {
        bound.view = CopyTo(values_[output.value], bound.view.strides);
        memory[bound.view.buffer] = output.memory;
      }
    }
    out_.outputs.push_back(std::move(bound));
    if (!status_.ok()) return ProducerError(output.value, status_);
  }
  return absl::OkStatus();
}

BufferView LoweringContext::OutputView(const GraphOutput& output) {
  LoweredTensor& tensor = values_[output.value];
  const TensorType& type = graph_.type(output.value);
  if (!tensor.is_strided() && IsDense(exprs(), type.sizes, type.strides)) Realise(tensor);
  // What is saved for a backward graph has the strides that the passes chose for it, without gaps.
  // What the compiler of a backward graph is told of strides has no unbacked sizes in it.
  bool as_declared = output.fact.user_visible() || IsDense(exprs(), type.sizes, type.strides);
  for (ExprId size : type.sizes) as_declared = as_declared || HasUnbacked(exprs(), out_.symbols, size);
  if (!tensor.is_strided() ||
      (as_declared && !SameLayout(exprs(), type.sizes, tensor.view->strides, type.strides)) ||
      out_.Reinterprets(*tensor.view)) {
    tensor.view = CopyTo(tensor, as_declared ? type.strides : ContiguousStrides(exprs(), type.sizes));
    tensor.body = nullptr;
  }
  BufferView view = *tensor.view;
  if (as_declared) view.strides = type.strides;  // of dimensions of one element any do
  return view;
}

absl::Status LoweringContext::NodeError(const GraphNode& node, const absl::Status& status) const {
  return absl::Status(status.code(),
                      absl::StrCat(absl::string_view(status.message().data(), status.message().size()),
                                   " (node ", node.origin, ", ", node.target.text(), ")"));
}

absl::Status LoweringContext::ProducerError(ValueId value, const absl::Status& status) const {
  for (const GraphNode& node : graph_.nodes) {
    if (std::find(node.results.begin(), node.results.end(), value) != node.results.end()) {
      return NodeError(node, status);
    }
  }
  return status;
}

absl::Status LoweringContext::LowerNode(const GraphNode& node) {
  bool complex = false;
  VisitTensors(node, [&](ValueId value) { complex = complex || IsComplex(graph_.type(value).dtype); });
  for (ValueId result : node.results) complex = complex || IsComplex(graph_.type(result).dtype);
  const LoweringTable& table = Lowerings();
  auto found = table.find(node.target);
  if (complex && !IsViewOp(node.target) && node.target != Op::kCopyInPlace &&
      node.target != Op::kSymbolOfSize)
    found = table.end();
  if (found != table.end()) return found->second(*this, node);
  return CallLibrary(*this, node,
                     complex                 ? "complex numbers"
                     : IsCustom(node.target) ? "custom operator"
                                             : "no lowering",
                     false);
}

void LoweringContext::RealiseReused(const GraphNode& node) {
  for (ValueId result : node.results) {
    LoweredTensor& tensor = values_[result];
    if (tensor.body == nullptr) continue;
    const VirtualBody& body = *tensor.body;
    const cost::BodyCost cost = {body.ops.size(), body.loads, body.heavy};
    if (!cost::PaysStoring(cost, facts_.uses[result], facts_.memory_uses[result])) continue;
    if (facts_.row_room[result] != 0) {
      RealiseWithRoom(result);
    } else {
      Realise(tensor);
    }
  }
}

absl::Status LoweringContext::Run() {
  for (ExprId condition : graph_.conditions) Require(condition);  // never known to be false
  KILN_RETURN_IF_ERROR(BindInputs());
  for (node_index_ = 0; node_index_ < graph_.nodes.size(); ++node_index_) {
    const GraphNode& node = graph_.nodes[node_index_];
    absl::Status status = LowerNode(node);
    if (status.ok()) status = status_;
    if (status.ok()) PinResults(node);
    if (status.ok()) RealiseReused(node);
    if (status.ok()) status = status_;
    if (!status.ok()) return NodeError(node, status);
  }
  KILN_RETURN_IF_ERROR(BindOutputs());
  return exprs().status();
}

absl::StatusOr<LoopGraph> LowerGraph(const Graph& graph, const LowerOptions& options) {
  const ValueFacts facts = FindValueFacts(graph);
  LoweringContext context(graph, facts, options);
  KILN_RETURN_IF_ERROR(context.Run());
  LoopGraph lowered = context.Take();
  KILN_RETURN_IF_ERROR(VerifyLoopGraph(lowered));
  return lowered;
}

}  // namespace kiln
