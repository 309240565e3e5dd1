// Result types of core operators: ATen's dtype promotion, broadcasting, layouts of elementwise results.
//
// Pure functions. Errors: what cannot be broadcast is INVALID_ARGUMENT.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compiler/graph/graph.h"

namespace kiln {

// One operand of a promotion: its dtype and how much it weighs (ATen: dimensioned tensors before 0-d
// tensors before Python scalars, within a category of bool < integer < float).
struct PromotionOperand {
  enum class Rank { kScalar, kZeroDim, kDimensioned };
  v1::DType dtype;
  Rank rank;
};
v1::DType PromoteDTypes(absl::Span<const PromotionOperand> operands);

// F32 for F16 and BF16, else the same: the type that ATen's CPU and CUDA kernels compute in.
v1::DType ComputeDType(v1::DType dtype);

// Sizes that two shapes broadcast to. Symbolic sizes that are not provably equal are taken as equal:
// the capture has guarded them.
absl::StatusOr<std::vector<ExprId>> BroadcastSizes(ExprPool& pool, absl::Span<const ExprId> a,
                                                   absl::Span<const ExprId> b);

// Whether eager has powers of 1/2 and -1/2 by roots, which give -0 where powers give 0, and NaN of -inf.
bool HasRootsForPowers(v1::DType dtype, v1::DeviceType device);

// `value` rounded to F16 or BF16; of another dtype as it is.
double RoundedNumber(double value, v1::DType dtype);

// Strides of an elementwise result: those of a dense operand with the same sizes, else row-major.
std::vector<ExprId> ElementwiseStrides(ExprPool& pool, const std::vector<ExprId>& sizes,
                                       absl::Span<const TensorType* const> operands);

// True when the strides are the same wherever they matter (dimensions that are not of size 1).
bool SameLayout(const ExprPool& pool, const TensorType& a, const TensorType& b);

// True when the strides are a permutation of row-major ones: no gaps, no overlap. Only what is provable.
bool IsDense(ExprPool& pool, const TensorType& type);

}  // namespace kiln
