#include "compiler/codegen/op_emitter.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"

namespace kiln {
namespace {

using ir::IsFloating;
using ir::IsUnsigned;

}  // namespace

LaneValue OpEmitter::Value(uint32_t id, const v1::LoopOp& op) {
  switch (static_cast<LoopOpcode>(op.op())) {
    case LoopOpcode::kConstant: return {Constant(op), false};
    case LoopOpcode::kIndexExpr: return index_.ValueOf(op.index());
    case LoopOpcode::kCheckIndex: return checks_.CheckIndex(id, op);
    default: break;
  }
  if (llvm::Value* mask = ComparePosition(op)) return {mask, true};
  bool vector = false;
  for (uint32_t arg : op.args()) vector |= at_.values[arg].vector;
  llvm::SmallVector<llvm::Value*, 3> args;
  for (uint32_t arg : op.args()) args.push_back(vector ? at_.Broadcast(at_.values[arg]) : at_.values[arg].v);
  // A value that is the same in all lanes is computed once.
  const unsigned lanes = at_.lanes;
  llvm::Value* mask = at_.mask;
  if (!vector) {
    at_.lanes = 1;
    at_.mask = nullptr;
  }
  const LaneValue value = {Pointwise(id, op, args), vector};
  at_.lanes = lanes;
  at_.mask = mask;
  return value;
}

llvm::Constant* OpEmitter::Constant(const v1::LoopOp& op) {
  double number;
  const uint64_t bits = op.bits();
  std::memcpy(&number, &bits, sizeof(number));
  llvm::Type* type = k_.ScalarType(op.dtype());
  switch (op.dtype()) {
    case v1::F32: {
      const float rounded = static_cast<float>(number);
      return llvm::ConstantFP::get(b_.getContext(), llvm::APFloat(rounded));
    }
    case v1::F64: return llvm::ConstantFP::get(b_.getContext(), llvm::APFloat(number));
    case v1::F16:
    case v1::BF16: {
      llvm::APFloat value(static_cast<float>(number));
      bool inexact = false;
      value.convert(op.dtype() == v1::F16 ? llvm::APFloat::IEEEhalf() : llvm::APFloat::BFloat(),
                    llvm::APFloat::rmNearestTiesToEven, &inexact);
      return llvm::ConstantInt::get(b_.getContext(), value.bitcastToAPInt());
    }
    case v1::BOOL: return b_.getInt1(bits != 0);
    default: return llvm::ConstantInt::get(type, llvm::APInt(64, bits).trunc(type->getIntegerBitWidth()));
  }
}

llvm::Value* OpEmitter::Pointwise(uint32_t id, const v1::LoopOp& op, llvm::ArrayRef<llvm::Value*> args) {
  const auto opcode = static_cast<LoopOpcode>(op.op());
  const v1::DType from = op.args_size() > 0 ? k_.DTypeOf(op.args(0)) : op.dtype();
  switch (opcode) {
    case LoopOpcode::kCast: return convert_.Cast(from, op.dtype(), args[0]);
    case LoopOpcode::kBitcast: return convert_.Bitcast(from, op.dtype(), args[0]);
    case LoopOpcode::kWhere: return b_.CreateSelect(args[0], args[1], args[2]);
    case LoopOpcode::kRandBits: return random_.RandBits(op, args);
    default: break;
  }
  switch (InfoOf(opcode).op_class) {
    case LoopOpClass::kCompare: return Compare(opcode, from, args);
    case LoopOpClass::kLogical: return Bool(opcode, args);
    case LoopOpClass::kInteger:
      if (op.dtype() == v1::BOOL) return Bool(opcode, args);
      return Integer(id, opcode, op.dtype(), args);
    default: return Arithmetic(id, opcode, op.dtype(), args);
  }
}

llvm::Value* OpEmitter::Arithmetic(uint32_t id, LoopOpcode op, v1::DType dtype,
                                   llvm::ArrayRef<llvm::Value*> args) {
  if (op == LoopOpcode::kMaximum || op == LoopOpcode::kMinimum) {
    return combine_.Maximum(dtype, args[0], args[1], op == LoopOpcode::kMaximum);
  }
  if (IsFloating(dtype)) return Float(op, args);
  if (dtype == v1::BOOL) return Bool(op, args);
  return Integer(id, op, dtype, args);
}

llvm::Value* OpEmitter::Float(LoopOpcode op, llvm::ArrayRef<llvm::Value*> args) {
  llvm::Value* a = args[0];
  llvm::Type* type = a->getType();
  llvm::Value* zero = llvm::ConstantFP::get(type, 0.0);
  llvm::Value* one = llvm::ConstantFP::get(type, 1.0);
  const auto unary = [&](llvm::Intrinsic::ID id) -> llvm::Value* { return b_.CreateUnaryIntrinsic(id, a); };
  switch (op) {
    case LoopOpcode::kAdd: return b_.CreateFAdd(a, args[1]);
    case LoopOpcode::kSub: return b_.CreateFSub(a, args[1]);
    case LoopOpcode::kMul: return b_.CreateFMul(a, args[1]);
    case LoopOpcode::kDiv: return b_.CreateFDiv(a, args[1]);
    case LoopOpcode::kTruncDiv:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, b_.CreateFDiv(a, args[1]));
    case LoopOpcode::kNeg: return b_.CreateFNeg(a);
    case LoopOpcode::kAbs: return unary(llvm::Intrinsic::fabs);
    case LoopOpcode::kSign: {
      llvm::Value* sign = b_.CreateSelect(b_.CreateFCmpOLT(a, zero), llvm::ConstantFP::get(type, -1.0), zero);
      return b_.CreateSelect(b_.CreateFCmpOGT(a, zero), one, sign);
    }
    case LoopOpcode::kFma:
      return b_.CreateIntrinsic(llvm::Intrinsic::fma, llvm::ArrayRef<llvm::Type*>{type}, args);
    case LoopOpcode::kSqrt: return unary(llvm::Intrinsic::sqrt);
    case LoopOpcode::kRsqrt: return b_.CreateFDiv(one, unary(llvm::Intrinsic::sqrt));
    case LoopOpcode::kReciprocal: return b_.CreateFDiv(one, a);
    case LoopOpcode::kFloor: return unary(llvm::Intrinsic::floor);
    case LoopOpcode::kCeil: return unary(llvm::Intrinsic::ceil);
    case LoopOpcode::kTrunc: return unary(llvm::Intrinsic::trunc);
    case LoopOpcode::kRound: return unary(llvm::Intrinsic::roundeven);
    default: break;
  }
  llvm::Value* result = k_.math.Emit(b_, op, args);
  if (result != nullptr) return result;
  k_.Fail(
      absl::UnimplementedError(absl::StrCat("unsupported: ", InfoOf(op).name, " on floating point values")));
  return a;
}

