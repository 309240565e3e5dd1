#include "compiler/codegen/kernel_emitter.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/target_operations.h"
#include "compiler/schedule/row_cache.h"
#include "compiler/support/kernel_abi.h"
#include "llvm/IR/MDBuilder.h"

namespace kiln {

KernelEmitter::KernelEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module)
    : kernel_(kernel),
      target_(target),
      operations_(OperationsOf(target.instructions)),
      facts_(kernel),
      schedule_(kernel.schedule().vectors()),
      rows_(schedule_.rows()),
      module_(module),
      context_(module->getContext()),
      on_gpu_(module->getTargetTriple().isNVPTX()),
      b_(module->getContext()),
      math_(module, operations_.table_functions),
      skipped_(SkippedOps(facts_, rows_)),
      ops_(facts_.ops()),
      values_(ops_.size()) {
  streamed_.resize(kernel.buffers_size());
  for (const StageFacts& stage : facts_.stages()) stages_.push_back({stage, {}});
}

absl::Status KernelEmitter::Emit() {
  if (!facts_.ExpressionsFit()) {
    return absl::UnimplementedError("unsupported: an index expression of too many terms");
  }
  UseSchedule();
  if (!status_.ok()) return status_;
  EmitEntry();
  EmitUnits();
  EndStreams();
  b_.CreateRet(b_.getInt32(KILN_OK));
  return status_;
}

void KernelEmitter::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void KernelEmitter::UseSchedule() {
  vector_lanes_ = schedule_.lanes();
  tiled_ = schedule_.has_tile();
  for (const uint32_t load : schedule_.tile().packed()) packable_.push_back(ops_[load]);
  for (const uint32_t sum : rows_.summed_exponentials()) {
    summed_exponents_[sum] = ops_[ops_[sum]->args(0)]->args(0);
  }
  for (const v1::Prefetch& prefetch : schedule_.prefetches()) prefetches_[ops_[prefetch.load()]] = &prefetch;
}

void KernelEmitter::EmitEntry() {
  llvm::Type* ptr = b_.getPtrTy();
  llvm::Type* i64 = b_.getInt64Ty();
  auto* type = llvm::FunctionType::get(b_.getInt32Ty(), {ptr, i64, i64, b_.getInt32Ty()}, false);
  function_ = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, kKernelEntryName, module_);
  function_->setVisibility(llvm::GlobalValue::HiddenVisibility);
  args_ = function_->getArg(0);
  begin_ = function_->getArg(1);
  end_ = function_->getArg(2);
  args_->setName("args");
  begin_->setName("begin");
  end_->setName("end");
  b_.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", function_));

  const auto invariant_load = [&](llvm::Type* load_type, llvm::Value* from, size_t bytes,
                                  const llvm::Twine& name) {
    llvm::LoadInst* load = b_.CreateAlignedLoad(
        load_type, b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), from, bytes), llvm::Align(8), name);
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
    return load;
  };
  llvm::Value* table = invariant_load(ptr, args_, offsetof(KilnArgs, buffers), "buffers");
  for (int k = 0; k < kernel_.buffers_size(); ++k) {
    buffers_.push_back(invariant_load(ptr, table, 8 * k, absl::StrCat("b", k)));
  }
  MakeAliasScopes();
  if (kernel_.symbol_count() > 0) {
    llvm::Value* symbols = invariant_load(ptr, args_, offsetof(KilnArgs, symbols), "symbols");
    for (uint32_t k = 0; k < kernel_.symbol_count(); ++k) {
      symbols_.push_back(invariant_load(i64, symbols, 8 * k, absl::StrCat("s", k)));
    }
  }
  EmitExtents();
  EmitStreamConditions();
  UseRowCache();
  UseShiftedReduction();
  UseRowPipeline();
}

