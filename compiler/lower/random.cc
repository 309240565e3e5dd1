// Random numbers: Philox by position, the same in every back-end. The graph draws one seed; each
// random operator has a number of its own, so forward recomputation and other operators never share bits.
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/graph/dtype_range.h"
#include "compiler/lower/library_call.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/operands.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// Draws 32 random bits for the element at `index`.
LoopOpId Bits(LoweringContext& context, LoopRecorder& ops, Index index, const TensorType& type,
              uint32_t number) {
  std::vector<ExprId> terms = {context.Const(0)};
  const std::vector<ExprId> strides = ContiguousStrides(context.exprs(), type.sizes);
  for (size_t dim = 0; dim < index.size(); ++dim)
    terms.push_back(context.exprs().Mul(index[dim], strides[dim]));
  const LoopOpId seed = ops.Load(context.seed().Buffer(), v1::I64, context.Const(0));
  return ops.RandBits(seed, ops.IndexExpr(context.exprs().Sum(terms)), ops.ConstantInt(number));
}

// [0, 1) with the 24 bits that an F32 holds.
LoopOpId Uniform(LoopRecorder& ops, LoopOpId bits, v1::DType dtype) {
  const v1::DType compute = ComputeType(dtype);
  const LoopOpId high = ops.Binary(LoopOpcode::kShiftRight, bits, ops.ConstantInt(8));
  return ops.Mul(ops.Cast(high, compute), ops.Constant(1.0 / (1 << 24), compute));
}

bool UseLibrary(LoweringContext& context, const GraphNode& node) {
  return context.options().fallback_random || node.Find("generator") != nullptr;
}

absl::Status CallRandom(LoweringContext& context, const GraphNode& node) {
  return CallLibrary(context, node, "random", false);
}

absl::Status LowerRand(LoweringContext& context, const GraphNode& node) {
  if (UseLibrary(context, node)) return CallRandom(context, node);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  const uint32_t number = context.seed().NextOperator();
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    return Uniform(ops, Bits(context, ops, index, type, number), type.dtype);
  }));
  return context.status();
}

// Box-Muller on two draws.
absl::Status LowerRandn(LoweringContext& context, const GraphNode& node) {
  if (UseLibrary(context, node)) return CallRandom(context, node);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  const uint32_t first = context.seed().NextOperator(), second = context.seed().NextOperator();
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const v1::DType compute = ComputeType(type.dtype);
    const LoopOpId u = Uniform(ops, Bits(context, ops, index, type, first), compute);
    const LoopOpId v = Uniform(ops, Bits(context, ops, index, type, second), compute);
    const LoopOpId positive = ops.Sub(ops.Constant(1, compute), u);  // (0, 1]
    const LoopOpId radius = ops.Unary(
        LoopOpcode::kSqrt, ops.Mul(ops.Constant(-2, compute), ops.Unary(LoopOpcode::kLog, positive)));
    const LoopOpId angle = ops.Mul(ops.Constant(2 * M_PI, compute), v);
    return ops.Mul(radius, ops.Unary(LoopOpcode::kCos, angle));
  }));
  return context.status();
}

// ---- integers

// Integers from `low` on. A count of 0 that is fixed is 2^64.
struct IntegerSpan {
  ExprId low;
  std::optional<uint64_t> fixed_count;
  ExprId count;  // where it is not fixed; below 2^63
};

IntegerSpan FixedSpan(LoweringContext& context, int64_t low, uint64_t count) {
  return {context.Const(low), count, 0};
}

bool HoldsInteger(v1::DType dtype, int64_t number) {
  return Converts(number, dtype) && (!IsUnsignedInteger(dtype) || number >= 0);
}

// [low, high), which eager wants to hold something and the dtype to hold.
absl::StatusOr<IntegerSpan> SpanOf(LoweringContext& context, ExprId low, ExprId high, v1::DType dtype) {
  ExprPool& exprs = context.exprs();
  const auto first = exprs.AsConst(low), end = exprs.AsConst(high);
  if (!context.out().Require(exprs.Lt(low, high))) {
    return absl::InvalidArgumentError(
        absl::StrCat("no integers from ", exprs.ToString(low), " to below ", exprs.ToString(high)));
  }
  for (const auto& [known, past] : {std::pair(first, 0), std::pair(end, 1)}) {
    if (known.has_value() && !HoldsInteger(dtype, *known - past)) {
      return absl::InvalidArgumentError(
          absl::StrCat("random integers to ", *known - past, ", which ", DTypeName(dtype), " does not hold"));
    }
  }
  if (first.has_value() && end.has_value()) {
    return FixedSpan(context, *first, static_cast<uint64_t>(*end) - static_cast<uint64_t>(*first));
  }
  if (IsInteger(dtype) && ByteSize(dtype) < 8) {
    context.out().Require(exprs.Le(high, context.Const(static_cast<int64_t>(IntegersEnd(dtype)))));
  }
  return IntegerSpan{low, std::nullopt, exprs.Sub(high, low)};
}

