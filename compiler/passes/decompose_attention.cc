// Attention on a GPU that two gemms and a softmax do sooner than the library's one kernel.
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/library/choice.h"
#include "compiler/passes/decomposition.h"

namespace kiln {
namespace {

// softmax(query key^T scale + bias) value, where no gradient is wanted.
bool AttentionByGemms(DecomposeContext& m) {
  GraphBuilder& b = m.b();
  const std::optional<Attention> attention = AttentionOf(b.graph(), m.node());
  if (!attention) {
    b.Fail("attention that lacks an operand");
    return false;
  }
  const Value query = b.Use(attention->query), key = b.Use(attention->key), value = b.Use(attention->value);
  const Value bias = attention->bias == kNoValue ? Value() : b.Use(attention->bias);
  if (!query.ok() || !key.ok() || !value.ok() || m.result_count() != 4) return false;
  if (Choose(b.graph(), *attention, m.machine()) != Implementation::kGemm) return false;
  if (!attention->default_scale && !attention->scale) {
    b.Fail("argument 'scale' is not a number");
    return false;
  }

  const int64_t depth = *m.exprs().AsConst(query.size(3));
  const bool one_image = m.exprs().AsConst(query.size(0)) == 1;
  const std::vector<int64_t> one = {one_image ? 0 : 1};
  const int64_t many = 1 - one[0];
  const auto matrices = [&](const Value& x) { return Squeeze(x, one); };
  Value scores = BatchedMatmul(matrices(query), Transpose(matrices(key), 1, 2)) *
                 attention->scale.value_or(1 / std::sqrt(static_cast<double>(depth)));
  if (bias.ok()) scores = scores + matrices(ExpandAs(bias, Unsqueeze(scores, one[0])));
  if (!scores.ok()) return false;
  // Rows that a bias hides altogether give 0, as the library's do.
  GraphBuilder::Args over_keys = {{"self", TensorArg{scores.id()}}, {"dim", IntArg{b.Int(-1)}}};
  if (!bias.ok()) over_keys.emplace_back("half_to_float", BoolArg{false});
  Value shares = b.Node(bias.ok() ? Op::kSafeSoftmax : Op::kSoftmax, std::move(over_keys), scores.type());
  Value per_head = matrices(value);
  if (!shares.ok() || !per_head.ok()) return false;
  // Where the result is wanted, so that nothing is copied.
  const TensorType declared = m.Type(0);
  if (declared.rank() != 4 || declared.strides.size() != 4) return false;
  TensorType type = b.Dense(v1::F32, {shares.size(0), shares.size(1), per_head.size(2)});
  type.strides = {declared.strides[static_cast<size_t>(many)], declared.strides[2], declared.strides[3]};
  Value mixed = b.Node(Op::kGemm, GemmArguments({.a = shares.id(), .b = per_head.id()}), type);
  if (!mixed.ok()) return false;
  m.Set(0, Unsqueeze(mixed, one[0]));
  // What only a gradient would read.
  for (size_t i = 1; i < m.result_count(); ++i) {
    if (m.Wanted(i)) m.Set(i, b.Full(m.Type(i).sizes, 0, m.Type(i).dtype));
  }
  return true;
}

constexpr DecompositionRow kRows[] = {
    {"kiln.attention", AttentionByGemms},
};

}  // namespace

absl::Span<const DecompositionRow> AttentionRows() { return kRows; }

}  // namespace kiln
