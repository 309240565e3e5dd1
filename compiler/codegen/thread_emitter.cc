#include "compiler/codegen/thread_emitter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtypes.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/Support/MathExtras.h"

namespace kiln {
namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t kThreadsOfLongRow = 1024;
constexpr int64_t kLongRow =
    16384;  // from here on, measured with F32; of BF16 softmax gains, layer norm loses
constexpr unsigned kLanesOfLongRow = 4;
constexpr int64_t kUsualRow = 4096;  // where the length is a symbol
constexpr unsigned kWarp = 32;
constexpr int64_t kTurns = 4;  // of a thread in a row, before the block has more threads: combining costs too
constexpr int64_t kAccessBytes = 16;      // the widest access of a thread
constexpr int64_t kVectorBytes = 32;      // of a buffer with wider elements than another's
constexpr int64_t kManyPoints = 1 << 18;  // fewer do not fill a device unless each has its thread
constexpr unsigned kSharedAddressSpace = 3;
constexpr char kBodyName[] = "kiln_body";

bool HasAccumulatingStore(const v1::Kernel& kernel) {
  for (const v1::Stage& stage : kernel.stages()) {
    for (const v1::LoopOp& op : stage.ops()) {
      if (static_cast<LoopOpcode>(op.op()) == LoopOpcode::kStore && op.mode() == v1::STORE_ACCUMULATE)
        return true;
    }
  }
  return false;
}

}  // namespace

ThreadEmitter::ThreadEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module)
    : KernelEmitter(kernel, target, module),
      block_shares_point_(kernel.schedule().vector_dim() == v1::VECTOR_INNER_LAST &&
                          !HasAccumulatingStore(kernel)),
      threads_(kThreads) {}

GpuImage ThreadEmitter::Launch() const {
  GpuImage image;
  image.threads = threads_;
  image.points_per_block = block_shares_point_ ? 1 : threads_ * vector_lanes_;
  image.buffers = kernel_.buffers_size();
  image.symbols = kernel_.symbol_count();
  return image;
}

absl::Status ThreadEmitter::EmitKernel() {
  absl::Status emitted = Emit();
  if (!emitted.ok()) return emitted;
  auto* type = llvm::FunctionType::get(b_.getVoidTy(), function_->getFunctionType()->params(), false);
  auto* entry = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, kGpuEntryName, module_);
  entry->setCallingConv(llvm::CallingConv::PTX_Kernel);
  entry->addFnAttr("nvvm.maxntid", absl::StrCat(threads_));
  b_.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", entry));
  llvm::SmallVector<llvm::Value*, 16> arguments;
  for (llvm::Argument& argument : entry->args()) arguments.push_back(&argument);
  b_.CreateCall(function_, arguments);
  b_.CreateRetVoid();
  return absl::OkStatus();
}

void ThreadEmitter::EmitEntry() {
  llvm::SmallVector<llvm::Type*, 16> parameters(kernel_.buffers_size(), b_.getPtrTy());
  parameters.append(kernel_.symbol_count(), b_.getInt64Ty());
  auto* type = llvm::FunctionType::get(b_.getInt32Ty(), parameters, false);
  function_ = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, kBodyName, module_);
  function_->addFnAttr(llvm::Attribute::AlwaysInline);
  b_.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", function_));

  llvm::MDBuilder metadata(context_);
  llvm::MDNode* domain = metadata.createAnonymousAliasScopeDomain("kernel");
  std::vector<llvm::Metadata*> scopes;
  for (int k = 0; k < kernel_.buffers_size(); ++k) {
    buffers_.push_back(function_->getArg(k));
    scopes.push_back(metadata.createAnonymousAliasScope(domain, absl::StrCat("b", k)));
  }
  for (size_t k = 0; k < scopes.size(); ++k) {
    std::vector<llvm::Metadata*> others = scopes;
    others.erase(others.begin() + k);
    own_scope_.push_back(llvm::MDNode::get(context_, {scopes[k]}));
    other_scopes_.push_back(llvm::MDNode::get(context_, others));
  }
  for (uint32_t k = 0; k < kernel_.symbol_count(); ++k) {
    symbols_.push_back(function_->getArg(kernel_.buffers_size() + k));
  }
  zero_slot_ = Slot(b_.getInt64Ty(), "zero");
  b_.CreateStore(b_.getInt64(0), zero_slot_);
  for (uint32_t extent : kernel_.outer()) outer_extents_.push_back(ScalarIndex(extent));
  for (StageInfo& info : stages_) {
    for (uint32_t extent : info.stage->inner()) info.extents.push_back(ScalarIndex(extent));
  }
}

