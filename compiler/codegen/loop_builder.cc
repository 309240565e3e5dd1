#include "compiler/codegen/loop_builder.h"

#include "absl/strings/str_cat.h"
#include "llvm/IR/MDBuilder.h"

namespace kiln {

llvm::Value* LoopBuilder::Any(llvm::Value* mask) {
  auto* type = llvm::dyn_cast<llvm::FixedVectorType>(mask->getType());
  if (type == nullptr) return mask;
  llvm::Value* bits = CreateBitCast(mask, getIntNTy(type->getNumElements()));
  return CreateICmpNE(bits, llvm::ConstantInt::get(bits->getType(), 0), "any");
}

llvm::AllocaInst* LoopBuilder::Slot(llvm::Type* type, const char* name) {
  llvm::BasicBlock& entry = function()->getEntryBlock();
  llvm::IRBuilder<> at_entry(&entry, entry.begin());
  return at_entry.CreateAlloca(type, nullptr, name);
}

// Rotated: what does not change inside is known to run and can be hoisted.
llvm::Instruction* LoopBuilder::ScalarLoop(llvm::Value* lo, llvm::Value* hi, llvm::Value* step,
                                           const char* name, LoopBody body) {
  llvm::Value* enters = CreateICmpSLT(lo, hi);
  if (auto* known = llvm::dyn_cast<llvm::ConstantInt>(enters); known && known->isZero()) return nullptr;
  llvm::BasicBlock* before = GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(getContext(), name, function());
  auto* exit = llvm::BasicBlock::Create(getContext(), absl::StrCat(name, ".end"), function());
  CreateCondBr(enters, loop, exit);
  SetInsertPoint(loop);
  llvm::PHINode* i = CreatePHI(getInt64Ty(), 2, absl::StrCat(name, ".i"));
  i->addIncoming(lo, before);
  body(i);
  llvm::Value* next = CreateNSWAdd(i, step);
  i->addIncoming(next, GetInsertBlock());
  llvm::Instruction* back = CreateCondBr(CreateICmpSLT(next, hi), loop, exit);
  SetInsertPoint(exit);
  return back;
}

void LoopBuilder::If(llvm::Value* condition, const char* name, CodeBody body, bool rarely) {
  if (auto* known = llvm::dyn_cast<llvm::ConstantInt>(condition)) {
    if (!known->isZero()) body();
    return;
  }
  auto* then = llvm::BasicBlock::Create(getContext(), name, function());
  auto* exit = llvm::BasicBlock::Create(getContext(), absl::StrCat(name, ".end"), function());
  CreateCondBr(condition, then, exit,
               rarely ? llvm::MDBuilder(getContext()).createUnlikelyBranchWeights() : nullptr);
  SetInsertPoint(then);
  body();
  CreateBr(exit);
  SetInsertPoint(exit);
}

void LoopBuilder::Choose(llvm::Value* condition, CodeBody then, CodeBody otherwise) {
  auto* yes = llvm::BasicBlock::Create(getContext(), "yes", function());
  auto* no = llvm::BasicBlock::Create(getContext(), "no", function());
  auto* exit = llvm::BasicBlock::Create(getContext(), "chosen", function());
  CreateCondBr(condition, yes, no);
  SetInsertPoint(yes);
  then();
  CreateBr(exit);
  SetInsertPoint(no);
  otherwise();
  CreateBr(exit);
  SetInsertPoint(exit);
}

}  // namespace kiln
