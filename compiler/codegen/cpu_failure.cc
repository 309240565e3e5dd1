#include "compiler/codegen/cpu_failure.h"

#include <cstddef>

#include "compiler/support/kernel_abi.h"

namespace kiln {
namespace {

constexpr char kFailName[] = "kiln_fail";

}  // namespace

// i32 kiln_fail(args, code, op, value, bound)
llvm::Function* CpuFailure::FailFunction() {
  if (llvm::Function* existing = module_->getFunction(kFailName)) return existing;
  llvm::Type* ptr = b_.getPtrTy();
  llvm::Type* i32 = b_.getInt32Ty();
  llvm::Type* i64 = b_.getInt64Ty();
  auto* type = llvm::FunctionType::get(i32, {ptr, i32, i32, i64, i64}, false);
  auto* fail = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, kFailName, module_);
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

void CpuFailure::FailWhere(llvm::Value* bad, int32_t code, uint32_t op, llvm::Value* value,
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
  b_.CreateRet(b_.CreateCall(FailFunction(),
                             {b_.function()->getArg(0), b_.getInt32(code), b_.getInt32(op), value, bound}));
  b_.SetInsertPoint(fine);
}

}  // namespace kiln
