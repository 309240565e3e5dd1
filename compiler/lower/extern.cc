// Library calls: what a library does best, and everything without a lowering of our own.
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "compiler/library/attention.h"
#include "compiler/library/choice.h"
#include "compiler/library/gemm.h"
#include "compiler/lower/convolution_call.h"
#include "compiler/lower/gemm_loops.h"
#include "compiler/lower/library_call.h"

namespace kiln {
namespace {

struct LibraryCall {
  Op target;
  const char* reason;
};

constexpr char kGemm[] = "gemm", kAttention[] = "attention";

// Beside gemms, convolutions and attention, which are compiler/library's.
constexpr LibraryCall kOthers[] = {
    {Op::kSort, "closed list: sort"},
    {Op::kSortStable, "closed list: sort"},
    {Op::kArgsort, "closed list: sort"},
    {Op::kArgsortStable, "closed list: sort"},
    {Op::kTopk, "closed list: topk"},
    {Op::kKthvalue, "closed list: topk"},
    {Op::kNonzero, "closed list: nonzero"},
    {Op::kNonzeroStatic, "closed list: nonzero"},
    {Op::kUnique2, "closed list: unique"},
    {Op::kUniqueConsecutive, "closed list: unique"},
    {Op::kUniqueDim, "closed list: unique"},
    {Op::kFftR2c, "closed list: fft"},
    {Op::kFftC2r, "closed list: fft"},
    {Op::kFftC2c, "closed list: fft"},
    {Op::kEmbeddingBag, "closed list: embedding_bag"},
    {Op::kEmbeddingBagForwardOnly, "closed list: embedding_bag"},
    {Op::kEmbeddingBagDenseBackward, "closed list: embedding_bag"},
    {Op::kEmbeddingBagPerSampleWeightsBackward, "closed list: embedding_bag"},
    {Op::kRandperm, "closed list: randperm"},
    {Op::kMultinomial, "closed list: multinomial"},
    {Op::kAvgPool2dBackward, "closed list: pooling backward"},
    {Op::kAdaptiveAvgPool2dBackward, "closed list: pooling backward"},
    {Op::kMaxPool3dWithIndicesBackward, "closed list: pooling backward"},
    {Op::kAvgPool3dBackward, "closed list: pooling backward"},
    {Op::kAdaptiveMaxPool2dBackward, "closed list: pooling backward"},
};

const absl::flat_hash_map<Op, const char*>& LibraryCalls() {
  static const auto* table = [] {
    auto* map = new absl::flat_hash_map<Op, const char*>;
    // Those that are no nodes of compiler/library, as they say what it does not know.
    for (const GemmForm& form : GemmForms()) (*map)[form.target] = kGemm;
    for (const AttentionForm& form : AttentionForms()) (*map)[form.target] = kAttention;
    for (const LibraryCall& row : kOthers) (*map)[row.target] = row.reason;
    return map;
  }();
  return *table;
}

absl::Status LowerLibrary(LoweringContext& context, const GraphNode& node) {
  return CallLibrary(context, node, LibraryCalls().at(node.target.op()), false);
}

absl::Status LowerGemm(LoweringContext& context, const GraphNode& node) {
  const std::optional<Gemm> gemm = GemmOf(context.graph(), node);
  if (!gemm) return absl::InvalidArgumentError("kiln.gemm of operands that no gemm takes");
  const bool by_kernel = Choose(context.graph(), *gemm, context.machine()) == Implementation::kKernel;
  if (by_kernel && PlaceFactors(context, *gemm)) return LowerGemmByLoops(context, node, *gemm);
  return CallLibrary(context, GemmCallOf(*gemm, node), kGemm, gemm->form->into_results);
}

absl::Status LowerAttention(LoweringContext& context, const GraphNode& node) {
  const std::optional<Attention> attention = AttentionOf(context.graph(), node);
  if (!attention) return absl::InvalidArgumentError("kiln.attention of operands that no kernel of it takes");
  return CallLibrary(context, AttentionCallOf(*attention, node), kAttention, false);
}

}  // namespace

void RegisterExterns(LoweringTable& table) {
  for (const auto& [target, reason] : LibraryCalls()) table[target] = LowerLibrary;
  table[Op::kGemm] = LowerGemm;
  table[Op::kAttention] = table[Op::kAttentionBackward] = LowerAttention;
  table[Op::kConvolution] = LowerConvolution;
  table[Op::kConvolutionBackward] = LowerConvolutionBackward;
}

}  // namespace kiln
