// Library calls: what a library does best, and everything without a lowering of our own.
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

absl::Status LowerLibrary(LoweringContext& context, const GraphNode& node) {
  const LibraryCall& row = LibraryCalls().at(node.target.op());
  return CallLibrary(context, node, row.reason, row.into_results);
}

}  // namespace

void RegisterExterns(LoweringTable& table) {
  for (const auto& [target, row] : LibraryCalls()) table[target] = LowerLibrary;
  table[Op::kConvolution] = LowerConvolution;
  table[Op::kConvolutionBackward] = LowerConvolutionBackward;
}

}  // namespace kiln