llvm::Value* OpEmitter::Integer(uint32_t id, LoopOpcode op, v1::DType dtype,
                                llvm::ArrayRef<llvm::Value*> args) {
  llvm::Value* a = args[0];
  llvm::Type* type = a->getType();
  llvm::Value* zero = llvm::ConstantInt::get(type, 0);
  switch (op) {
    case LoopOpcode::kAdd: return b_.CreateAdd(a, args[1]);
    case LoopOpcode::kSub: return b_.CreateSub(a, args[1]);
    case LoopOpcode::kMul: return b_.CreateMul(a, args[1]);
    case LoopOpcode::kFloorDiv:
    case LoopOpcode::kTruncDiv:
    case LoopOpcode::kRemainder:
    case LoopOpcode::kFmod: return checks_.Divide(id, op, dtype, a, args[1]);
    case LoopOpcode::kNeg: return b_.CreateNeg(a);
    case LoopOpcode::kAbs:
      if (IsUnsigned(dtype)) return a;
      return b_.CreateSelect(b_.CreateICmpSLT(a, zero), b_.CreateNeg(a), a);
    case LoopOpcode::kSign: {
      llvm::Value* positive = IsUnsigned(dtype) ? b_.CreateICmpNE(a, zero) : b_.CreateICmpSGT(a, zero);
      llvm::Value* sign = b_.CreateZExt(positive, type);
      return IsUnsigned(dtype) ? sign : b_.CreateAdd(sign, b_.CreateSExt(b_.CreateICmpSLT(a, zero), type));
    }
    case LoopOpcode::kPow: return IntegerPower(dtype, a, args[1]);
    case LoopOpcode::kBitAnd: return b_.CreateAnd(a, args[1]);
    case LoopOpcode::kBitOr: return b_.CreateOr(a, args[1]);
    case LoopOpcode::kBitXor: return b_.CreateXor(a, args[1]);
    case LoopOpcode::kBitNot: return b_.CreateNot(a);
    case LoopOpcode::kShiftLeft:
    case LoopOpcode::kShiftRight: return Shift(op, dtype, a, args[1]);
    default:
      k_.Fail(absl::UnimplementedError(absl::StrCat("unsupported: ", InfoOf(op).name, " on integers")));
      return a;
  }
}

