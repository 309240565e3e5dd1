#include "compiler/passes/core_set.h"

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

constexpr uint32_t kLoopOpNumbers = 256;

struct Group {
  CoreClass core_class;
  // Space-separated overloads without "aten.", and without ".default" where it is the overload.
  const char* operators;
};

constexpr Group kGroups[] = {
    // self; beside UnaryOperators
    {CoreClass::kPointwise, "relu isnan isinf signbit logical_not bitwise_not"},
    // _to_copy: dtype alone (and memory_format, which the result's strides already say)
    {CoreClass::kPointwise, "_to_copy"},
    // self, other; div.Tensor is true division on floats; div.Tensor_mode has rounding_mode floor | trunc
    {CoreClass::kPointwise,
     "add.Tensor sub.Tensor mul.Tensor div.Tensor div.Tensor_mode remainder.Tensor fmod.Tensor maximum "
     "minimum "
     "atan2 eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor logical_and logical_or logical_xor "
     "bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_left_shift.Tensor "
     "bitwise_right_shift.Tensor"},
    // self, exponent
    {CoreClass::kPointwise, "pow.Tensor_Tensor"},
    // condition, self, other
    {CoreClass::kPointwise, "where.self"},
    // self, dim, keepdim (prod: one dim)
    {CoreClass::kReduction, "sum.dim_IntList prod.dim_int amax amin any.dims all.dims"},
    // self, dim (absent: over the flattened tensor), keepdim
    {CoreClass::kReduction, "argmax argmin"},
    // self, dim
    {CoreClass::kScan, "cumsum cumprod"},
    // view size | view.dtype | expand size | permute dims | unsqueeze dim | squeeze.dims dim | slice dim
    // start end step (in range, explicit) | select dim index | as_strided | diagonal offset dim1 dim2 |
    // unfold
    // dimension size step
    {CoreClass::kView,
     "view view.dtype expand permute unsqueeze squeeze.dims slice.Tensor select.int as_strided diagonal "
     "unfold"},
    // _unsafe_ forms need no bounds check
    {CoreClass::kIndex,
     "embedding index.Tensor _unsafe_index.Tensor gather index_put _unsafe_index_put scatter.src "
     "scatter.value "
     "scatter_add scatter_reduce.two index_select index_add index_copy"},
    // full: size fill_value dtype | arange.start_step: start end step dtype
    {CoreClass::kCreation, "full arange.start_step"},
    // rand: size dtype | native_dropout | low, high | from, to
    {CoreClass::kRandom,
     "rand native_dropout randint randint.low randint_like randint_like.low_dtype random random.from "
     "random.to"},
    {CoreClass::kCopy, "clone cat constant_pad_nd flip slice_scatter select_scatter"},
    {CoreClass::kMutation, "copy_"},
};

const absl::flat_hash_map<OperatorName, CoreClass>& Table() {
  static const auto* table = [] {
    auto* map = new absl::flat_hash_map<OperatorName, CoreClass>;
    for (const auto& [target, op] : UnaryOperators()) (*map)[target] = CoreClass::kPointwise;
    for (const Group& group : kGroups) {
      std::string word;
      for (const char* c = group.operators;; ++c) {
        if (*c != ' ' && *c != '\0') {
          word += *c;
          continue;
        }
        if (!word.empty()) {
          const bool is_default = word.find('.') == std::string::npos;
          (*map)[absl::StrCat("aten.", word, is_default ? ".default" : "")] = group.core_class;
        }
        word.clear();
        if (*c == '\0') break;
      }
    }
    return map;
  }();
  return *table;
}

}  // namespace

const absl::flat_hash_map<OperatorName, LoopOpcode>& UnaryOperators() {
  static const auto* table = [] {
    auto* map = new absl::flat_hash_map<OperatorName, LoopOpcode>;
    for (uint32_t number = 0; number < kLoopOpNumbers; ++number) {
      const LoopOpInfo* row = FindLoopOp(number);
      if (row == nullptr || row->arity != 1) continue;
      if (row->op_class != LoopOpClass::kFloat && row->op_class != LoopOpClass::kArith) continue;
      const bool own = row->op == LoopOpcode::kOnePlusErf || row->op == LoopOpcode::kOnePlusTanh ||
                       row->op == LoopOpcode::kSoftmaxExp;
      (*map)[OperatorName(absl::StrCat(own ? "kiln." : "aten.", row->name, ".default"))] = row->op;
    }
    return map;
  }();
  return *table;
}

CoreClass CoreClassOf(const OperatorName& target) {
  auto found = Table().find(target);
  return found == Table().end() ? CoreClass::kNone : found->second;
}

}  // namespace kiln
