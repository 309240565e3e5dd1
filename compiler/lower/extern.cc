// Library calls: what a library does best, and everything without a lowering of our own.
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/library/attention.h"
#include "compiler/library/convolution.h"
#include "compiler/library/gemm.h"
#include "compiler/lower/convolution_call.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/strides.h"
#include "compiler/passes/gemm_to_onednn.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

struct LibraryCall {
  Op target;
  const char* reason;
  bool into_results;
};

// Beside gemms and attention, which are all of compiler/library's, and convolutions, which have lowerings of
// their own.
constexpr LibraryCall kOthers[] = {
    {Op::kSort, "closed list: sort", false},
    {Op::kSortStable, "closed list: sort", false},
    {Op::kArgsort, "closed list: sort", false},
    {Op::kArgsortStable, "closed list: sort", false},
    {Op::kTopk, "closed list: topk", false},
    {Op::kKthvalue, "closed list: topk", false},
    {Op::kNonzero, "closed list: nonzero", false},
    {Op::kNonzeroStatic, "closed list: nonzero", false},
    {Op::kUnique2, "closed list: unique", false},
    {Op::kUniqueConsecutive, "closed list: unique", false},
    {Op::kUniqueDim, "closed list: unique", false},
    {Op::kFftR2c, "closed list: fft", false},
    {Op::kFftC2r, "closed list: fft", false},
    {Op::kFftC2c, "closed list: fft", false},
    {Op::kEmbeddingBag, "closed list: embedding_bag", false},
    {Op::kEmbeddingBagForwardOnly, "closed list: embedding_bag", false},
    {Op::kEmbeddingBagDenseBackward, "closed list: embedding_bag", false},
    {Op::kEmbeddingBagPerSampleWeightsBackward, "closed list: embedding_bag", false},
    {Op::kRandperm, "closed list: randperm", false},
    {Op::kMultinomial, "closed list: multinomial", false},
    {Op::kAvgPool2dBackward, "closed list: pooling backward", false},
    {Op::kAdaptiveAvgPool2dBackward, "closed list: pooling backward", false},
    {Op::kMaxPool3dWithIndicesBackward, "closed list: pooling backward", false},
    {Op::kAvgPool3dBackward, "closed list: pooling backward", false},
    {Op::kAdaptiveMaxPool2dBackward, "closed list: pooling backward", false},
};

const absl::flat_hash_map<Op, LibraryCall>& LibraryCalls() {
  static const auto* table = [] {
    auto* map = new absl::flat_hash_map<Op, LibraryCall>;
    for (const GemmForm& form : GemmForms()) (*map)[form.target] = {form.target, "gemm", form.into_results};
    for (const AttentionForm& form : AttentionForms())
      (*map)[form.target] = {form.target, "attention", false};
    for (const LibraryCall& row : kOthers) (*map)[row.target] = row;
    return map;
  }();
  return *table;
}

// On a CPU: results in memory that nothing else looks at, so that it can be given on.
bool MakesItsOwn(const OperatorName& target) { return target == kOnednnGemm || IsConvolution(target); }

absl::Status LowerLibrary(LoweringContext& context, const GraphNode& node) {
  const LibraryCall& row = LibraryCalls().at(node.target.op());
  return context.Call(node, row.reason, row.into_results);
}

}  // namespace

