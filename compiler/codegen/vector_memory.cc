#include "compiler/codegen/vector_memory.h"

#include <algorithm>

#include "compiler/ir/dtype_groups.h"

namespace kiln {
namespace {

// Of llvm.prefetch.
uint32_t Locality(v1::CacheLevel level) {
  switch (level) {
    case v1::CACHE_FIRST_LEVEL: return 3;
    case v1::CACHE_SECOND_LEVEL: return 2;
    default: return 0;
  }
}

}  // namespace

VectorMemory::VectorMemory(KernelContext* context, LoopState* state, IndexEmitter* index)
    : MemoryEmitter(context, state, index),
      schedule_(context->kernel.schedule().vectors()),
      is_nontemporal_(context->kernel.buffers_size()) {
  for (const uint32_t store : schedule_.nontemporal_stores())
    nontemporal_stores_.push_back(k_.facts.ops()[store]);
  for (const v1::Prefetch& prefetch : schedule_.prefetches())
    prefetches_[k_.facts.ops()[prefetch.load()]] = &prefetch;
}

void VectorMemory::EmitConditions() {
  for (const uint32_t k : schedule_.nontemporal()) {
    const v1::KernelBuffer& buffer = k_.kernel.buffers(static_cast<int>(k));
    const auto elements =
        static_cast<int64_t>(schedule_.nontemporal_bytes_min()) / int64_t{ir::ByteWidth(buffer.dtype())};
    is_nontemporal_[k] = b_.CreateICmpSGE(index_.Scalar(buffer.span()), b_.I64(elements), "is_nontemporal");
  }
}

// Where the vector loop's first vector is stored: its neighbours lie whole vectors behind it, and are aligned
// as it is, which one test outside of the loop tells.
llvm::Value* VectorMemory::StartOfVectors(const v1::LoopOp& op, llvm::Value* pointer) {
  if (at_.vector_begin == nullptr) return pointer;
  llvm::Value*& position = at_.variables[at_.vector_variable];
  llvm::Value* const present = position;
  position = at_.vector_begin;
  llvm::Value* start = Address(op);
  position = present;
  return start;
}

void VectorMemory::VectorStore(const v1::LoopOp& op, llvm::Value* value, llvm::Value* pointer) {
  if (std::find(nontemporal_stores_.begin(), nontemporal_stores_.end(), &op) == nontemporal_stores_.end()) {
    MemoryEmitter::VectorStore(op, value, pointer);
    return;
  }
  const llvm::DataLayout& layout = k_.module->getDataLayout();
  const uint64_t align =
      std::min<uint64_t>(layout.getTypeStoreSize(value->getType()), k_.target.machine.cpu.cache_line_bytes);
  llvm::Value* address = b_.CreatePtrToInt(StartOfVectors(op, pointer), b_.getInt64Ty());
  llvm::Value* aligned = b_.CreateICmpEQ(b_.CreateAnd(address, b_.I64(align - 1)), b_.I64(0));
  llvm::Value* condition = b_.CreateAnd(aligned, is_nontemporal_[op.buffer()]);
  auto* nontemporal = llvm::BasicBlock::Create(b_.getContext(), "nontemporal", b_.function());
  auto* plain = llvm::BasicBlock::Create(b_.getContext(), "plain", b_.function());
  auto* stored = llvm::BasicBlock::Create(b_.getContext(), "stored", b_.function());
  b_.CreateCondBr(condition, nontemporal, plain);
  b_.SetInsertPoint(nontemporal);
  llvm::StoreInst* store = b_.CreateAlignedStore(value, pointer, llvm::Align(align));
  store->setMetadata(llvm::LLVMContext::MD_nontemporal,
                     llvm::MDNode::get(b_.getContext(), {llvm::ConstantAsMetadata::get(b_.getInt32(1))}));
  Annotate(store, op.buffer());
  b_.CreateBr(stored);
  b_.SetInsertPoint(plain);
  MemoryEmitter::VectorStore(op, value, pointer);
  b_.CreateBr(stored);
  b_.SetInsertPoint(stored);
}

// Of a vector's line farther on in the walk, or of a later row's line that is the present vector's part of
// it.
llvm::Value* VectorMemory::AddressAhead(const v1::LoopOp& op, const v1::Prefetch& prefetch) {
  if (prefetch.bytes_ahead() > 0)
    return b_.CreateGEP(b_.getInt8Ty(), Address(op), b_.I64(prefetch.bytes_ahead()));
  llvm::Value*& row = at_.variables[k_.kernel.outer_size() - 1];
  llvm::Value*& column = at_.variables[at_.vector_variable];
  llvm::Value* const present[] = {row, column};
  llvm::Value* place = column;
  if (const int64_t shares = prefetch.shares(); shares > 0) {
    llvm::Value* begin =
        b_.CreateUDiv(b_.CreateMul(at_.stage->extents[0], b_.I64(prefetch.share())), b_.I64(shares));
    place = b_.CreateNSWAdd(begin, b_.CreateUDiv(column, b_.I64(shares)));
  }
  row = b_.CreateNSWAdd(row, b_.I64(prefetch.rows_ahead()));
  column = place;
  llvm::Value* ahead = Address(op);
  row = present[0];
  column = present[1];
  return ahead;
}

void VectorMemory::Prefetch(const v1::LoopOp& op) {
  const auto found = prefetches_.find(&op);
  if (found == prefetches_.end() || at_.vector_variable == LoopState::kNoVariable) return;
  const v1::Prefetch& prefetch = *found->second;
  llvm::Value* pointer = AddressAhead(op, prefetch);
  b_.CreateIntrinsic(llvm::Intrinsic::prefetch, llvm::ArrayRef<llvm::Type*>{pointer->getType()},
                     llvm::ArrayRef<llvm::Value*>{pointer, b_.getInt32(0),
                                                  b_.getInt32(Locality(prefetch.level())), b_.getInt32(1)});
}

void VectorMemory::FenceNontemporalStores() {
  if (k_.operations.nontemporal_fence == llvm::Intrinsic::not_intrinsic) return;
  if (schedule_.nontemporal_size() > 0) {
    b_.CreateIntrinsic(k_.operations.nontemporal_fence, llvm::ArrayRef<llvm::Type*>{},
                       llvm::ArrayRef<llvm::Value*>{});
  }
}

}  // namespace kiln