llvm::Value* ThreadEmitter::Special(llvm::Intrinsic::ID id) {
  return b_.CreateZExt(b_.CreateIntrinsic(b_.getInt32Ty(), id, llvm::ArrayRef<llvm::Value*>{}),
                       b_.getInt64Ty());
}

void ThreadEmitter::Barrier() {
  b_.CreateIntrinsic(b_.getVoidTy(), llvm::Intrinsic::nvvm_barrier_cta_sync_aligned_all,
                     llvm::ArrayRef<llvm::Value*>{b_.getInt32(0)});
}

uint32_t ThreadEmitter::VectorVariable(const StageInfo& info) const {
  return kernel_.outer_size() + (block_shares_point_ ? info.stage->inner_size() : 0) - 1;
}

unsigned ThreadEmitter::LanesFor(const StageInfo& info) {
  vector_variable_ = VectorVariable(info);
  const auto runs_along = [&](const v1::LoopOp& op) {
    switch (static_cast<LoopOpcode>(op.op())) {
      case LoopOpcode::kScan: return false;
      case LoopOpcode::kIndexExpr: return DependsOnOps(op.index()) || Coefficient(op.index()).has_value();
      case LoopOpcode::kLoad: {
        if (op.args_size() > 0) return false;  // a masked vector is read lane by lane, with branches
        if (DependsOnOps(op.index())) return true;
        const std::optional<int64_t> coefficient = Coefficient(op.index());
        return coefficient == 0 || coefficient == 1;
      }
      case LoopOpcode::kStore:
        return op.args_size() == 1 && op.mode() != v1::STORE_ACCUMULATE && !DependsOnOps(op.index()) &&
               Coefficient(op.index()) == 1;
      default: return true;
    }
  };
  int64_t lanes = kAccessBytes;
  int64_t narrowest = kAccessBytes;
  for (const v1::LoopOp& op : info.stage->ops()) {
    if (!runs_along(op)) {
      lanes = 1;
      break;
    }
    const auto opcode = static_cast<LoopOpcode>(op.op());
    if (opcode != LoopOpcode::kLoad && opcode != LoopOpcode::kStore) continue;
    const int64_t bytes = ir::ByteWidth(kernel_.buffers(op.buffer()).dtype());
    lanes = std::min(lanes, kVectorBytes / bytes);
    narrowest = std::min(narrowest, bytes);
  }
  vector_variable_ = kNoVariable;
  return static_cast<unsigned>(std::min(lanes, kAccessBytes / narrowest));
}

unsigned ThreadEmitter::LanesAlongOuter() {
  if (kernel_.schedule().vector_dim() != v1::VECTOR_OUTER_LAST || kernel_.outer_size() == 0) return 1;
  int64_t points = 1;
  for (uint32_t extent : kernel_.outer()) {
    points =
        std::min(kManyPoints, points * std::min(kManyPoints, ConstantExpr(extent).value_or(kManyPoints)));
  }
  if (points < kManyPoints) return 1;
  unsigned lanes = kAccessBytes;
  for (const StageInfo& info : stages_) {
    if (info.stage->inner_size() > 0) return 1;
    lanes = std::min(lanes, LanesFor(info));
  }
  return lanes;
}

// A short row gets fewer threads, down to a warp. A long one that several stages read gets more, so that
// fewer rows are in work and the device's cache holds them from one stage to the next.
void ThreadEmitter::ChooseLanes() {
  if (!block_shares_point_) {
    vector_lanes_ = LanesAlongOuter();
    return;
  }
  unsigned lanes = kAccessBytes;
  int64_t longest = 1;
  int passes = 0;
  for (const StageInfo& info : stages_) {
    if (info.stage->inner_size() == 0) continue;
    ++passes;
    lanes = std::min(lanes, LanesFor(info));
    const uint32_t last = info.stage->inner(info.stage->inner_size() - 1);
    longest = std::max(longest, ConstantExpr(last).value_or(kUsualRow));
  }
  vector_lanes_ = lanes;
  const bool read_again = passes > 1 && longest >= kLongRow && lanes <= kLanesOfLongRow;
  const int64_t most = read_again ? kThreadsOfLongRow : kThreads;
  const int64_t wanted = (longest + lanes * kTurns - 1) / (lanes * kTurns);
  threads_ = static_cast<unsigned>(std::clamp(
      static_cast<int64_t>(llvm::PowerOf2Ceil(static_cast<uint64_t>(wanted))), int64_t{kWarp}, most));
}