absl::Status LoweringContext::Call(const GraphNode& node, absl::string_view reason, bool into_results,
                                   const CallOperands& operands) {
  CallNode call;
  call.target = std::string(node.target.text());
  call.reason = std::string(reason);
  call.into_results = into_results;
  call.origin = node.origin;
  call.draws = options_.fallback_random && IsRandom(node);
  auto bind = [&](ValueId id, const CallOperand* operand = nullptr) -> ValueId {
    if (id == kNoValue) return kNoValue;
    if (!IsDefined(id)) return kNoValue;
    if (operand != nullptr) {
      call.tensors.push_back(
          InLayout(operand->tensor != nullptr ? *operand->tensor : values_[id], operand->strides));
      return static_cast<ValueId>(call.tensors.size() - 1);
    }
    // Operators see the layout they were traced with: their results' strides may depend on it.
    LoweredTensor& tensor = values_[id];
    const bool traced = !into_results && tensor.strides.size() == tensor.rank();
    if (!tensor.is_strided() && (!traced || IsDense(exprs(), tensor.sizes, tensor.strides))) Realise(tensor);
    if (tensor.is_strided() && !out_.Reinterprets(*tensor.view) &&
        (!traced || SameLayout(exprs(), tensor.sizes, tensor.view->strides, tensor.strides))) {
      call.tensors.push_back(*tensor.view);
    } else {
      call.tensors.push_back(CopyTo(tensor, tensor.strides));
    }
    return static_cast<ValueId>(call.tensors.size() - 1);
  };
  for (const auto& [name, argument] : node.args) {
    if (const auto* tensor = std::get_if<TensorArg>(&argument)) {
      const auto operand = operands.find(name);
      const ValueId position = bind(tensor->value, operand == operands.end() ? nullptr : &operand->second);
      if (position == kNoValue) {
        call.args.emplace_back(name, NoneArg{});
      } else {
        call.args.emplace_back(name, TensorArg{position});
      }
    } else if (const auto* list = std::get_if<TensorListArg>(&argument)) {
      TensorListArg bound;
      for (ValueId value : list->values) bound.values.push_back(bind(value));
      call.args.emplace_back(name, std::move(bound));
    } else {
      call.args.emplace_back(name, argument);
    }
  }
  KILN_RETURN_IF_ERROR(status_);
  bool defined = false;
  for (ValueId result : node.results) {
    const TensorType& type = graph_.type(result);
    // What nothing reads need not be as declared: attention without gradients gives no sums of exponentials.
    const bool unused = !into_results && !call.draws && node.results.size() > 1 && result != kNoValue &&
                        facts_.uses[result] == 0;
    if (type.dtype == v1::DTYPE_UNSPECIFIED || unused) {
      call.results.push_back(-1);
      call.into_results = false;
      continue;
    }
    if (type.sizes.size() != type.strides.size())
      return absl::InvalidArgumentError("a result without strides");
    const BufferId buffer = out_.AddBuffer(type.dtype, type.device, type.sizes, type.strides);
    call.own_results = type.device == v1::CPU && MakesItsOwn(node.target);
    call.results.push_back(buffer);
    values_[result] = WithView(type, out_.Whole(buffer));
    if (!call.tensors.empty() && IsViewNode(node)) ShareStorage(node, call.tensors[0], buffer);
    if (const auto binds = facts_.binds.find(result); binds != facts_.binds.end()) {
      for (SizeBind bind : binds->second) {
        bind.result = static_cast<uint32_t>(call.results.size() - 1);
        call.binds.push_back(bind);
        bound_.insert(bind.symbol);
      }
      call.into_results = false;  // nobody could allocate it
    }
    defined = true;
  }
  if (!defined && !node.results.empty()) return absl::OkStatus();
  // What the library allocates may be an argument's memory.
  for (ValueId result : node.results) own_memory_[result] = call.into_results;
  LoopGraphNode made;
  made.kind = LoopGraphNode::Kind::kCall;
  made.call = std::move(call);
  out_.nodes.push_back(std::move(made));
  return absl::OkStatus();
}

BufferView LoweringContext::InLayout(LoweredTensor& tensor, const std::vector<ExprId>& strides) {
  if (!tensor.is_strided() && SameLayout(exprs(), tensor.sizes, tensor.strides, strides)) Realise(tensor);
  if (!tensor.is_strided() || out_.Reinterprets(*tensor.view) ||
      !SameLayout(exprs(), tensor.sizes, tensor.view->strides, strides)) {
    return CopyTo(tensor, strides);
  }
  // A library looks at the strides of dimensions of size 1 too.
  BufferView view = *tensor.view;
  view.strides = strides;
  return view;
}

void RegisterExterns(LoweringTable& table) {
  for (const auto& [target, row] : LibraryCalls()) table[target] = LowerLibrary;
  table[Op::kConvolution] = LowerConvolution;
  table[Op::kConvolutionBackward] = LowerConvolutionBackward;
}

}  // namespace kiln
