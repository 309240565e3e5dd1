#include "compiler/codegen/check_emitter.h"

#include "compiler/ir/dtype_groups.h"
#include "compiler/support/kernel_abi.h"

namespace kiln {

LaneValue CheckEmitter::CheckIndex(uint32_t id, const v1::LoopOp& op) {
  const LaneValue index = at_.values[op.args(0)];
  const LaneValue mask = op.args_size() > 1 ? at_.values[op.args(1)] : LaneValue{};
  const LaneValue size = index_.ValueOf(op.index());
  const bool vector = index.vector || mask.vector || size.vector;
  const auto shaped = [&](LaneValue v) { return vector ? at_.Broadcast(v) : v.v; };
  llvm::Value* i = shaped(index);
  llvm::Value* n = shaped(size);
  llvm::Value* zero = llvm::ConstantInt::get(i->getType(), 0);
  llvm::Value* wrapped = op.mode() == v1::INDEX_FROM_START
                             ? i
                             : b_.CreateSelect(b_.CreateICmpSLT(i, zero), b_.CreateAdd(i, n), i);
  llvm::Value* bad = b_.CreateICmpUGE(wrapped, n);
  // Off lanes of a tail carry zeros or leftovers: neither checked nor used as an address.
  llvm::Value* active = vector ? at_.ActiveMask(mask) : mask.v;
  if (active != nullptr) {
    bad = b_.CreateAnd(bad, active);
    wrapped = b_.CreateSelect(active, wrapped, zero);
  }
  failure_.FailWhere(bad, KILN_INDEX_OUT_OF_RANGE, id, i, n, false);
  return {wrapped, vector};
}

llvm::Value* CheckEmitter::Divide(uint32_t id, LoopOpcode op, v1::DType dtype, llvm::Value* a,
                                  llvm::Value* b) {
  llvm::Type* type = a->getType();
  llvm::Value* zero = llvm::ConstantInt::get(type, 0);
  llvm::Value* one = llvm::ConstantInt::get(type, 1);
  llvm::Value* is_zero = b_.CreateICmpEQ(b, zero);
  llvm::Value* bad = is_zero;
  if (at_.mask != nullptr && type->isVectorTy()) bad = b_.CreateAnd(bad, at_.mask);
  auto* known = llvm::dyn_cast<llvm::Constant>(bad);
  if (known == nullptr || !known->isNullValue()) {
    failure_.FailWhere(bad, KILN_INTEGER_DIVISION_BY_ZERO, id, a, b_.I64(0), ir::IsUnsigned(dtype));
  }
  const bool is_unsigned = ir::IsUnsigned(dtype);
  const bool constant = llvm::isa<llvm::Constant>(b);
  llvm::Value* quotient;
  llvm::Value* minus_one = is_unsigned ? nullptr : b_.CreateICmpEQ(b, llvm::ConstantInt::getSigned(type, -1));
  if (type->isVectorTy() && type->getScalarSizeInBits() <= 32 && !constant) {
    // Exact: 53 bits hold every quotient of 32-bit integers to within less than 1 / divisor.
    llvm::Type* f64 = type->getWithNewType(b_.getDoubleTy());
    llvm::Value* divisor = b_.CreateSelect(is_zero, one, b);
    llvm::Value* exact = is_unsigned ? b_.CreateFDiv(b_.CreateUIToFP(a, f64), b_.CreateUIToFP(divisor, f64))
                                     : b_.CreateFDiv(b_.CreateSIToFP(a, f64), b_.CreateSIToFP(divisor, f64));
    llvm::Type* i64 = type->getWithNewType(b_.getInt64Ty());
    quotient = b_.CreateTrunc(b_.CreateFPToSI(exact, i64), type);
  } else if (is_unsigned) {
    quotient = b_.CreateUDiv(a, b_.CreateSelect(is_zero, one, b));
  } else {
    llvm::Value* divisor = b_.CreateSelect(b_.CreateOr(is_zero, minus_one), one, b);
    quotient = b_.CreateSelect(minus_one, b_.CreateNeg(a), b_.CreateSDiv(a, divisor));
  }
  if (op == LoopOpcode::kTruncDiv) return quotient;
  llvm::Value* rest = b_.CreateSub(a, b_.CreateMul(quotient, b));
  if (is_unsigned) return op == LoopOpcode::kFloorDiv ? quotient : rest;
  if (op == LoopOpcode::kFmod) return rest;
  llvm::Value* differs = b_.CreateICmpSLT(b_.CreateXor(rest, b), zero);
  llvm::Value* adjusts = b_.CreateAnd(differs, b_.CreateICmpNE(rest, zero));
  if (op == LoopOpcode::kFloorDiv) return b_.CreateAdd(quotient, b_.CreateSExt(adjusts, type));
  return b_.CreateAdd(rest, b_.CreateSelect(adjusts, b, zero));
}

}  // namespace kiln