int64_t ThreadEmitter::ThreadsOf(const StageInfo& info) const {
  if (!block_shares_point_ || info.has_scan || info.stage->inner_size() == 0) return 1;
  const int64_t extent = ConstantExpr(info.stage->inner(info.stage->inner_size() - 1)).value_or(1);
  return std::clamp<int64_t>(extent / vector_lanes_, 1, threads_);
}

llvm::Align ThreadEmitter::VectorAlign(const v1::LoopOp& op) const {
  if (!aligned_ || DependsOnOps(op.index())) return KernelEmitter::VectorAlign(op);
  const int64_t bytes = ir::ByteWidth(kernel_.buffers(op.buffer()).dtype());
  return llvm::Align(static_cast<uint64_t>(std::min(kAccessBytes, bytes * vector_lanes_)));
}

llvm::Value* ThreadEmitter::IsAligned(llvm::ArrayRef<const StageInfo*> stages) {
  llvm::Value* bits = I64(0);
  aligned_ = true;
  for (const StageInfo* info : stages) {
    for (const v1::LoopOp& op : info->stage->ops()) {
      const auto opcode = static_cast<LoopOpcode>(op.op());
      if (opcode != LoopOpcode::kLoad && opcode != LoopOpcode::kStore) continue;
      if (DependsOnOps(op.index()) || Coefficient(op.index()) != 1) continue;
      llvm::Type* type = MemoryType(kernel_.buffers(op.buffer()).dtype());
      llvm::Value* pointer = b_.CreateGEP(type, buffers_[op.buffer()], ScalarIndex(op.index()));
      llvm::Value* below = I64(static_cast<int64_t>(VectorAlign(op).value()) - 1);
      bits = b_.CreateOr(bits, b_.CreateAnd(b_.CreatePtrToInt(pointer, b_.getInt64Ty()), below));
    }
  }
  aligned_ = false;
  return b_.CreateICmpEQ(bits, I64(0), "aligned");
}

void ThreadEmitter::Choose(llvm::Value* condition, Body then, Body otherwise) {
  auto* yes = llvm::BasicBlock::Create(context_, "yes", function_);
  auto* no = llvm::BasicBlock::Create(context_, "no", function_);
  auto* exit = llvm::BasicBlock::Create(context_, "chosen", function_);
  b_.CreateCondBr(condition, yes, no);
  b_.SetInsertPoint(yes);
  then();
  b_.CreateBr(exit);
  b_.SetInsertPoint(no);
  otherwise();
  b_.CreateBr(exit);
  b_.SetInsertPoint(exit);
}

void ThreadEmitter::EmitUnits() {
  std::vector<llvm::Value*> extents = outer_extents_;
  if (!block_shares_point_ && vector_lanes_ > 1) {
    extents.back() =
        b_.CreateUDiv(b_.CreateNSWAdd(extents.back(), I64(vector_lanes_ - 1)), I64(vector_lanes_), "vectors");
  }
  llvm::Value* points = I64(1);
  for (llvm::Value* extent : extents) points = b_.CreateNSWMul(points, extent);
  llvm::Value* block = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
  llvm::Value* blocks = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_nctaid_x);
  llvm::Value* first = block;
  llvm::Value* step = blocks;
  if (!block_shares_point_) {
    first = b_.CreateNSWAdd(b_.CreateNSWMul(block, I64(threads_)),
                            Special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x));
    step = b_.CreateNSWMul(blocks, I64(threads_));
  }
  ScalarLoop(first, points, step, "point", [&](llvm::Value* point) { EmitPoint(point, extents); });
}