llvm::Value* OpEmitter::Shift(LoopOpcode op, v1::DType dtype, llvm::Value* a, llvm::Value* b) {
  llvm::Type* type = a->getType();
  const unsigned width = type->getScalarSizeInBits();
  llvm::Value* in_range = b_.CreateICmpULT(b, llvm::ConstantInt::get(type, width));
  llvm::Value* zero = llvm::ConstantInt::get(type, 0);
  if (op == LoopOpcode::kShiftLeft) {
    // Not `in_range ? b : 0`: LLVM makes one PTX instruction of that, which sees the low 32 bits of the
    // amount.
    llvm::Value* amount =
        b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, b, llvm::ConstantInt::get(type, width - 1));
    return b_.CreateSelect(in_range, b_.CreateShl(a, amount), zero);
  }
  if (IsUnsigned(dtype)) {
    llvm::Value* amount = b_.CreateSelect(in_range, b, zero);
    return b_.CreateSelect(in_range, b_.CreateLShr(a, amount), zero);
  }
  return b_.CreateAShr(a, b_.CreateSelect(in_range, b, llvm::ConstantInt::get(type, width - 1)));
}

// By squaring; every lane runs as long as the largest exponent. Of negative exponents only 1 and -1
// have a power other than 0.
llvm::Value* OpEmitter::IntegerPower(v1::DType dtype, llvm::Value* a, llvm::Value* b) {
  llvm::Type* type = a->getType();
  llvm::Value* zero = llvm::ConstantInt::get(type, 0);
  llvm::Value* one = llvm::ConstantInt::get(type, 1);
  llvm::Value* odd = b_.CreateICmpNE(b_.CreateAnd(b, one), zero);
  llvm::Value* negative =
      IsUnsigned(dtype) ? llvm::ConstantInt::getFalse(odd->getType()) : b_.CreateICmpSLT(b, zero);
  llvm::Value* count = b_.CreateSelect(negative, zero, b);

  llvm::BasicBlock* before = b_.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(b_.getContext(), "power", b_.function());
  auto* exit = llvm::BasicBlock::Create(b_.getContext(), "power.end", b_.function());
  b_.CreateBr(loop);
  b_.SetInsertPoint(loop);
  llvm::PHINode* result = b_.CreatePHI(type, 2);
  llvm::PHINode* square = b_.CreatePHI(type, 2);
  llvm::PHINode* left = b_.CreatePHI(type, 2);
  llvm::Value* takes = b_.CreateICmpNE(b_.CreateAnd(left, one), zero);
  llvm::Value* next_result = b_.CreateSelect(takes, b_.CreateMul(result, square), result);
  llvm::Value* next_square = b_.CreateMul(square, square);
  llvm::Value* next_left = b_.CreateLShr(left, one);
  result->addIncoming(one, before);
  result->addIncoming(next_result, loop);
  square->addIncoming(a, before);
  square->addIncoming(next_square, loop);
  left->addIncoming(count, before);
  left->addIncoming(next_left, loop);
  b_.CreateCondBr(b_.Any(b_.CreateICmpNE(next_left, zero)), loop, exit);
  b_.SetInsertPoint(exit);

  llvm::Value* minus_one = llvm::ConstantInt::getSigned(type, -1);
  llvm::Value* reciprocal = b_.CreateSelect(b_.CreateICmpEQ(a, one), one, zero);
  reciprocal =
      b_.CreateSelect(b_.CreateICmpEQ(a, minus_one), b_.CreateSelect(odd, minus_one, one), reciprocal);
  return b_.CreateSelect(negative, reciprocal, next_result);
}

llvm::Value* OpEmitter::Bool(LoopOpcode op, llvm::ArrayRef<llvm::Value*> args) {
  switch (op) {
    case LoopOpcode::kAdd:
    case LoopOpcode::kBitOr:
    case LoopOpcode::kLogicalOr: return b_.CreateOr(args[0], args[1]);
    case LoopOpcode::kMul:
    case LoopOpcode::kBitAnd:
    case LoopOpcode::kLogicalAnd: return b_.CreateAnd(args[0], args[1]);
    case LoopOpcode::kSub:
    case LoopOpcode::kBitXor:
    case LoopOpcode::kLogicalXor: return b_.CreateXor(args[0], args[1]);
    case LoopOpcode::kBitNot:
    case LoopOpcode::kLogicalNot: return b_.CreateNot(args[0]);
    case LoopOpcode::kAbs:
    case LoopOpcode::kSign:
    case LoopOpcode::kNeg: return args[0];
    default:
      k_.Fail(absl::UnimplementedError(absl::StrCat("unsupported: ", InfoOf(op).name, " on booleans")));
      return args[0];
  }
}

