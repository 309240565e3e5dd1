#include "compiler/codegen/thread_block.h"

#include "compiler/schedule/thread_walk.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/Module.h"

namespace kiln {
namespace {

constexpr unsigned kSharedAddressSpace = 3;
constexpr unsigned kWordBits = 32;  // that one shuffle moves

}  // namespace

void ThreadBlock::Enter(llvm::Function* function, bool by_parameters) {
  function_ = function;
  by_parameters_ = by_parameters;
}

llvm::Value* ThreadBlock::Special(llvm::Intrinsic::ID id) {
  return b_.CreateZExt(b_.CreateIntrinsic(b_.getInt32Ty(), id, llvm::ArrayRef<llvm::Value*>{}),
                       b_.getInt64Ty());
}

llvm::Value* ThreadBlock::Number() {
  if (by_parameters_) return function_->getArg(function_->arg_size() - 2);
  return Special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
}

llvm::Value* ThreadBlock::Count() {
  if (by_parameters_) return function_->getArg(function_->arg_size() - 1);
  return Special(llvm::Intrinsic::nvvm_read_ptx_sreg_nctaid_x);
}

llvm::Value* ThreadBlock::Thread() {
  llvm::Value* thread = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
  return points_ == 1 ? thread : b_.CreateURem(thread, b_.getInt64(threads_));
}

llvm::Value* ThreadBlock::Warp() {
  return b_.CreateUDiv(Special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x), b_.getInt64(kWarp), "warp");
}

void ThreadBlock::Barrier() {
  if (points_ == 1) {
    BlockBarrier();
    return;
  }
  b_.CreateIntrinsic(b_.getVoidTy(), llvm::Intrinsic::nvvm_bar_warp_sync,
                     llvm::ArrayRef<llvm::Value*>{b_.getInt32(~0u)});
}

void ThreadBlock::BlockBarrier() {
  b_.CreateIntrinsic(b_.getVoidTy(), llvm::Intrinsic::nvvm_barrier_cta_sync_aligned_all,
                     llvm::ArrayRef<llvm::Value*>{b_.getInt32(0)});
}

llvm::Value* ThreadBlock::Shuffle(llvm::Intrinsic::ID id, llvm::Value* value, unsigned lane) {
  llvm::Type* i32 = b_.getInt32Ty();
  llvm::Type* type = value->getType();
  const unsigned width = type->getScalarSizeInBits();
  llvm::Type* bits_type = b_.getIntNTy(width);
  llvm::Value* bits = b_.CreateBitCast(value, bits_type);
  llvm::Value* result = llvm::ConstantInt::get(bits_type, 0);
  for (unsigned low = 0; low < width; low += kWordBits) {
    llvm::Value* word = b_.CreateZExtOrTrunc(low == 0 ? bits : b_.CreateLShr(bits, low), i32);
    word = b_.CreateIntrinsic(i32, id, {b_.getInt32(~0u), word, b_.getInt32(lane), b_.getInt32(kWarp - 1)});
    word = b_.CreateZExtOrTrunc(word, bits_type);
    result = b_.CreateOr(result, low == 0 ? word : b_.CreateShl(word, low));
  }
  return b_.CreateBitCast(result, type);
}

llvm::Value* ThreadBlock::SharedSlots(llvm::Type* type, unsigned count, const char* name) {
  auto* array = llvm::ArrayType::get(type, count);
  auto* slots = new llvm::GlobalVariable(
      *function_->getParent(), array, false, llvm::GlobalValue::InternalLinkage, llvm::UndefValue::get(array),
      name, nullptr, llvm::GlobalValue::NotThreadLocal, kSharedAddressSpace);
  slots->setAlignment(llvm::Align(16));
  return slots;
}

}  // namespace kiln
