// Memory beyond the cache.
//
// Stores past it: a result larger than the cache is gone from it before anybody reads it; stored as usual,
// each of its lines would also be read first. What is written once, whole vectors side by side, goes to
// memory directly.
//
// Reads ahead: where several stages read one row, the first waits for memory, and while the others compute,
// memory would wait for them. So they ask for the next row's lines. What is walked once, front to back, is
// asked for a page and a half before its turn: the processor's own prefetching ends with a page, and finding
// the next one takes as long as a read or longer where pages of 4 KiB lie anywhere in a virtual machine's
// memory. A loop that computes has too few lines in flight to bridge that. Where the processor goes on to the
// next page by itself, only what waits beside other walks of the same loop is asked for.
#include <algorithm>

#include "compiler/codegen/kernel_emitter.h"
#include "compiler/codegen/target_operations.h"
#include "compiler/ir/dtypes.h"

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

// Sizes may be known at run time only, so each buffer that could be streamed has a condition.
void KernelEmitter::EmitStreamConditions() {
  for (const uint32_t k : schedule_.nontemporal()) {
    const v1::KernelBuffer& buffer = k_.kernel.buffers(static_cast<int>(k));
    const auto elements =
        static_cast<int64_t>(schedule_.nontemporal_bytes_min()) / int64_t{ir::ByteWidth(buffer.dtype())};
    streamed_[k] = b_.CreateICmpSGE(index_.Scalar(buffer.span()), b_.I64(elements), "streamed");
  }
}

bool KernelEmitter::MayStream(const v1::LoopOp& op) const {
  if (streamed_[op.buffer()] == nullptr || op.mode() != v1::STORE_PLAIN) return false;
  // Lines are filled by one store, or by neighbours in time.
  const uint64_t bytes = at_.lanes * ir::ByteWidth(k_.BufferDType(op));
  const bool innermost = !tiled_ && (at_.vector_variable >= static_cast<uint32_t>(k_.kernel.outer_size()) ||
                                     at_.stage->stage->inner_size() == 0);
  return bytes >= static_cast<uint64_t>(k_.target.machine.cpu.cache_line_bytes) || innermost;
}

// Where the vector loop's first vector is stored: its neighbours lie whole vectors behind it, and are aligned
// as it is, which one test outside of the loop tells.
llvm::Value* KernelEmitter::StartOfVectors(const v1::LoopOp& op, llvm::Value* pointer) {
  if (at_.vector_begin == nullptr) return pointer;
  llvm::Value*& position = at_.variables[at_.vector_variable];
  llvm::Value* const present = position;
  position = at_.vector_begin;
  llvm::Type* type = k_.MemoryType(k_.BufferDType(op));
  llvm::Value* start = b_.CreateGEP(type, k_.buffers[op.buffer()], index_.Scalar(op.index()));
  position = present;
  return start;
}

void KernelEmitter::StreamedStore(const v1::LoopOp& op, llvm::Value* value, llvm::Value* pointer) {
  const llvm::DataLayout& layout = k_.module->getDataLayout();
  const uint64_t align =
      std::min<uint64_t>(layout.getTypeStoreSize(value->getType()), k_.target.machine.cpu.cache_line_bytes);
  llvm::Value* address = b_.CreatePtrToInt(StartOfVectors(op, pointer), b_.getInt64Ty());
  llvm::Value* aligned = b_.CreateICmpEQ(b_.CreateAnd(address, b_.I64(align - 1)), b_.I64(0));
  llvm::Value* streams = b_.CreateAnd(aligned, streamed_[op.buffer()]);
  auto* stream = llvm::BasicBlock::Create(b_.getContext(), "stream", b_.function());
  auto* plain = llvm::BasicBlock::Create(b_.getContext(), "plain", b_.function());
  auto* stored = llvm::BasicBlock::Create(b_.getContext(), "stored", b_.function());
  b_.CreateCondBr(streams, stream, plain);
  b_.SetInsertPoint(stream);
  llvm::StoreInst* store = b_.CreateAlignedStore(value, pointer, llvm::Align(align));
  store->setMetadata(llvm::LLVMContext::MD_nontemporal,
                     llvm::MDNode::get(b_.getContext(), {llvm::ConstantAsMetadata::get(b_.getInt32(1))}));
  Annotate(store, op.buffer());
  b_.CreateBr(stored);
  b_.SetInsertPoint(plain);
  Annotate(b_.CreateAlignedStore(value, pointer, VectorAlign(op)), op.buffer());
  b_.CreateBr(stored);
  b_.SetInsertPoint(stored);
}

// Of a vector's line farther on in the walk, or of a later row's line that is the present vector's part of
// it.
void KernelEmitter::EmitPrefetch(const v1::LoopOp& op) {
  const auto found = prefetches_.find(&op);
  if (found == prefetches_.end() || at_.vector_variable == LoopState::kNoVariable) return;
  const v1::Prefetch& prefetch = *found->second;
  llvm::Type* type = k_.MemoryType(k_.BufferDType(op));
  const auto address = [&] { return b_.CreateGEP(type, k_.buffers[op.buffer()], index_.Scalar(op.index())); };
  llvm::Value* pointer;
  if (prefetch.bytes_ahead() > 0) {
    pointer = b_.CreateGEP(b_.getInt8Ty(), address(), b_.I64(prefetch.bytes_ahead()));
  } else {
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
    pointer = address();
    row = present[0];
    column = present[1];
  }
  b_.CreateIntrinsic(llvm::Intrinsic::prefetch, llvm::ArrayRef<llvm::Type*>{pointer->getType()},
                     llvm::ArrayRef<llvm::Value*>{pointer, b_.getInt32(0),
                                                  b_.getInt32(Locality(prefetch.level())), b_.getInt32(1)});
}

// Streamed stores are not ordered with others: what says that the kernel has ended comes after them.
void KernelEmitter::EndStreams() {
  if (k_.operations.stream_fence == llvm::Intrinsic::not_intrinsic) return;
  const auto streams = [](llvm::Value* condition) { return condition != nullptr; };
  if (std::any_of(streamed_.begin(), streamed_.end(), streams)) {
    b_.CreateIntrinsic(k_.operations.stream_fence, llvm::ArrayRef<llvm::Type*>{},
                       llvm::ArrayRef<llvm::Value*>{});
  }
}

}  // namespace kiln
