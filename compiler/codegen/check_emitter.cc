// What a kernel can fail by: an index out of range, an integer division by zero. A failure writes the
// status (the first writer wins) and returns its code.
#include <cstddef>

#include "compiler/codegen/kernel_emitter.h"
#include "compiler/support/kernel_abi.h"

namespace kiln {
namespace {

constexpr char kFailName[] = "kiln_fail";

}  // namespace

// i32 kiln_fail(args, code, op, value, bound)
llvm::Function* KernelEmitter::FailFunction() {
  if (llvm::Function* existing = k_.module->getFunction(kFailName)) return existing;
  llvm::Type* ptr = b_.getPtrTy();
  llvm::Type* i32 = b_.getInt32Ty();
  llvm::Type* i64 = b_.getInt64Ty();
  auto* type = llvm::FunctionType::get(i32, {ptr, i32, i32, i64, i64}, false);
  auto* fail = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, kFailName, k_.module);
  fail->addFnAttr(llvm::Attribute::NoInline);
  fail->addFnAttr(llvm::Attribute::Cold);
  llvm::IRBuilder<> b(llvm::BasicBlock::Create(b_.getContext(), "entry", fail));
  auto* write = llvm::BasicBlock::Create(b_.getContext(), "write", fail);
  auto* done = llvm::BasicBlock::Create(b_.getContext(), "done", fail);
  const auto field = [&](llvm::Value* base, size_t offset) {
    return b.CreateConstInBoundsGEP1_64(b.getInt8Ty(), base, offset);
  };
  llvm::Value* status = b.CreateLoad(ptr, field(fail->getArg(0), offsetof(KilnArgs, status)));
  llvm::Value* won = b.CreateExtractValue(
      b.CreateAtomicCmpXchg(field(status, offsetof(KilnStatus, code)), b.getInt32(KILN_OK), fail->getArg(1),
                            llvm::Align(4), llvm::AtomicOrdering::SequentiallyConsistent,
                            llvm::AtomicOrdering::SequentiallyConsistent),
      1);
  b.CreateCondBr(won, write, done);
  b.SetInsertPoint(write);
  b.CreateAlignedStore(fail->getArg(2), field(status, offsetof(KilnStatus, op)), llvm::Align(4));
  b.CreateAlignedStore(fail->getArg(3), field(status, offsetof(KilnStatus, value)), llvm::Align(8));
  b.CreateAlignedStore(fail->getArg(4), field(status, offsetof(KilnStatus, bound)), llvm::Align(8));
  b.CreateBr(done);
  b.SetInsertPoint(done);
  b.CreateRet(fail->getArg(1));
  return fail;
}

// `bad`: i1 or per lane; the first bad lane is reported.
void KernelEmitter::FailWhere(llvm::Value* bad, int32_t code, uint32_t op, llvm::Value* value,
                              llvm::Value* bound, bool is_unsigned) {
  llvm::Value* any = b_.Any(bad);
  auto* failing = llvm::BasicBlock::Create(b_.getContext(), "fail", b_.function());
  auto* fine = llvm::BasicBlock::Create(b_.getContext(), "fine", b_.function());
  llvm::MDNode* unlikely =
      llvm::MDNode::get(b_.getContext(), {llvm::MDString::get(b_.getContext(), "branch_weights"),
                                          llvm::ConstantAsMetadata::get(b_.getInt32(1)),
                                          llvm::ConstantAsMetadata::get(b_.getInt32(1 << 20))});
  b_.CreateCondBr(any, failing, fine, unlikely);
  b_.SetInsertPoint(failing);
  if (auto* type = llvm::dyn_cast<llvm::FixedVectorType>(bad->getType())) {
    llvm::Value* bits = b_.CreateBitCast(bad, b_.getIntNTy(type->getNumElements()));
    llvm::Value* lane = b_.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, bits, b_.getTrue());
    lane = b_.CreateZExtOrTrunc(lane, b_.getInt64Ty());
    if (value->getType()->isVectorTy()) value = b_.CreateExtractElement(value, lane);
    if (bound->getType()->isVectorTy()) bound = b_.CreateExtractElement(bound, lane);
  }
  value = is_unsigned ? b_.CreateZExt(value, b_.getInt64Ty()) : b_.CreateSExt(value, b_.getInt64Ty());
  b_.CreateRet(b_.CreateCall(FailFunction(), {args_, b_.getInt32(code), b_.getInt32(op), value, bound}));
  b_.SetInsertPoint(fine);
}

LaneValue KernelEmitter::EmitCheckIndex(uint32_t id, const v1::LoopOp& op) {
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
  FailWhere(bad, KILN_INDEX_OUT_OF_RANGE, id, i, n, false);
  return {wrapped, vector};
}

// Division never traps: a zero divisor is reported and replaced, and so is -1 (INT_MIN / -1 wraps).
llvm::Value* KernelEmitter::DivideIntegers(uint32_t id, LoopOpcode op, v1::DType dtype, llvm::Value* a,
                                           llvm::Value* b) {
  llvm::Type* type = a->getType();
  llvm::Value* zero = llvm::ConstantInt::get(type, 0);
  llvm::Value* one = llvm::ConstantInt::get(type, 1);
  llvm::Value* is_zero = b_.CreateICmpEQ(b, zero);
  llvm::Value* bad = is_zero;
  if (at_.mask != nullptr && type->isVectorTy()) bad = b_.CreateAnd(bad, at_.mask);
  auto* known = llvm::dyn_cast<llvm::Constant>(bad);
  if (known == nullptr || !known->isNullValue()) {
    FailWhere(bad, KILN_INTEGER_DIVISION_BY_ZERO, id, a, b_.I64(0), dtype == v1::U8);
  }
  const bool is_unsigned = dtype == v1::U8;
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
