#include "compiler/passes/types.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/ir/half.h"
#include "compiler/target/device.h"

namespace kiln {
namespace {

int Category(v1::DType dtype) {
  if (IsComplex(dtype)) return 3;
  if (IsFloat(dtype)) return 2;
  return dtype == v1::BOOL ? 0 : 1;
}

// torch.promote_types
v1::DType PromotePair(v1::DType a, v1::DType b) {
  if (a == b || b == v1::DTYPE_UNSPECIFIED) return a;
  if (a == v1::DTYPE_UNSPECIFIED) return b;
  if (Category(a) < Category(b)) std::swap(a, b);
  if (Category(a) > Category(b)) {
    if (IsComplex(a) && b == v1::F64) return v1::C128;
    return a;
  }
  if (IsComplex(a)) return v1::C128;
  if (IsFloat(a)) {
    if (a == v1::F64 || b == v1::F64) return v1::F64;
    return v1::F32;  // also F16 with BF16
  }
  if (a == v1::U8 || b == v1::U8) {
    v1::DType other = a == v1::U8 ? b : a;
    return other == v1::I8 ? v1::I16 : other;
  }
  return ByteSize(a) > ByteSize(b) ? a : b;
}

}  // namespace

v1::DType PromoteDTypes(absl::Span<const PromotionOperand> operands) {
  using Rank = PromotionOperand::Rank;
  v1::DType by_rank[3] = {v1::DTYPE_UNSPECIFIED, v1::DTYPE_UNSPECIFIED, v1::DTYPE_UNSPECIFIED};
  for (const PromotionOperand& operand : operands) {
    v1::DType dtype = operand.dtype;
    if (operand.rank == Rank::kScalar && IsFloat(dtype)) dtype = v1::F32;  // the default dtype
    v1::DType& slot = by_rank[static_cast<int>(operand.rank)];
    slot = PromotePair(slot, dtype);
  }
  v1::DType result = by_rank[2];
  for (int rank = 1; rank >= 0; --rank) {
    v1::DType next = by_rank[rank];
    if (next == v1::DTYPE_UNSPECIFIED) continue;
    if (result == v1::DTYPE_UNSPECIFIED || Category(next) > Category(result))
      result = PromotePair(result, next);
  }
  return result;
}

v1::DType ComputeDType(v1::DType dtype) { return IsHalf(dtype) ? v1::F32 : dtype; }

bool HasRootsForPowers(v1::DType dtype, v1::DeviceType device) { return dtype != v1::F16 || IsGpu(device); }

double RoundedNumber(double value, v1::DType dtype) {
  if (dtype == v1::F16) return FromF16(ToF16(static_cast<float>(value)));
  if (dtype == v1::BF16) return FromBF16(ToBF16(static_cast<float>(value)));
  return value;
}

absl::StatusOr<std::vector<ExprId>> BroadcastSizes(ExprPool& pool, absl::Span<const ExprId> a,
                                                   absl::Span<const ExprId> b) {
  const size_t rank = std::max(a.size(), b.size());
  std::vector<ExprId> sizes(rank);
  for (size_t i = 0; i < rank; ++i) {
    if (i >= a.size() || i >= b.size()) {
      sizes[rank - 1 - i] = i < a.size() ? a[a.size() - 1 - i] : b[b.size() - 1 - i];
      continue;
    }
    const ExprId x = a[a.size() - 1 - i], y = b[b.size() - 1 - i];
    const auto cx = pool.AsConst(x), cy = pool.AsConst(y);
    if (x != y && cx && cy && *cx != 1 && *cy != 1) {
      return absl::InvalidArgumentError(absl::StrCat("sizes ", *cx, " and ", *cy, " do not broadcast"));
    }
    const bool take_y = (cx && *cx == 1) || (!cx && cy && *cy != 1);
    sizes[rank - 1 - i] = take_y ? y : x;
  }
  return sizes;
}

bool SameLayout(const ExprPool& pool, const TensorType& a, const TensorType& b) {
  if (a.rank() != b.rank()) return false;
  for (size_t i = 0; i < a.rank(); ++i) {
    if (a.sizes[i] != b.sizes[i]) return false;
    if (a.strides[i] != b.strides[i] && pool.AsConst(a.sizes[i]) != 1) return false;
  }
  return true;
}

bool IsDense(ExprPool& pool, const TensorType& type) {
  // Walks the dimensions from the fastest: each must continue exactly where the previous ended.
  std::vector<size_t> left;
  for (size_t i = 0; i < type.rank(); ++i) {
    if (pool.AsConst(type.sizes[i]) != 1) left.push_back(i);
  }
  const ExprId one = pool.Const(1);
  ExprId expected = one;
  while (!left.empty()) {
    auto next = std::find_if(left.begin(), left.end(), [&](size_t i) { return type.strides[i] == expected; });
    if (next == left.end()) return false;
    expected = pool.Mul(expected, pool.Max(type.sizes[*next], one));  // as ContiguousStrides
    left.erase(next);
  }
  return true;
}

std::vector<ExprId> ElementwiseStrides(ExprPool& pool, const std::vector<ExprId>& sizes,
                                       absl::Span<const TensorType* const> operands) {
  for (const TensorType* operand : operands) {
    if (operand->sizes == sizes && IsDense(pool, *operand)) return operand->strides;
  }
  return ContiguousStrides(pool, sizes);
}

}  // namespace kiln