void KernelEmitter::MakeAliasScopes() {
  llvm::MDBuilder metadata(context_);
  llvm::MDNode* domain = metadata.createAnonymousAliasScopeDomain("kernel");
  std::vector<llvm::Metadata*> scopes;
  for (int k = 0; k < kernel_.buffers_size(); ++k) {
    scopes.push_back(metadata.createAnonymousAliasScope(domain, absl::StrCat("b", k)));
  }
  for (size_t k = 0; k < scopes.size(); ++k) {
    std::vector<llvm::Metadata*> others = scopes;
    others.erase(others.begin() + k);
    own_scope_.push_back(llvm::MDNode::get(context_, {scopes[k]}));
    other_scopes_.push_back(llvm::MDNode::get(context_, others));
  }
}

void KernelEmitter::EmitExtents() {
  zero_slot_ = Slot(b_.getInt64Ty(), "zero");
  b_.CreateStore(b_.getInt64(0), zero_slot_);
  for (uint32_t extent : kernel_.outer()) outer_extents_.push_back(ScalarIndex(extent));
  for (StageInfo& info : stages_) {
    for (uint32_t extent : info.stage->inner()) info.extents.push_back(ScalarIndex(extent));
  }
}

// Units are the points of the parallel loops, the last one in chunks.
void KernelEmitter::EmitUnits() {
  const uint32_t parallel = kernel_.schedule().parallel_dims();
  variables_.assign(kernel_.outer_size(), nullptr);
  if (parallel == 0) {
    If(b_.CreateICmpSLT(begin_, end_), "unit", [&] { EmitOuterFrom(0); });
    return;
  }
  llvm::Value* chunk = I64(std::max<uint32_t>(1, kernel_.schedule().chunk()));
  llvm::Value* extent = outer_extents_[parallel - 1];
  const auto clamp = [&](llvm::Value* v) { return b_.CreateSelect(b_.CreateICmpSLT(v, extent), v, extent); };
  if (parallel == 1) {  // neighbouring units are one range
    EmitOuterRange(0, clamp(b_.CreateNSWMul(begin_, chunk)), clamp(b_.CreateNSWMul(end_, chunk)));
    return;
  }
  llvm::Value* chunks = b_.CreateUDiv(b_.CreateAdd(extent, b_.CreateSub(chunk, I64(1))), chunk, "chunks");
  ScalarLoop(begin_, end_, I64(1), "unit", [&](llvm::Value* unit) {
    llvm::Value* rest = b_.CreateUDiv(unit, chunks);
    llvm::Value* lo = b_.CreateNSWMul(b_.CreateURem(unit, chunks), chunk, "lo");
    for (int k = static_cast<int>(parallel) - 2; k >= 0; --k) {
      variables_[k] = k == 0 ? rest : b_.CreateURem(rest, outer_extents_[k]);
      if (k > 0) rest = b_.CreateUDiv(rest, outer_extents_[k]);
    }
    EmitOuterRange(parallel - 1, lo, clamp(b_.CreateNSWAdd(lo, chunk)));
  });
}

void KernelEmitter::EmitOuterFrom(uint32_t loop) {
  if (loop == static_cast<uint32_t>(kernel_.outer_size())) {
    EmitStages();
    return;
  }
  EmitOuterRange(loop, I64(0), outer_extents_[loop]);
}

void KernelEmitter::EmitOuterRange(uint32_t loop, llvm::Value* lo, llvm::Value* hi) {
  const bool last = loop + 1 == static_cast<uint32_t>(kernel_.outer_size());
  if (last && kernel_.schedule().vector_dim() == v1::VECTOR_OUTER_LAST) {
    VectorLoop(loop, lo, hi, 1, [&] { EmitStages(); });
    return;
  }
  if (last && !pipeline_.passes.empty()) {
    EmitPipeline(lo, hi);
    return;
  }
  if (loop + 2 == static_cast<uint32_t>(kernel_.outer_size()) && tiled_) {
    EmitTiles(loop, lo, hi);
    return;
  }
  ScalarLoop(lo, hi, I64(1), "outer", [&](llvm::Value* i) {
    variables_[loop] = i;
    EmitOuterFrom(loop + 1);
  });
}