constexpr int64_t kLowWord = 0xFFFFFFFF;

// The words of an I64 that is taken for an unsigned number.
LoopOpId LowWord(LoopRecorder& ops, LoopOpId x) {
  return ops.Binary(LoopOpcode::kBitAnd, x, ops.ConstantInt(kLowWord));
}
LoopOpId HighWord(LoopRecorder& ops, LoopOpId x) {
  return LowWord(ops, ops.Binary(LoopOpcode::kShiftRight, x, ops.ConstantInt(32)));
}

// floor(w * count / 2^(32 n)) of a number w of n random words, the last first, so that every result has its
// share of the 2^(32 n) to within one: a bias of at most count / 2^(32 n), 2^-32 of 2 words for counts of
// one word and of 3 for any. All sums and products are of unsigned numbers and fit.
LoopOpId ScaleDown(LoopRecorder& ops, absl::Span<const LoopOpId> words, LoopOpId count_low,
                   std::optional<LoopOpId> count_high) {
  LoopOpId scaled = ops.ConstantInt(0);  // of the words so far; below count
  for (LoopOpId word : words) {
    const LoopOpId low = ops.Add(ops.Mul(word, count_low), count_high ? LowWord(ops, scaled) : scaled);
    const LoopOpId carry = HighWord(ops, low);
    scaled = count_high ? ops.Add(ops.Mul(word, *count_high), ops.Add(HighWord(ops, scaled), carry)) : carry;
  }
  return scaled;
}

// One of the span's integers; `word` draws 32 bits more.
LoopOpId DrawInteger(LoweringContext& context, LoopRecorder& ops, const IntegerSpan& span,
                     absl::FunctionRef<LoopOpId(size_t)> word) {
  const LoopOpId low = ops.IndexExpr(span.low);
  if (span.fixed_count == 0) {
    const LoopOpId high = ops.Binary(LoopOpcode::kShiftLeft, word(1), ops.ConstantInt(32));
    return ops.Add(ops.Binary(LoopOpcode::kBitOr, high, word(0)), low);
  }
  LoopOpId count_low, count_high;
  bool one_word;
  if (span.fixed_count.has_value()) {
    const uint64_t count = *span.fixed_count;
    one_word = count <= kLowWord;
    count_low = ops.ConstantInt(static_cast<int64_t>(count & kLowWord));
    count_high = ops.ConstantInt(static_cast<int64_t>(count >> 32));
  } else {
    one_word = context.exprs().Range(span.count).max <= kLowWord;
    count_low = LowWord(ops, ops.IndexExpr(span.count));
    count_high = HighWord(ops, ops.IndexExpr(span.count));
  }
  if (one_word) return ops.Add(ScaleDown(ops, {word(0), word(1)}, count_low, std::nullopt), low);
  return ops.Add(ScaleDown(ops, {word(0), word(1), word(2)}, count_low, count_high), low);
}

absl::Status DrawIntegers(LoweringContext& context, const GraphNode& node,
                          const absl::StatusOr<IntegerSpan>& span) {
  KILN_RETURN_IF_ERROR(context.status());
  KILN_RETURN_IF_ERROR(span.status());
  const TensorType& type = context.ResultType(node);
  uint32_t numbers[3];
  for (uint32_t& number : numbers) number = context.seed().NextOperator();
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const auto word = [&](size_t i) { return Bits(context, ops, index, type, numbers[i]); };
    return ops.Cast(DrawInteger(context, ops, *span, word), ComputeType(type.dtype));
  }));
  return context.status();
}

absl::Status LowerRandint(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  if (UseLibrary(context, node)) return CallRandom(context, node);
  const ExprId low = args.Expr("low", context.Const(0));
  const ExprId high = args.Expr("high", context.Const(0));
  return DrawIntegers(context, node, SpanOf(context, low, high, context.ResultType(node).dtype));
}

