#include "compiler/codegen/thread_memory.h"

#include <algorithm>

#include "compiler/ir/dtype_groups.h"
#include "compiler/schedule/thread_walk.h"

namespace kiln {

llvm::Align ThreadMemory::VectorAlign(const v1::LoopOp& op) const {
  if (!aligned_ || k_.facts.DependsOnOps(op.index())) return MemoryEmitter::VectorAlign(op);
  const int64_t bytes = ir::ByteWidth(k_.BufferDType(op));
  return llvm::Align(static_cast<uint64_t>(std::min(kAccessBytes, bytes * at_.vector_lanes)));
}

void ThreadMemory::EmitByAlignment(llvm::Value* aligned, CodeBody emit) {
  b_.Choose(
      aligned,
      [&] {
        aligned_ = true;
        emit();
        aligned_ = false;
      },
      emit);
}

llvm::Value* ThreadMemory::IsAligned(llvm::ArrayRef<const StageInfo*> stages) {
  llvm::Value* bits = b_.I64(0);
  aligned_ = true;
  for (const StageInfo* info : stages) {
    for (const v1::LoopOp& op : info->stage->ops()) {
      if (!IsAccess(op) || k_.facts.DependsOnOps(op.index()) || index_.Coefficient(op.index()) != 1) continue;
      llvm::Value* pointer = Address(op);
      llvm::Value* below = b_.I64(static_cast<int64_t>(VectorAlign(op).value()) - 1);
      bits = b_.CreateOr(bits, b_.CreateAnd(b_.CreatePtrToInt(pointer, b_.getInt64Ty()), below));
    }
  }
  aligned_ = false;
  return b_.CreateICmpEQ(bits, b_.I64(0), "aligned");
}

llvm::Value* ThreadMemory::IsRowAligned() {
  llvm::Value* all = b_.getTrue();
  for (const StageInfo& info : k_.stages) {
    if (info.stage->inner_size() == 0) continue;
    at_.variables.resize(k_.kernel.outer_size());
    at_.variables.resize(k_.kernel.outer_size() + info.stage->inner_size(), b_.I64(0));
    at_.vector_variable = VectorVariable(k_.facts, k_.kernel.schedule().threads(), k_.NumberOf(info));
    all = b_.CreateAnd(all, IsAligned({&info}));
  }
  at_.vector_variable = LoopState::kNoVariable;
  return all;
}

// An element that the kernel only reads may share its place with a result, but none that is read again after
// that was written: such a load gives the same value wherever it stands.
llvm::Instruction* ThreadMemory::Annotate(llvm::Instruction* access, uint32_t buffer) {
  if (llvm::isa<llvm::LoadInst>(access) && k_.kernel.buffers(buffer).access() == v1::READ) {
    access->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(b_.getContext(), {}));
  }
  return MemoryEmitter::Annotate(access, buffer);
}

// Points may meet in an element, and nothing in the kernel waits for the sum: one instruction that returns
// nothing, or where there is none for the type, a loop that compares and swaps.
void ThreadMemory::ScalarStore(const v1::LoopOp& op, llvm::Value* index, llvm::Value* value) {
  const v1::DType dtype = k_.BufferDType(op);
  if (op.mode() != v1::STORE_ACCUMULATE || IsRead(k_.facts, op.buffer())) {
    MemoryEmitter::ScalarStore(op, index, value);
    return;
  }
  llvm::Type* type = k_.MemoryType(dtype);
  llvm::Value* pointer = b_.CreateGEP(type, k_.buffers[op.buffer()], index);
  if (ir::IsHalf(dtype))
    value = b_.CreateBitCast(value, dtype == v1::F16 ? b_.getHalfTy() : b_.getBFloatTy());
  const bool is_float = value->getType()->isFloatingPointTy();
  Annotate(
      b_.CreateAtomicRMW(is_float ? llvm::AtomicRMWInst::FAdd : llvm::AtomicRMWInst::Add, pointer, value,
                         llvm::Align(static_cast<uint64_t>(ir::ByteWidth(dtype))),
                         llvm::AtomicOrdering::Monotonic, b_.getContext().getOrInsertSyncScopeID("device")),
      op.buffer());
}

}  // namespace kiln
