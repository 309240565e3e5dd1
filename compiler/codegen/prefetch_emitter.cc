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
#include "compiler/ir/dtypes.h"
#include "compiler/target/cost_model.h"
#include "llvm/IR/IntrinsicsX86.h"

namespace kiln {
namespace {

constexpr unsigned kReadAheadStagesMax = 2;                  // share a row's lines
constexpr int kOnce = 0, kSecondLevel = 2, kFirstLevel = 3;  // of llvm.prefetch

}  // namespace

// Sizes may be known at run time only, so each buffer that could be streamed has a condition.
void KernelEmitter::ChooseStreams() {
  std::vector<int> accesses(kernel_.buffers_size());
  for (const v1::LoopOp* op : ops_) {
    const auto opcode = static_cast<LoopOpcode>(op->op());
    if (opcode == LoopOpcode::kLoad || opcode == LoopOpcode::kStore) ++accesses[op->buffer()];
  }
  for (int k = 0; k < kernel_.buffers_size(); ++k) {
    const v1::KernelBuffer& buffer = kernel_.buffers(k);
    if (buffer.access() != v1::WRITE || accesses[k] != 1) continue;
    const int64_t elements =
        cost::NontemporalBytesMin(target_.machine) / static_cast<int64_t>(ir::ByteWidth(buffer.dtype()));
    llvm::Value* large = b_.CreateICmpSGE(ScalarIndex(buffer.span()), I64(elements), "streamed");
    auto* known = llvm::dyn_cast<llvm::ConstantInt>(large);
    if (known == nullptr || !known->isZero()) streamed_[k] = large;
  }
}

bool KernelEmitter::MayStream(const v1::LoopOp& op) const {
  if (streamed_[op.buffer()] == nullptr || op.mode() != v1::STORE_PLAIN) return false;
  // Lines are filled by one store, or by neighbours in time.
  const uint64_t bytes = lanes_ * ir::ByteWidth(kernel_.buffers(op.buffer()).dtype());
  const bool innermost = !tiled_ && (vector_variable_ >= static_cast<uint32_t>(kernel_.outer_size()) ||
                                     stage_->stage->inner_size() == 0);
  return bytes >= static_cast<uint64_t>(target_.machine.cpu.cache_line_bytes) || innermost;
}

// Where the vector loop's first vector is stored: its neighbours lie whole vectors behind it, and are aligned
// as it is, which one test outside of the loop tells.
llvm::Value* KernelEmitter::StartOfVectors(const v1::LoopOp& op, llvm::Value* pointer) {
  if (vector_begin_ == nullptr) return pointer;
  llvm::Value*& position = variables_[vector_variable_];
  llvm::Value* const present = position;
  position = vector_begin_;
  llvm::Type* type = MemoryType(kernel_.buffers(op.buffer()).dtype());
  llvm::Value* start = b_.CreateGEP(type, buffers_[op.buffer()], ScalarIndex(op.index()));
  position = present;
  return start;
}

void KernelEmitter::StreamedStore(const v1::LoopOp& op, llvm::Value* value, llvm::Value* pointer) {
  const llvm::DataLayout& layout = module_->getDataLayout();
  const uint64_t align =
      std::min<uint64_t>(layout.getTypeStoreSize(value->getType()), target_.machine.cpu.cache_line_bytes);
  llvm::Value* address = b_.CreatePtrToInt(StartOfVectors(op, pointer), b_.getInt64Ty());
  llvm::Value* aligned = b_.CreateICmpEQ(b_.CreateAnd(address, I64(align - 1)), I64(0));
  llvm::Value* streams = b_.CreateAnd(aligned, streamed_[op.buffer()]);
  auto* stream = llvm::BasicBlock::Create(context_, "stream", function_);
  auto* plain = llvm::BasicBlock::Create(context_, "plain", function_);
  auto* stored = llvm::BasicBlock::Create(context_, "stored", function_);
  b_.CreateCondBr(streams, stream, plain);
  b_.SetInsertPoint(stream);
  llvm::StoreInst* store = b_.CreateAlignedStore(value, pointer, llvm::Align(align));
  store->setMetadata(llvm::LLVMContext::MD_nontemporal,
                     llvm::MDNode::get(context_, {llvm::ConstantAsMetadata::get(b_.getInt32(1))}));
  Annotate(store, op.buffer());
  b_.CreateBr(stored);
  b_.SetInsertPoint(plain);
  Annotate(b_.CreateAlignedStore(value, pointer, VectorAlign(op)), op.buffer());
  b_.CreateBr(stored);
  b_.SetInsertPoint(stored);
}

void KernelEmitter::ChooseReadAhead() {
  if (on_gpu_ || kernel_.outer_size() == 0) return;
  if (!pipeline_.passes.empty()) {  // memory is asked for all the time
    for (const v1::LoopOp* op : pipeline_.reads) read_ahead_[op] = {0, 0};
    return;
  }
  if (kernel_.schedule().vector_dim() == v1::VECTOR_INNER_LAST) ChooseRowsAhead();
  const bool walks = kernel_.schedule().vector_dim() == v1::VECTOR_OUTER_LAST && !tiled_;
  if (walks && !target_.machine.cpu.prefetch.crosses_pages) ChoosePassesAhead();
}

void KernelEmitter::ChoosePassesAhead() {
  const int64_t bytes_min = cost::PrefetchedBytesMin(target_.machine);
  for (const StageInfo& info : stages_) {
    if (info.stage->inner_size() > 0) continue;
    for (const v1::LoopOp& op : info.stage->ops()) {
      if (static_cast<LoopOpcode>(op.op()) != LoopOpcode::kLoad || op.args_size() > 0) continue;
      const v1::KernelBuffer& buffer = kernel_.buffers(op.buffer());
      const std::optional<int64_t> elements = ConstantExpr(buffer.span());
      const bool small =
          elements && *elements * static_cast<int64_t>(ir::ByteWidth(buffer.dtype())) < bytes_min;
      if (!small && !DependsOnOps(op.index())) read_ahead_[&op] = {0, 0};
    }
  }
}

// Of a load that walks a row front to back, where rows follow each other and come from a buffer of so many
// bytes; 0 of any other, and of a row too long for the second-level cache.
int64_t KernelEmitter::RowBytesRead(const StageInfo& info, int number, int64_t buffer_bytes_min) const {
  const v1::LoopOp& op = info.stage->ops(number);
  if (skipped_.contains(info.first_op + number)) return 0;
  if (static_cast<LoopOpcode>(op.op()) != LoopOpcode::kLoad || op.args_size() > 0) return 0;
  const auto outer = static_cast<uint32_t>(kernel_.outer_size());
  const v1::KernelBuffer& buffer = kernel_.buffers(op.buffer());
  const auto width = static_cast<int64_t>(ir::ByteWidth(buffer.dtype()));
  const int64_t row = ConstantExpr(info.stage->inner(0)).value_or(0) * width;
  if (buffer.access() != v1::READ || row > cost::SecondLevelRowBytesMax(target_.machine)) return 0;
  if (ConstantExpr(buffer.span()).value_or(0) * width < buffer_bytes_min) return 0;
  if (DependsOnOps(op.index()) || CoefficientOf(op.index(), outer) != 1) return 0;
  return CoefficientOf(op.index(), outer - 1).value_or(0) * width < row ? 0 : row;
}

void KernelEmitter::ChooseRowsAhead() {
  const int64_t buffer_bytes_min = cost::PrefetchedBytesMin(target_.machine);
  const int64_t row_bytes_min = target_.machine.cpu.prefetch.row_bytes_min;
  llvm::DenseMap<std::pair<uint32_t, uint32_t>, llvm::SmallVector<const v1::LoopOp*, 4>> readers;
  for (const StageInfo& info : stages_) {
    if (info.stage->inner_size() != 1 || info.has_scan) continue;
    if (ReadsShifted(info)) continue;
    for (int k = 0; k < info.stage->ops_size(); ++k) {
      const v1::LoopOp& op = info.stage->ops(k);
      if (RowBytesRead(info, k, buffer_bytes_min) < row_bytes_min) continue;
      readers[{op.buffer(), op.index()}].push_back(&op);
      if (shifted_ && (shifted_->first == &info || shifted_->second == &info)) read_ahead_[&op] = {0, 0};
    }
  }
  for (const auto& [access, ops] : readers) {
    const unsigned shares = std::min<unsigned>(ops.size() - 1, kReadAheadStagesMax);
    for (unsigned share = 0; share < shares; ++share) read_ahead_[ops[share + 1]] = {share, shares};
  }
}

// Of a vector's line farther on in the walk, or of the next row's line that is the present vector's part of
// it.
void KernelEmitter::ReadAhead(const v1::LoopOp& op) {
  const auto found = read_ahead_.find(&op);
  if (found == read_ahead_.end() || vector_variable_ == kNoVariable) return;
  const auto [share, shares] = found->second;
  llvm::Type* type = MemoryType(kernel_.buffers(op.buffer()).dtype());
  const auto address = [&] { return b_.CreateGEP(type, buffers_[op.buffer()], ScalarIndex(op.index())); };
  const auto address_in_row = [&](int64_t rows_after, llvm::Value* place) {
    llvm::Value*& row = variables_[kernel_.outer_size() - 1];
    llvm::Value*& column = variables_[vector_variable_];
    llvm::Value* const present[] = {row, column};
    row = b_.CreateNSWAdd(row, I64(rows_after));
    column = place;
    llvm::Value* pointer = address();
    row = present[0];
    column = present[1];
    return pointer;
  };
  const PrefetchPolicy& prefetch = target_.machine.cpu.prefetch;
  llvm::Value* const column = variables_[vector_variable_];
  llvm::Value* pointer;
  int level = kSecondLevel;
  if (pipeline_.rows_at_once > 1) {  // the same vector of the rows that come next
    pointer = address_in_row(pipeline_.rows_at_once, column);
  } else if (shares == 0) {
    int64_t ahead = prefetch.walk_distance;
    if (kernel_.schedule().vector_dim() == v1::VECTOR_INNER_LAST) {
      const bool side_by_side = !pipeline_.passes.empty();
      if (!prefetch.rows_into_second_level) {
        const bool once = prefetch.crosses_pages && side_by_side && !pipeline_.in_groups;
        level = once ? kOnce : kFirstLevel;
      } else if (side_by_side) {
        ahead = prefetch.side_by_side_distance_l2;
      }
    }
    pointer = b_.CreateGEP(b_.getInt8Ty(), address(), I64(ahead));
  } else {
    llvm::Value* begin = b_.CreateUDiv(b_.CreateMul(stage_->extents[0], I64(share)), I64(shares));
    pointer = address_in_row(1, b_.CreateNSWAdd(begin, b_.CreateUDiv(column, I64(shares))));
  }
  b_.CreateIntrinsic(
      llvm::Intrinsic::prefetch, llvm::ArrayRef<llvm::Type*>{pointer->getType()},
      llvm::ArrayRef<llvm::Value*>{pointer, b_.getInt32(0), b_.getInt32(level), b_.getInt32(1)});
}

// Streamed stores are not ordered with others: what says that the kernel has ended comes after them.
void KernelEmitter::EndStreams() {
  const auto streams = [](llvm::Value* condition) { return condition != nullptr; };
  if (std::any_of(streamed_.begin(), streamed_.end(), streams)) {
    b_.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, llvm::ArrayRef<llvm::Type*>{},
                       llvm::ArrayRef<llvm::Value*>{});
  }
}

}  // namespace kiln
