#include "compiler/library/attention.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "compiler/graph/arguments.h"
#include "compiler/graph/dtypes.h"
#include "compiler/library/form_of.h"

namespace kiln {
namespace {

constexpr AttentionForm kForms[] = {
    {.target = Op::kScaledDotProductFlashAttentionForCpu, .bias = "attn_mask"},
    {.target = Op::kScaledDotProductFlashAttentionForCpuBackward, .bias = "attn_mask", .gradients = true},
    {.target = Op::kScaledDotProductFlashAttention, .bias = ""},
    {.target = Op::kScaledDotProductFlashAttentionBackward, .bias = "", .gradients = true},
    {.target = Op::kScaledDotProductEfficientAttention, .bias = "attn_bias"},
    {.target = Op::kScaledDotProductEfficientAttentionBackward, .bias = "attn_bias", .gradients = true},
    {.target = Op::kScaledDotProductCudnnAttention, .bias = "attn_bias"},
    {.target = Op::kScaledDotProductCudnnAttentionBackward, .bias = "attn_bias", .gradients = true},
    {.target = Op::kScaledDotProductAttentionMathForMps, .bias = "attn_mask"},
};

// Names of arguments that are kiln's, not ATen's.
constexpr char kBias[] = "bias", kKernel[] = "kernel";

const AttentionForm* KernelOf(const GraphNode& node) {
  const AttentionForm* const form = AttentionFormOf(StringOf(node, kKernel));
  const Op target = form != nullptr && form->gradients ? Op::kAttentionBackward : Op::kAttention;
  return form != nullptr && node.target == target ? form : nullptr;
}

}  // namespace

absl::Span<const AttentionForm> AttentionForms() { return kForms; }

const AttentionForm* AttentionFormOf(const OperatorName& target) {
  return FormOf<AttentionForm>(kForms, target);
}

std::optional<Attention> AttentionOf(const Graph& graph, const GraphNode& node) {
  if (node.target != Op::kAttention && node.target != Op::kAttentionBackward) return std::nullopt;
  const AttentionForm* const form = KernelOf(node);
  if (form == nullptr) return std::nullopt;
  Attention attention{.form = form,
                      .query = TensorOf(node, "query"),
                      .key = TensorOf(node, "key"),
                      .value = TensorOf(node, "value"),
                      .bias = TensorOf(node, kBias)};
  if (attention.query == kNoValue || attention.key == kNoValue || attention.value == kNoValue)
    return std::nullopt;
  for (const ValueId operand : {attention.query, attention.key, attention.value}) {
    if (IsComplex(graph.type(operand).dtype)) return std::nullopt;
  }
  if (const Argument* scale = node.Find("scale"); scale != nullptr) {
    attention.default_scale = false;
    attention.scale = NumberOf(graph, scale);
  }
  if (const Argument* dropout = node.Find("dropout_p"); dropout != nullptr)
    attention.dropout = NumberOf(graph, dropout);
  attention.causal = FlagOf(node, "is_causal");
  attention.keeps_sums = FlagOf(node, "compute_log_sumexp");
  return attention;
}

bool IsOfHeads(const Graph& graph, const Attention& attention, v1::DType dtype) {
  const TensorType& query = graph.type(attention.query);
  for (const ValueId value : {attention.query, attention.key, attention.value}) {
    const TensorType& type = graph.type(value);
    if (type.rank() != 4 || type.dtype != dtype) return false;
    if (type.sizes[0] != query.sizes[0] || type.sizes[1] != query.sizes[1]) return false;
  }
  if (attention.bias == kNoValue) return true;
  const TensorType& bias = graph.type(attention.bias);
  return bias.rank() == 4 && bias.dtype == dtype;
}

bool IsPlain(const Attention& attention) {
  return !attention.form->gradients && !attention.keeps_sums && !attention.causal && attention.dropout == 0;
}

std::optional<GraphNode> AttentionNodeOf(const Graph& graph, const GraphNode& node) {
  const AttentionForm* const form = AttentionFormOf(node.target);
  if (form == nullptr) return std::nullopt;
  GraphNode made = node;
  made.target = form->gradients ? Op::kAttentionBackward : Op::kAttention;
  for (auto& [name, argument] : made.args) {
    if (!form->bias.empty() && name == form->bias) name = kBias;
  }
  made.args.emplace_back(kKernel, StringArg{std::string(NameOf(form->target))});
  if (!AttentionOf(graph, made)) return std::nullopt;
  return made;
}

GraphNode AttentionCallOf(const Attention& attention, const GraphNode& node) {
  GraphNode call = node;
  call.target = attention.form->target;
  std::erase_if(call.args, [](const auto& argument) { return argument.first == kKernel; });
  for (auto& [name, argument] : call.args) {
    if (name == kBias) name = std::string(attention.form->bias);
  }
  return call;
}

}  // namespace kiln
