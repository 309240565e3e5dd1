#include "compiler/codegen/convert_emitter.h"

#include "compiler/ir/dtype_groups.h"

namespace kiln {
namespace {

using ir::IsFloating;
using ir::IsHalf;
using ir::IsUnsigned;

}  // namespace

llvm::Value* ConvertEmitter::FloatFromHalf(v1::DType from, llvm::Value* v) {
  llvm::Type* f32 = v->getType()->getWithNewType(b_.getFloatTy());
  if (from == v1::F16) {
    return b_.CreateFPExt(b_.CreateBitCast(v, v->getType()->getWithNewType(b_.getHalfTy())), f32);
  }
  if (k_.operations.converts_bf16)
    return b_.CreateFPExt(b_.CreateBitCast(v, v->getType()->getWithNewType(b_.getBFloatTy())), f32);
  llvm::Type* i32 = v->getType()->getWithNewType(b_.getInt32Ty());
  return b_.CreateBitCast(b_.CreateShl(b_.CreateZExt(v, i32), 16), f32);
}

llvm::Value* ConvertEmitter::HalfFromFloat(v1::DType to, llvm::Value* v) {
  llvm::Type* i16 = v->getType()->getWithNewType(b_.getInt16Ty());
  if (to == v1::F16) {
    return b_.CreateBitCast(b_.CreateFPTrunc(v, v->getType()->getWithNewType(b_.getHalfTy())), i16);
  }
  if (k_.operations.converts_bf16)
    return b_.CreateBitCast(b_.CreateFPTrunc(v, v->getType()->getWithNewType(b_.getBFloatTy())), i16);
  // Round to nearest even on the bits; any NaN becomes the quiet one.
  llvm::Type* i32 = v->getType()->getWithNewType(b_.getInt32Ty());
  llvm::Value* bits = b_.CreateBitCast(v, i32);
  llvm::Value* odd = b_.CreateAnd(b_.CreateLShr(bits, 16), llvm::ConstantInt::get(i32, 1));
  llvm::Value* rounded = b_.CreateAdd(b_.CreateAdd(bits, odd), llvm::ConstantInt::get(i32, 0x7FFF));
  rounded = b_.CreateSelect(b_.CreateFCmpUNO(v, v), llvm::ConstantInt::get(i32, 0x7FC00000), rounded);
  return b_.CreateTrunc(b_.CreateLShr(rounded, 16), i16);
}

llvm::Value* ConvertEmitter::Cast(v1::DType from, v1::DType to, llvm::Value* v) {
  if (from == to) return v;
  if (IsHalf(from)) return Cast(v1::F32, to, FloatFromHalf(from, v));
  if (IsHalf(to)) return HalfFromFloat(to, Cast(from, v1::F32, v));
  llvm::Type* type = v->getType()->getWithNewType(k_.ScalarType(to));
  if (to == v1::BOOL) {
    if (IsFloating(from)) return b_.CreateFCmpUNE(v, llvm::ConstantFP::get(v->getType(), 0.0));
    return b_.CreateICmpNE(v, llvm::ConstantInt::get(v->getType(), 0));
  }
  if (IsFloating(from) && IsFloating(to)) return b_.CreateFPCast(v, type);
  if (IsFloating(to)) {
    // A boolean is a select of two numbers, without a conversion; also one that was an integer between.
    auto* extended = llvm::dyn_cast<llvm::ZExtInst>(v);
    llvm::Value* truth = extended != nullptr ? extended->getOperand(0) : v;
    if (truth->getType()->getScalarType()->isIntegerTy(1)) {
      return b_.CreateSelect(truth, llvm::ConstantFP::get(type, 1.0), llvm::ConstantFP::get(type, 0.0));
    }
  }
  if (IsFloating(to)) return IsUnsigned(from) ? b_.CreateUIToFP(v, type) : b_.CreateSIToFP(v, type);
  if (!IsFloating(from))
    return IsUnsigned(from) ? b_.CreateZExtOrTrunc(v, type) : b_.CreateSExtOrTrunc(v, type);
  // Through 64 bits; what does not fit there is INT64_MIN.
  llvm::Type* i64 = v->getType()->getWithNewType(b_.getInt64Ty());
  llvm::Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v);
  llvm::Value* fits = b_.CreateFCmpOLT(magnitude, llvm::ConstantFP::get(v->getType(), 9223372036854775808.0));
  llvm::Value* safe = b_.CreateSelect(fits, v, llvm::ConstantFP::get(v->getType(), 0.0));
  llvm::Value* wide =
      b_.CreateSelect(fits, b_.CreateFPToSI(safe, i64), llvm::ConstantInt::getSigned(i64, INT64_MIN));
  return b_.CreateTrunc(wide, type);
}

llvm::Value* ConvertEmitter::Bitcast(v1::DType from, v1::DType to, llvm::Value* v) {
  llvm::Value* bits = ToMemory(v, from);
  llvm::Value* cast = b_.CreateBitCast(bits, bits->getType()->getWithNewType(k_.MemoryType(to)));
  return FromMemory(cast, to);
}

llvm::Value* ConvertEmitter::FromMemory(llvm::Value* v, v1::DType dtype) {
  if (dtype != v1::BOOL) return v;
  return b_.CreateICmpNE(v, llvm::Constant::getNullValue(v->getType()));
}

llvm::Value* ConvertEmitter::ToMemory(llvm::Value* v, v1::DType dtype) {
  if (dtype != v1::BOOL) return v;
  return b_.CreateZExt(v, v->getType()->getWithNewType(b_.getInt8Ty()));
}

}  // namespace kiln
