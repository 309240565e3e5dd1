#include "compiler/codegen/combine_emitter.h"

#include "compiler/ir/dtype_groups.h"
#include "compiler/ir/reduce_kinds.h"
#include "llvm/Analysis/VectorUtils.h"

namespace kiln {
namespace {

using ir::IsFloating;
using ir::IsUnsigned;

bool IsMax(v1::ReduceKind kind) { return kind == v1::REDUCE_MAX || kind == v1::REDUCE_ARGMAX; }

}  // namespace

llvm::Constant* CombineEmitter::Identity(v1::ReduceKind kind, v1::DType dtype) {
  llvm::Type* type = k_.ScalarType(dtype);
  switch (kind) {
    case v1::REDUCE_SUM:
    case v1::REDUCE_ANY: return llvm::Constant::getNullValue(type);
    case v1::REDUCE_ALL: return b_.getTrue();
    case v1::REDUCE_PROD:
      if (IsFloating(dtype)) return llvm::ConstantFP::get(type, 1.0);
      return llvm::ConstantInt::get(type, 1);
    default: break;
  }
  const bool maximum = IsMax(kind);
  if (IsFloating(dtype)) return llvm::ConstantFP::getInfinity(type, maximum);
  const unsigned width = type->getIntegerBitWidth();
  if (IsUnsigned(dtype)) {
    return llvm::ConstantInt::get(
        b_.getContext(), maximum ? llvm::APInt::getMinValue(width) : llvm::APInt::getMaxValue(width));
  }
  return llvm::ConstantInt::get(b_.getContext(), maximum ? llvm::APInt::getSignedMinValue(width)
                                                         : llvm::APInt::getSignedMaxValue(width));
}

llvm::Value* CombineEmitter::Combine(v1::ReduceKind kind, v1::DType dtype, llvm::Value* a, llvm::Value* b) {
  switch (kind) {
    case v1::REDUCE_SUM:
      if (IsFloating(dtype)) return b_.CreateFAdd(a, b);
      return dtype == v1::BOOL ? b_.CreateOr(a, b) : b_.CreateAdd(a, b);
    case v1::REDUCE_PROD:
      if (IsFloating(dtype)) return b_.CreateFMul(a, b);
      return dtype == v1::BOOL ? b_.CreateAnd(a, b) : b_.CreateMul(a, b);
    case v1::REDUCE_ANY: return b_.CreateOr(a, b);
    case v1::REDUCE_ALL: return b_.CreateAnd(a, b);
    default: return Maximum(dtype, a, b, IsMax(kind));
  }
}

void CombineEmitter::CombineArg(v1::ReduceKind kind, v1::DType dtype, llvm::Value** value,
                                llvm::Value** position, llvm::Value* other, llvm::Value* other_position,
                                bool ordered, llvm::Value* active) {
  llvm::Value* better;
  llvm::Value* same;
  const bool maximum = IsMax(kind);
  if (IsFloating(dtype)) {
    llvm::Value* value_nan = b_.CreateFCmpUNO(*value, *value);
    llvm::Value* other_nan = b_.CreateFCmpUNO(other, other);
    llvm::Value* beyond = maximum ? b_.CreateFCmpOGT(other, *value) : b_.CreateFCmpOLT(other, *value);
    better = b_.CreateOr(beyond, b_.CreateAnd(other_nan, b_.CreateNot(value_nan)));
    same = b_.CreateOr(b_.CreateFCmpOEQ(other, *value), b_.CreateAnd(other_nan, value_nan));
  } else {
    const bool is_unsigned = IsUnsigned(dtype);
    better = maximum ? (is_unsigned ? b_.CreateICmpUGT(other, *value) : b_.CreateICmpSGT(other, *value))
                     : (is_unsigned ? b_.CreateICmpULT(other, *value) : b_.CreateICmpSLT(other, *value));
    same = b_.CreateICmpEQ(other, *value);
  }
  if (ordered) better = b_.CreateOr(better, b_.CreateAnd(same, b_.CreateICmpSLT(other_position, *position)));
  if (active != nullptr) better = b_.CreateAnd(better, active);
  *value = b_.CreateSelect(better, other, *value);
  *position = b_.CreateSelect(better, other_position, *position);
}

void CombineEmitter::Fold(v1::ReduceKind kind, v1::DType kept, llvm::Value** value, llvm::Value** position,
                          llvm::Value* other, llvm::Value* other_position) {
  if (IsArgReduce(kind)) {
    CombineArg(kind, kept, value, position, other, other_position, true, nullptr);
  } else {
    *value = Combine(kind, kept, *value, other);
  }
}

llvm::Value* CombineEmitter::Maximum(v1::DType dtype, llvm::Value* a, llvm::Value* b, bool maximum) {
  if (dtype == v1::BOOL) return maximum ? b_.CreateOr(a, b) : b_.CreateAnd(a, b);
  if (IsFloating(dtype) && a->getType()->getScalarSizeInBits() <= k_.operations.maximum_bits) {
    return b_.CreateBinaryIntrinsic(maximum ? llvm::Intrinsic::maximum : llvm::Intrinsic::minimum, a, b);
  }
  if (llvm::Value* chosen = VectorMaximum(a, b, maximum)) {
    return b_.CreateSelect(b_.CreateFCmpUNO(b, b), b, chosen);
  }
  if (IsFloating(dtype)) {
    llvm::Value* first = maximum ? b_.CreateFCmpOGT(a, b) : b_.CreateFCmpOLT(a, b);
    return b_.CreateSelect(b_.CreateFCmpUNO(a, a), a, b_.CreateSelect(first, a, b));
  }
  if (IsUnsigned(dtype)) {
    return b_.CreateSelect(maximum ? b_.CreateICmpUGT(a, b) : b_.CreateICmpULT(a, b), a, b);
  }
  return b_.CreateSelect(maximum ? b_.CreateICmpSGT(a, b) : b_.CreateICmpSLT(a, b), a, b);
}

llvm::Value* CombineEmitter::VectorMaximum(llvm::Value* a, llvm::Value* b, bool maximum) {
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(a->getType());
  if (k_.operations.maximum == nullptr || vector == nullptr || !vector->getElementType()->isFloatTy())
    return nullptr;
  const unsigned native = k_.target.register_lanes, lanes = vector->getNumElements();
  if (lanes % native != 0) return nullptr;
  if (lanes == native) return k_.operations.maximum(b_, a, b, maximum);
  llvm::SmallVector<llvm::Value*, 8> parts;
  for (unsigned first = 0; first < lanes; first += native) {
    const auto part = [&](llvm::Value* whole) {
      return b_.CreateExtractVector(llvm::FixedVectorType::get(b_.getFloatTy(), native), whole, first);
    };
    parts.push_back(k_.operations.maximum(b_, part(a), part(b), maximum));
  }
  return llvm::concatenateVectors(b_, parts);
}

}  // namespace kiln