// Compares a lane's loop index with a uniform value, for equality, in 32-bit arithmetic. In a short loop the
// value's distance from the loop's begin less the lane's number is loop-invariant, and is compared with the
// loop's progress; in a long one each iteration compares the distance from its own begin with the lane's
// number. nullptr: not such a comparison, or no vector.
llvm::Value* OpEmitter::ComparePosition(const v1::LoopOp& op) {
  const auto opcode = static_cast<LoopOpcode>(op.op());
  if (!k_.operations.vectors || at_.lanes == 1) return nullptr;
  if (opcode != LoopOpcode::kEq && opcode != LoopOpcode::kNe) return nullptr;
  for (int k = 0; k < 2; ++k) {
    const v1::LoopOp& position = k_.facts.op(op.args(k));
    const LaneValue other = at_.values[op.args(1 - k)];
    if (static_cast<LoopOpcode>(position.op()) != LoopOpcode::kIndexExpr || position.dtype() != v1::I64 ||
        other.vector || index_.Coefficient(position.index()) != 1) {
      continue;
    }
    const bool is_short = at_.vector_begin != nullptr && IsShortVectorLoop();
    llvm::Value*& variable = at_.variables[at_.vector_variable];
    llvm::Value* const present = variable;
    if (is_short) variable = at_.vector_begin;
    llvm::Value* distance = b_.CreateSub(other.v, index_.Scalar(position.index()));
    variable = present;
    llvm::Type* i32 = b_.getInt32Ty();
    llvm::Value* inside = b_.CreateICmpULT(distance, b_.I64(is_short ? INT32_MAX : at_.lanes));
    distance =
        b_.CreateSelect(inside, b_.CreateTrunc(distance, i32), llvm::ConstantInt::getAllOnesValue(i32));
    llvm::Value* wanted = at_.Splat(distance);
    llvm::Value* lanes = at_.LaneNumbers(i32);
    if (is_short) {
      const int64_t of_copy =
          int64_t{at_.copy} * at_.lanes;  // all copies of an unrolled body have come as far
      wanted = b_.CreateSub(b_.CreateSub(wanted, lanes), at_.Splat(llvm::ConstantInt::get(i32, of_copy)));
      llvm::Value* come = b_.CreateSub(b_.CreateSub(present, b_.I64(of_copy)), at_.vector_begin);
      lanes = at_.Splat(b_.CreateTrunc(come, i32));
    }
    return b_.CreateICmp(opcode == LoopOpcode::kEq ? llvm::CmpInst::ICMP_EQ : llvm::CmpInst::ICMP_NE, lanes,
                         wanted);
  }
  return nullptr;
}

// Is its extent known to fit in 32 bits?
bool OpEmitter::IsShortVectorLoop() const {
  const auto outer = static_cast<uint32_t>(k_.kernel.outer_size());
  const uint32_t extent = at_.vector_variable < outer
                              ? k_.kernel.outer(static_cast<int>(at_.vector_variable))
                              : at_.stage->stage->inner(static_cast<int>(at_.vector_variable - outer));
  return k_.facts.ConstantExpr(extent).value_or(INT32_MAX) < INT32_MAX;
}

llvm::Value* OpEmitter::Compare(LoopOpcode op, v1::DType dtype, llvm::ArrayRef<llvm::Value*> args) {
  llvm::Value* a = args[0];
  if (op == LoopOpcode::kIsNan || op == LoopOpcode::kIsInf) {
    if (!IsFloating(dtype)) return llvm::ConstantInt::getFalse(a->getType()->getWithNewType(b_.getInt1Ty()));
    if (op == LoopOpcode::kIsNan) return b_.CreateFCmpUNO(a, a);
    return b_.CreateFCmpOEQ(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a),
                            llvm::ConstantFP::getInfinity(a->getType()));
  }
  llvm::Value* b = args[1];
  const bool is_unsigned = IsUnsigned(dtype);
  using P = llvm::CmpInst::Predicate;
  P predicate;
  switch (op) {
    case LoopOpcode::kEq: predicate = IsFloating(dtype) ? P::FCMP_OEQ : P::ICMP_EQ; break;
    case LoopOpcode::kNe: predicate = IsFloating(dtype) ? P::FCMP_UNE : P::ICMP_NE; break;
    case LoopOpcode::kLt:
      predicate = IsFloating(dtype) ? P::FCMP_OLT : is_unsigned ? P::ICMP_ULT : P::ICMP_SLT;
      break;
    case LoopOpcode::kLe:
      predicate = IsFloating(dtype) ? P::FCMP_OLE : is_unsigned ? P::ICMP_ULE : P::ICMP_SLE;
      break;
    case LoopOpcode::kGt:
      predicate = IsFloating(dtype) ? P::FCMP_OGT : is_unsigned ? P::ICMP_UGT : P::ICMP_SGT;
      break;
    default: predicate = IsFloating(dtype) ? P::FCMP_OGE : is_unsigned ? P::ICMP_UGE : P::ICMP_SGE; break;
  }
  return b_.CreateCmp(predicate, a, b);
}

}  // namespace kiln
