// Library calls: what a library does best, and everything without a lowering of our own.
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "compiler/library/attention.h"
#include "compiler/library/gemm.h"
#include "compiler/lower/convolution_call.h"
#include "compiler/lower/library_call.h"

namespace kiln {
namespace {

struct LibraryCall {
  Op target;
  const char* reason;
  bool into_results;
};

// Beside gemms, convolutions and attention, which are compiler/library's.
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
    for (const LibraryCall& row : kOthers) (*map)[row.target] = row;
    return map;
  }();
  return *table;
}

absl::Status LowerLibrary(LoweringContext& context, const GraphNode& node) {
  const LibraryCall& row = LibraryCalls().at(node.target.op());
  return CallLibrary(context, node, row.reason, row.into_results);
}

constexpr char kGemm[] = "gemm", kAttention[] = "attention";

absl::Status LowerGemm(LoweringContext& context, const GraphNode& node) {
  const std::optional<Gemm> gemm = GemmOf(context.graph(), node);
  if (!gemm) return absl::InvalidArgumentError("kiln.gemm of operands that no gemm takes");
  return CallLibrary(context, GemmCallOf(*gemm, node), kGemm, gemm->form->into_results);
}

absl::Status LowerAttention(LoweringContext& context, const GraphNode& node) {
  const std::optional<Attention> attention = AttentionOf(context.graph(), node);
  if (!attention) return absl::InvalidArgumentError("kiln.attention of operands that no kernel of it takes");
  return CallLibrary(context, AttentionCallOf(*attention, node), kAttention, false);
}

// Those that are no nodes of compiler/library, as they say what it does not know.
absl::Status CallGemm(LoweringContext& context, const GraphNode& node) {
  return CallLibrary(context, node, kGemm, false);
}

absl::Status CallAttention(LoweringContext& context, const GraphNode& node) {
  return CallLibrary(context, node, kAttention, false);
}

}  // namespace

void RegisterExterns(LoweringTable& table) {
  for (const auto& [target, row] : LibraryCalls()) table[target] = LowerLibrary;
  for (const GemmForm& form : GemmForms()) table[form.target] = CallGemm;
  for (const AttentionForm& form : AttentionForms()) table[form.target] = CallAttention;
  table[Op::kGemm] = LowerGemm;
  table[Op::kAttention] = table[Op::kAttentionBackward] = LowerAttention;
  table[Op::kConvolution] = LowerConvolution;
  table[Op::kConvolutionBackward] = LowerConvolutionBackward;
}

}  // namespace kiln