void KernelEmitter::EmitStages() {
  for (const StageInfo& info : stages_) {
    if (IsDoneShifted(info)) continue;
    stage_ = &info;
    EmitStage(info);
  }
}

void KernelEmitter::EmitStage(const StageInfo& info) {
  variables_.resize(kernel_.outer_size() + info.extents.size());
  if (shifted_ && shifted_->first == &info) {
    EmitShiftedStages();
    return;
  }
  if (info.extents.empty()) {  // a reduction here is of one value
    InitAccumulators(info, 1);
    EmitOps(info);
    FinishAccumulators(info);
    return;
  }
  InitAccumulators(info, Unroll(info));
  EmitInnerFrom(info, 0);
  FinishAccumulators(info);
}

unsigned KernelEmitter::Unroll(const StageInfo& info) const {
  return schedule_.has_rows() ? rows_.unroll(static_cast<int>(&info - stages_.data())) : 1;
}

void KernelEmitter::EmitInnerFrom(const StageInfo& info, uint32_t level) {
  const uint32_t variable = kernel_.outer_size() + level;
  const bool last = level + 1 == info.extents.size();
  if (last && info.has_scan) InitScans(info);
  const unsigned unroll = accumulators_.empty() ? 1 : accumulators_[0].value.size();
  if (last && kernel_.schedule().vector_dim() == v1::VECTOR_INNER_LAST && !info.has_scan) {
    VectorLoop(variable, I64(0), info.extents[level], unroll, [&] { EmitOps(info); });
    return;
  }
  InnerLoop(info, level, [&](llvm::Value* i) {
    variables_[variable] = i;
    if (last) {
      EmitOps(info);
      AddToTotals(i, 1, info.extents[level]);
      return;
    }
    EmitInnerFrom(info, level + 1);
    if (level + 2 == info.extents.size()) AddRunToTotals(info, unroll);
  });
}

void KernelEmitter::InnerLoop(const StageInfo& info, uint32_t level,
                              absl::FunctionRef<void(llvm::Value*)> body) {
  ScalarLoop(I64(0), info.extents[level], I64(1), "inner", body);
}

void KernelEmitter::EmitOps(const StageInfo& info) {
  for (int k = 0; k < info.stage->ops_size(); ++k) {
    if (MayLoadFirst(info.stage->ops(k))) EmitOp(info.first_op + k, info.stage->ops(k));
  }
  for (int k = 0; k < info.stage->ops_size(); ++k) {
    const uint32_t id = info.first_op + k;
    if (MayLoadFirst(info.stage->ops(k)) || skipped_[id] || ReadKeptValue(id)) continue;
    EmitOp(id, info.stage->ops(k));
    KeepValue(id);
  }
}

// On a GPU all loads stand before the first branch of a function's (sines of large arguments), so that they
// are in flight at once.
bool KernelEmitter::MayLoadFirst(const v1::LoopOp& op) const {
  return on_gpu_ && op.args_size() == 0 && IsSourceLoad(op);
}

void KernelEmitter::EmitOp(uint32_t id, const v1::LoopOp& op) {
  const auto opcode = static_cast<LoopOpcode>(op.op());
  switch (opcode) {
    case LoopOpcode::kConstant: values_[id] = {EmitConstant(op), false}; return;
    case LoopOpcode::kIndexExpr: values_[id] = IndexValue(op.index()); return;
    case LoopOpcode::kLoad: values_[id] = EmitLoad(op); return;
    case LoopOpcode::kStore: EmitStore(op); return;
    case LoopOpcode::kCheckIndex: values_[id] = EmitCheckIndex(id, op); return;
    case LoopOpcode::kReduce: EmitReduce(id, op); return;
    case LoopOpcode::kScan: values_[id] = EmitScan(id, op); return;
    default: break;
  }
  if (llvm::Value* mask = ComparePosition(op)) {
    values_[id] = {mask, true};
    return;
  }
  bool vector = false;
  for (uint32_t arg : op.args()) vector |= values_[arg].vector;
  llvm::SmallVector<llvm::Value*, 3> args;
  for (uint32_t arg : op.args()) args.push_back(vector ? Broadcast(values_[arg]) : values_[arg].v);
  // A value that is the same in all lanes is computed once.
  const unsigned lanes = lanes_;
  llvm::Value* mask = mask_;
  if (!vector) {
    lanes_ = 1;
    mask_ = nullptr;
  }
  values_[id] = {EmitPointwise(id, op, args), vector};
  lanes_ = lanes;
  mask_ = mask;
}