// A point, or a vector of points: those left at the end are taken one at a time.
void ThreadEmitter::EmitPoint(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents) {
  variables_.assign(kernel_.outer_size(), nullptr);
  for (int k = kernel_.outer_size() - 1; k >= 0; --k) {
    variables_[k] = k == 0 ? number : b_.CreateURem(number, extents[k]);
    if (k > 0) number = b_.CreateUDiv(number, extents[k]);
  }
  if (block_shares_point_ || vector_lanes_ == 1) {
    EmitStages();
    return;
  }
  const uint32_t variable = kernel_.outer_size() - 1;
  llvm::Value* begin = b_.CreateNSWMul(variables_[variable], I64(vector_lanes_));
  llvm::Value* end = b_.CreateNSWAdd(begin, I64(vector_lanes_));
  llvm::Value* whole = b_.CreateICmpSLE(end, outer_extents_.back(), "whole");
  variables_[variable] = begin;
  vector_variable_ = variable;
  std::vector<const StageInfo*> all;
  for (const StageInfo& info : stages_) all.push_back(&info);
  Choose(
      whole,
      [&] {
        lanes_ = vector_lanes_;
        Choose(
            IsAligned(all),
            [&] {
              aligned_ = true;
              EmitStages();
              aligned_ = false;
            },
            [&] { EmitStages(); });
        lanes_ = 1;
      },
      [&] {
        vector_variable_ = kNoVariable;
        ScalarLoop(begin, outer_extents_.back(), I64(1), "single", [&](llvm::Value* i) {
          variables_[variable] = i;
          EmitStages();
        });
      });
}

// What one stage stored another may read, and with other loops it may be another thread that reads it.
// The last barrier keeps the next point's partial results out of the slots that are still being read.
void ThreadEmitter::EmitStages() {
  for (const StageInfo& info : stages_) {
    stage_ = &info;
    if (block_shares_point_ && &info != &stages_.front()) Barrier();
    EmitStage(info);
  }
  if (block_shares_point_) Barrier();
}

void ThreadEmitter::VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll,
                               Body body) {
  if (!block_shares_point_) {
    KernelEmitter::VectorLoop(variable, lo, hi, unroll, body);
    return;
  }
  llvm::Value* thread = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
  llvm::Value* lanes = I64(vector_lanes_);
  llvm::Value* whole_end = b_.CreateNSWSub(hi, b_.CreateURem(b_.CreateNSWSub(hi, lo), lanes), "whole");
  const auto whole = [&] {
    ScalarLoop(b_.CreateNSWAdd(lo, b_.CreateNSWMul(thread, lanes)), whole_end,
               I64(int64_t{threads_} * vector_lanes_), "shared", [&](llvm::Value* i) {
                 variables_[variable] = i;
                 body();
               });
  };
  if (vector_lanes_ == 1) {
    whole();
    return;
  }
  lanes_ = vector_lanes_;
  vector_variable_ = variable;
  variables_[variable] = lo;
  Choose(
      IsAligned({stage_}),
      [&] {
        aligned_ = true;
        whole();
        aligned_ = false;
      },
      whole);
  llvm::Value* has_tail = b_.CreateICmpSLT(whole_end, hi);
  If(has_tail, "tail", [&] {
    If(b_.CreateICmpEQ(thread, I64(0)), "first", [&] { MaskedVector(variable, whole_end, hi, body); });
  });
  lanes_ = 1;
  vector_variable_ = kNoVariable;
}

llvm::Value* ThreadEmitter::SharedSlots(llvm::Type* type, const char* name) {
  auto* array = llvm::ArrayType::get(type, threads_ / kWarp);
  auto* slots = new llvm::GlobalVariable(*module_, array, false, llvm::GlobalValue::InternalLinkage,
                                         llvm::UndefValue::get(array), name, nullptr,
                                         llvm::GlobalValue::NotThreadLocal, kSharedAddressSpace);
  slots->setAlignment(llvm::Align(16));
  return slots;
}

