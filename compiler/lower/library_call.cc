#include "compiler/lower/library_call.h"

#include <utility>
#include <variant>

#include "compiler/library/convolution.h"
#include "compiler/library/gemm.h"
#include "compiler/lower/strides.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// On a CPU: results in memory that nothing else looks at, so that it can be given on.
bool MakesItsOwn(const OperatorName& target) { return target == kOnednnGemm || IsConvolution(target); }

// The tensor in memory, as it was traced unless the call is into its results.
BufferView TracedView(LoweringContext& context, LoweredTensor& tensor, bool into_results) {
  ExprPool& exprs = context.exprs();
  const bool traced = !into_results && tensor.strides.size() == tensor.rank();
  if (!tensor.is_strided() && (!traced || IsDense(exprs, tensor.sizes, tensor.strides))) {
    context.memory().Materialize(tensor);
  }
  if (tensor.is_strided() && !context.out().Reinterprets(*tensor.view) &&
      (!traced || SameLayout(exprs, tensor.sizes, tensor.view->strides, tensor.strides))) {
    BufferView view = *tensor.view;
    if (traced) view.strides = tensor.strides;  // a library looks at those of dimensions of size 1 too
    return view;
  }
  return context.memory().CopyTo(tensor, tensor.strides);
}

void BindArguments(LoweringContext& context, const GraphNode& node, const CallOperands& operands,
                   CallNode* call) {
  const auto bind = [&](ValueId id, const CallOperand* operand) -> ValueId {
    if (!context.IsDefined(id)) return kNoValue;
    LoweredTensor& tensor = context.MutableValue(id);
    if (operand == nullptr) {
      call->tensors.push_back(TracedView(context, tensor, call->into_results));
    } else {
      LoweredTensor& passed = operand->tensor != nullptr ? *operand->tensor : tensor;
      call->tensors.push_back(context.memory().InLayout(passed, operand->strides));
    }
    return static_cast<ValueId>(call->tensors.size() - 1);
  };
  for (const auto& [name, argument] : node.args) {
    if (const auto* tensor = std::get_if<TensorArg>(&argument)) {
      const auto operand = operands.find(name);
      const ValueId position = bind(tensor->value, operand == operands.end() ? nullptr : &operand->second);
      if (position == kNoValue) {
        call->args.emplace_back(name, NoneArg{});
      } else {
        call->args.emplace_back(name, TensorArg{position});
      }
    } else if (const auto* list = std::get_if<TensorListArg>(&argument)) {
      TensorListArg bound;
      for (ValueId value : list->values) bound.values.push_back(bind(value, nullptr));
      call->args.emplace_back(name, std::move(bound));
    } else {
      call->args.emplace_back(name, argument);
    }
  }
}

// The result's buffer, the next of the call's, and the symbols that are sizes of it.
void BindResult(LoweringContext& context, const GraphNode& node, ValueId result, CallNode* call) {
  const TensorType& type = context.graph().type(result);
  const BufferId buffer = context.out().AddBuffer(type.dtype, type.device, type.sizes, type.strides);
  call->own_results = type.device == v1::CPU && MakesItsOwn(node.target);
  call->results.push_back(buffer);
  context.MutableValue(result) = WithView(type, context.out().Whole(buffer));
  if (!call->tensors.empty() && IsViewNode(node))
    context.storage().Share(buffer, call->tensors[0], node.results.size() == 1);
  const auto binds = context.facts().binds.find(result);
  if (binds == context.facts().binds.end()) return;
  for (SizeBind bind : binds->second) {
    bind.result = static_cast<uint32_t>(call->results.size() - 1);
    call->binds.push_back(bind);
    context.Bind(bind.symbol);
  }
  call->into_results = false;  // nobody could allocate it
}

// Whether the call has a result at all that something may read.
absl::StatusOr<bool> BindResults(LoweringContext& context, const GraphNode& node, CallNode* call) {
  const bool into_results = call->into_results;
  bool defined = node.results.empty();
  for (ValueId result : node.results) {
    const TensorType& type = context.graph().type(result);
    // What nothing reads need not be as declared: attention without gradients gives no sums of exponentials.
    const bool unused = !into_results && !call->draws && node.results.size() > 1 && result != kNoValue &&
                        context.facts().uses[result] == 0;
    if (type.dtype == v1::DTYPE_UNSPECIFIED || unused) {
      call->results.push_back(-1);
      call->into_results = false;
      continue;
    }
    if (type.sizes.size() != type.strides.size())
      return absl::InvalidArgumentError("a result without strides");
    BindResult(context, node, result, call);
    defined = true;
  }
  return defined;
}

}  // namespace

absl::Status CallLibrary(LoweringContext& context, const GraphNode& node, absl::string_view reason,
                         bool into_results, const CallOperands& operands) {
  CallNode call;
  call.target = std::string(node.target.text());
  call.reason = std::string(reason);
  call.into_results = into_results;
  call.origin = node.origin;
  call.draws = context.options().fallback_random && IsRandom(node);
  BindArguments(context, node, operands, &call);
  KILN_RETURN_IF_ERROR(context.status());
  KILN_ASSIGN_OR_RETURN(const bool defined, BindResults(context, node, &call));
  if (!defined) return absl::OkStatus();
  // What the library allocates may be an argument's memory.
  for (ValueId result : node.results) context.SetOwnsMemory(result, call.into_results);
  LoopGraphNode made;
  made.kind = LoopGraphNode::Kind::kCall;
  made.call = std::move(call);
  context.out().nodes.push_back(std::move(made));
  return absl::OkStatus();
}

}  // namespace kiln