// Rotated: what does not change inside is known to run and can be hoisted.
llvm::Instruction* KernelEmitter::ScalarLoop(llvm::Value* lo, llvm::Value* hi, llvm::Value* step,
                                             const char* name, absl::FunctionRef<void(llvm::Value*)> body) {
  llvm::Value* enters = b_.CreateICmpSLT(lo, hi);
  if (auto* known = llvm::dyn_cast<llvm::ConstantInt>(enters); known && known->isZero()) return nullptr;
  llvm::BasicBlock* before = b_.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(context_, name, function_);
  auto* exit = llvm::BasicBlock::Create(context_, absl::StrCat(name, ".end"), function_);
  b_.CreateCondBr(enters, loop, exit);
  b_.SetInsertPoint(loop);
  llvm::PHINode* i = b_.CreatePHI(b_.getInt64Ty(), 2, absl::StrCat(name, ".i"));
  i->addIncoming(lo, before);
  body(i);
  llvm::Value* next = b_.CreateNSWAdd(i, step);
  i->addIncoming(next, b_.GetInsertBlock());
  llvm::Instruction* back = b_.CreateCondBr(b_.CreateICmpSLT(next, hi), loop, exit);
  b_.SetInsertPoint(exit);
  return back;
}

// Full vectors, `unroll` at a time, then what is left with a mask.
void KernelEmitter::VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll,
                               Body body) {
  if (vector_lanes_ == 1) {
    ScalarLoop(lo, hi, I64(1), "scalar", [&](llvm::Value* i) {
      variables_[variable] = i;
      body();
      AddToTotals(b_.CreateNSWSub(i, lo), 1, b_.CreateNSWSub(hi, lo));
    });
    return;
  }
  const int64_t width = vector_lanes_;
  llvm::Value* count = b_.CreateNSWSub(hi, lo);
  if (auto* known = llvm::dyn_cast<llvm::ConstantInt>(count)) {
    while (unroll > 1 && known->getSExtValue() < width * unroll) unroll /= 2;
  }
  llvm::Value* rest = b_.CreateURem(count, I64(width * unroll));
  llvm::Value* full_end = b_.CreateNSWSub(hi, rest, "full");
  lanes_ = vector_lanes_;
  vector_variable_ = variable;
  vector_begin_ = lo;
  ScalarLoop(lo, full_end, I64(width * unroll), "vector", [&](llvm::Value* i) {
    unrolled_ = unroll % 2 == 0;
    for (copy_ = 0; copy_ < unroll; ++copy_) {
      variables_[variable] = copy_ == 0 ? i : b_.CreateNSWAdd(i, I64(copy_ * width));
      body();
    }
    copy_ = 0;
    unrolled_ = false;
    TestForNans();
    AddToTotals(b_.CreateNSWSub(i, lo), width * unroll, count);
  });
  const auto masked = [&](llvm::Value* i) { MaskedVector(variable, i, hi, body); };
  if (unroll == 1) {
    If(b_.CreateICmpSLT(full_end, hi), "tail", [&] { masked(full_end); });
  } else {
    ScalarLoop(full_end, hi, I64(width), "tail", masked);
  }
  lanes_ = 1;
  vector_variable_ = kNoVariable;
  vector_begin_ = nullptr;
}