// Another lane's value; the instruction moves 32 bits.
llvm::Value* ThreadEmitter::Shuffle(llvm::Intrinsic::ID id, llvm::Value* value, unsigned lane) {
  llvm::Type* i32 = b_.getInt32Ty();
  llvm::Type* type = value->getType();
  const unsigned width = type->getScalarSizeInBits();
  llvm::Type* bits_type = b_.getIntNTy(width);
  llvm::Value* bits = b_.CreateBitCast(value, bits_type);
  llvm::Value* result = llvm::ConstantInt::get(bits_type, 0);
  for (unsigned low = 0; low < width; low += 32) {
    llvm::Value* word = b_.CreateZExtOrTrunc(low == 0 ? bits : b_.CreateLShr(bits, low), i32);
    word = b_.CreateIntrinsic(i32, id, {b_.getInt32(~0u), word, b_.getInt32(lane), b_.getInt32(kWarp - 1)});
    word = b_.CreateZExtOrTrunc(word, bits_type);
    result = b_.CreateOr(result, low == 0 ? word : b_.CreateShl(word, low));
  }
  return b_.CreateBitCast(result, type);
}

// Every warp folds in halves, its first lane has the result; then all threads fold the warps' in order.
void ThreadEmitter::CombineThreads(const Accumulator& accumulator, v1::DType kept, llvm::Value** value,
                                   llvm::Value** position) {
  if (!block_shares_point_ || stage_->extents.empty() || stage_->has_scan) return;
  const bool arg = *position != nullptr;
  const auto fold = [&](llvm::Value* other, llvm::Value* other_position) {
    if (arg) {
      CombineArg(accumulator.kind, kept, value, position, other, other_position, true, nullptr);
    } else {
      *value = Combine(accumulator.kind, kept, *value, other);
    }
  };
  const auto shuffle = [&](llvm::Intrinsic::ID id, llvm::Value* v, unsigned lane) {
    return v == nullptr ? nullptr : Shuffle(id, v, lane);
  };
  for (unsigned distance = kWarp / 2; distance >= 1; distance /= 2) {
    const auto down = llvm::Intrinsic::nvvm_shfl_sync_down_i32;
    llvm::Value* other = Shuffle(down, *value, distance);
    fold(other, shuffle(down, *position, distance));
  }
  if (threads_ == kWarp) {
    *value = Shuffle(llvm::Intrinsic::nvvm_shfl_sync_idx_i32, *value, 0);
    *position = shuffle(llvm::Intrinsic::nvvm_shfl_sync_idx_i32, *position, 0);
    return;
  }
  // i1 has no shared memory form of its own.
  const bool is_bool = (*value)->getType()->isIntegerTy(1);
  llvm::Type* type = is_bool ? b_.getInt8Ty() : (*value)->getType();
  llvm::Type* i64 = b_.getInt64Ty();
  llvm::Value* slots = SharedSlots(type, "partial");
  llvm::Value* positions = arg ? SharedSlots(i64, "partial_position") : nullptr;
  const auto at = [&](llvm::Value* base, llvm::Type* element, llvm::Value* index) {
    return b_.CreateInBoundsGEP(element, base, {index});
  };
  llvm::Value* thread = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
  If(b_.CreateICmpEQ(b_.CreateURem(thread, I64(kWarp)), I64(0)), "warp", [&] {
    llvm::Value* warp = b_.CreateUDiv(thread, I64(kWarp));
    b_.CreateStore(is_bool ? b_.CreateZExt(*value, type) : *value, at(slots, type, warp));
    if (arg) b_.CreateStore(*position, at(positions, i64, warp));
  });
  Barrier();
  for (unsigned warp = 0; warp < threads_ / kWarp; ++warp) {
    llvm::Value* other = b_.CreateLoad(type, at(slots, type, I64(warp)));
    if (is_bool) other = b_.CreateTrunc(other, b_.getInt1Ty());
    llvm::Value* other_position = arg ? b_.CreateLoad(i64, at(positions, i64, I64(warp))) : nullptr;
    if (warp == 0) {
      *value = other;
      *position = other_position;
    } else {
      fold(other, other_position);
    }
  }
}

void ThreadEmitter::FailWhere(llvm::Value* bad, int32_t, uint32_t, llvm::Value*, llvm::Value*, bool) {
  If(Any(bad), "fail",
     [&] { b_.CreateIntrinsic(b_.getVoidTy(), llvm::Intrinsic::trap, llvm::ArrayRef<llvm::Value*>{}); });
}

}  // namespace kiln