// In place of what `self` holds: [from, to), without a `to` all that the dtype holds from `from` on, and
// without both from 0 on.
absl::Status LowerRandom(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  if (UseLibrary(context, node)) return CallRandom(context, node);
  const v1::DType dtype = context.ResultType(node).dtype;
  const ExprId from = args.Expr("from", context.Const(0));
  if (args.Has("to")) {
    return DrawIntegers(context, node, SpanOf(context, from, args.Expr("to", from), dtype));
  }
  const auto first = context.exprs().AsConst(from);
  if (!first.has_value() || !HoldsInteger(dtype, *first)) return CallRandom(context, node);
  return DrawIntegers(context, node,
                      FixedSpan(context, *first, IntegersEnd(dtype) - static_cast<uint64_t>(*first)));
}

// 1 with probability p: a number, or a tensor of the result's shape.
absl::Status LowerBernoulli(LoweringContext& context, const GraphNode& node) {
  if (UseLibrary(context, node)) return CallRandom(context, node);
  const TensorType& type = context.ResultType(node);
  const Argument* chance = node.Find(node.target == Op::kBernoulli ? "self" : "p");
  if (!context.status().ok()) return context.status();
  static const Argument* half = new Argument(FloatArg{0.5});
  if (chance == nullptr) chance = half;
  const uint32_t number = context.seed().NextOperator();
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const LoopOpId u = Uniform(ops, Bits(context, ops, index, type, number), v1::F32);
    const LoopOpId p = Operand(context, ops, *chance, index, type.sizes, v1::F32);
    return ops.Cast(ops.Compare(LoopOpcode::kLt, u, p), ComputeType(type.dtype));
  }));
  return context.status();
}

absl::Status LowerDropout(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  if (context.options().fallback_random) return CallRandom(context, node);
  const LoweredTensor input = args.Tensor("input");
  const double p = args.Float("p", 0.5);
  const bool train = args.Bool("train", true);
  const TensorType type = context.ResultType(node, 0), mask_type = context.ResultType(node, 1);
  if (!context.status().ok()) return context.status();
  const uint32_t number = context.seed().NextOperator();
  TensorType kept_type = mask_type;
  if (kept_type.dtype == v1::DTYPE_UNSPECIFIED) kept_type = type;
  kept_type.dtype = v1::BOOL;
  LoweredTensor mask = context.loops().Pointwise(kept_type, [&](LoopRecorder& ops, Index index) {
    if (!train || p == 0) return ops.True();
    const LoopOpId u = Uniform(ops, Bits(context, ops, index, kept_type, number), v1::F32);
    return ops.Not(ops.Compare(LoopOpcode::kLt, u, ops.Constant(p, v1::F32)));
  });
  // The mask is drawn once: what the backward pass reads is what the output was made with.
  if (mask_type.dtype != v1::DTYPE_UNSPECIFIED && context.facts().uses[node.results[1]] > 0)
    context.memory().Materialize(mask);
  context.SetResult(node,
                    context.loops().Pointwise(
                        type,
                        [&](LoopRecorder& ops, Index index) {
                          const v1::DType compute = ComputeType(type.dtype);
                          const LoopOpId x = context.loops().Load(ops, input, index);
                          if (!train) return x;
                          const LoopOpId kept = ops.Cast(context.loops().Load(ops, mask, index), compute);
                          return ops.Mul(ops.Mul(x, kept), ops.Constant(p == 1 ? 0 : 1 / (1 - p), compute));
                        }),
                    0);
  if (mask_type.dtype == v1::BOOL) context.SetResult(node, std::move(mask), 1);
  return context.status();
}

}  // namespace

void RegisterRandom(LoweringTable& table) {
  table[Op::kRand] = LowerRand;
  table[Op::kRandLike] = LowerRand;
  table[Op::kRandn] = LowerRandn;
  table[Op::kRandnLike] = LowerRandn;
  table[Op::kRandint] = LowerRandint;
  table[Op::kRandintLow] = LowerRandint;
  table[Op::kRandintLike] = LowerRandint;
  table[Op::kRandintLikeLowDtype] = LowerRandint;
  table[Op::kRandom] = LowerRandom;
  table[Op::kRandomFrom] = LowerRandom;
  table[Op::kRandomTo] = LowerRandom;
  table[Op::kBernoulli] = LowerBernoulli;
  table[Op::kBernoulliP] = LowerBernoulli;
  table[Op::kNativeDropout] = LowerDropout;
}

}  // namespace kiln