void KernelEmitter::MaskedVector(uint32_t variable, llvm::Value* i, llvm::Value* hi, Body body) {
  llvm::Type* i32 = b_.getInt32Ty();
  llvm::Value* left = b_.CreateTrunc(b_.CreateNSWSub(hi, i), i32);
  mask_ = b_.CreateICmpULT(LaneNumbers(i32), b_.CreateVectorSplat(lanes_, left), "mask");
  variables_[variable] = i;
  body();
  mask_ = nullptr;
}

void KernelEmitter::If(llvm::Value* condition, const char* name, Body body, bool rarely) {
  if (auto* known = llvm::dyn_cast<llvm::ConstantInt>(condition)) {
    if (!known->isZero()) body();
    return;
  }
  auto* then = llvm::BasicBlock::Create(context_, name, function_);
  auto* exit = llvm::BasicBlock::Create(context_, absl::StrCat(name, ".end"), function_);
  b_.CreateCondBr(condition, then, exit,
                  rarely ? llvm::MDBuilder(context_).createUnlikelyBranchWeights() : nullptr);
  b_.SetInsertPoint(then);
  body();
  b_.CreateBr(exit);
  b_.SetInsertPoint(exit);
}

// A stack slot in the entry block; those that hold one value become registers.
llvm::AllocaInst* KernelEmitter::Slot(llvm::Type* type, const char* name) {
  llvm::BasicBlock& entry = function_->getEntryBlock();
  llvm::IRBuilder<> at_entry(&entry, entry.begin());
  return at_entry.CreateAlloca(type, nullptr, name);
}

llvm::Type* KernelEmitter::ScalarType(v1::DType dtype) {
  switch (dtype) {
    case v1::BOOL: return b_.getInt1Ty();
    case v1::U8:
    case v1::I8: return b_.getInt8Ty();
    case v1::I16:
    case v1::F16:
    case v1::BF16: return b_.getInt16Ty();
    case v1::I32: return b_.getInt32Ty();
    case v1::I64: return b_.getInt64Ty();
    case v1::F32: return b_.getFloatTy();
    case v1::F64: return b_.getDoubleTy();
    default:
      Fail(absl::UnimplementedError(
          absl::StrCat("unsupported: loop values of dtype ", v1::DType_Name(dtype))));
      return b_.getInt32Ty();
  }
}

llvm::Type* KernelEmitter::MemoryType(v1::DType dtype) {
  return dtype == v1::BOOL ? b_.getInt8Ty() : ScalarType(dtype);
}

llvm::Type* KernelEmitter::Wide(llvm::Type* scalar) const {
  return lanes_ == 1 ? scalar : llvm::FixedVectorType::get(scalar, lanes_);
}

llvm::Value* KernelEmitter::Splat(llvm::Value* scalar) {
  return lanes_ == 1 ? scalar : b_.CreateVectorSplat(lanes_, scalar);
}

llvm::Value* KernelEmitter::Broadcast(LaneValue value) { return value.vector ? value.v : Splat(value.v); }

llvm::Value* KernelEmitter::LaneNumbers(llvm::Type* scalar) {
  llvm::SmallVector<llvm::Constant*, 64> numbers;
  for (unsigned lane = 0; lane < lanes_; ++lane) numbers.push_back(llvm::ConstantInt::get(scalar, lane));
  return lanes_ == 1 ? numbers[0] : llvm::ConstantVector::get(numbers);
}

llvm::Value* KernelEmitter::Any(llvm::Value* mask) {
  auto* type = llvm::dyn_cast<llvm::FixedVectorType>(mask->getType());
  if (type == nullptr) return mask;
  llvm::Value* bits = b_.CreateBitCast(mask, b_.getIntNTy(type->getNumElements()));
  return b_.CreateICmpNE(bits, llvm::ConstantInt::get(bits->getType(), 0), "any");
}

llvm::ConstantInt* KernelEmitter::I64(int64_t v) { return b_.getInt64(static_cast<uint64_t>(v)); }

}  // namespace kiln
