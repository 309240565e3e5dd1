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
    : KernelEmitter(kernel, target, module, nullptr, nullptr, nullptr) {}

KernelEmitter::KernelEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module,
                             FailureEmitter* failure, MemoryEmitter* memory, SharedReduction* shared)
    : k_(kernel, target, module),
      at_(&k_.b, k_.facts.ops().size()),
      ops_(&k_, &at_, &index_, failure == nullptr ? &cpu_failure_ : failure),
      memory_(memory == nullptr ? vector_memory_ : *memory),
      reductions_(&k_, &at_, shared),
      schedule_(kernel.schedule().vectors()),
      rows_(schedule_.rows()),
      skipped_(SkippedOps(k_.facts, rows_)) {}

absl::Status KernelEmitter::Emit() {
  if (!k_.facts.ExpressionsFit()) {
    return absl::UnimplementedError("unsupported: an index expression of too many terms");
  }
  UseSchedule();
  if (!k_.status.ok()) return k_.status;
  EmitEntry();
  EmitUnits();
  vector_memory_.EndStreams();
  b_.CreateRet(b_.getInt32(KILN_OK));
  return k_.status;
}

void KernelEmitter::UseSchedule() {
  at_.vector_lanes = schedule_.lanes();
  tiled_ = schedule_.has_tile();
  for (const uint32_t load : schedule_.tile().packed()) packable_.push_back(k_.facts.ops()[load]);
}

void KernelEmitter::EmitEntry() {
  llvm::Type* ptr = b_.getPtrTy();
  llvm::Type* i64 = b_.getInt64Ty();
  auto* type = llvm::FunctionType::get(b_.getInt32Ty(), {ptr, i64, i64, b_.getInt32Ty()}, false);
  auto* function =
      llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, kKernelEntryName, k_.module);
  function->setVisibility(llvm::GlobalValue::HiddenVisibility);
  llvm::Value* args = function->getArg(0);
  begin_ = function->getArg(1);
  end_ = function->getArg(2);
  args->setName("args");
  begin_->setName("begin");
  end_->setName("end");
  b_.SetInsertPoint(llvm::BasicBlock::Create(b_.getContext(), "entry", function));

  const auto invariant_load = [&](llvm::Type* load_type, llvm::Value* from, size_t bytes,
                                  const llvm::Twine& name) {
    llvm::LoadInst* load = b_.CreateAlignedLoad(
        load_type, b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), from, bytes), llvm::Align(8), name);
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(b_.getContext(), {}));
    return load;
  };
  llvm::Value* table = invariant_load(ptr, args, offsetof(KilnArgs, buffers), "buffers");
  for (int k = 0; k < k_.kernel.buffers_size(); ++k) {
    k_.buffers.push_back(invariant_load(ptr, table, 8 * k, absl::StrCat("b", k)));
  }
  if (k_.kernel.symbol_count() > 0) {
    llvm::Value* symbols = invariant_load(ptr, args, offsetof(KilnArgs, symbols), "symbols");
    for (uint32_t k = 0; k < k_.kernel.symbol_count(); ++k) {
      k_.symbols.push_back(invariant_load(i64, symbols, 8 * k, absl::StrCat("s", k)));
    }
  }
  EmitExtents();
  vector_memory_.EmitConditions();
  UseRowCache();
  UseShiftedReduction();
  UseRowPipeline();
}

void KernelEmitter::EmitExtents() {
  memory_.Enter();
  for (uint32_t extent : k_.kernel.outer()) k_.outer_extents.push_back(index_.Scalar(extent));
  for (StageInfo& info : k_.stages) {
    for (uint32_t extent : info.stage->inner()) info.extents.push_back(index_.Scalar(extent));
  }
}

// Units are the points of the parallel loops, the last one in chunks.
void KernelEmitter::EmitUnits() {
  const uint32_t parallel = k_.kernel.schedule().parallel_dims();
  at_.variables.assign(k_.kernel.outer_size(), nullptr);
  if (parallel == 0) {
    b_.If(b_.CreateICmpSLT(begin_, end_), "unit", [&] { EmitOuterFrom(0); });
    return;
  }
  llvm::Value* chunk = b_.I64(std::max<uint32_t>(1, k_.kernel.schedule().chunk()));
  llvm::Value* extent = k_.outer_extents[parallel - 1];
  const auto clamp = [&](llvm::Value* v) { return b_.CreateSelect(b_.CreateICmpSLT(v, extent), v, extent); };
  if (parallel == 1) {  // neighbouring units are one range
    EmitOuterRange(0, clamp(b_.CreateNSWMul(begin_, chunk)), clamp(b_.CreateNSWMul(end_, chunk)));
    return;
  }
  llvm::Value* chunks = b_.CreateUDiv(b_.CreateAdd(extent, b_.CreateSub(chunk, b_.I64(1))), chunk, "chunks");
  b_.ScalarLoop(begin_, end_, b_.I64(1), "unit", [&](llvm::Value* unit) {
    llvm::Value* rest = b_.CreateUDiv(unit, chunks);
    llvm::Value* lo = b_.CreateNSWMul(b_.CreateURem(unit, chunks), chunk, "lo");
    for (int k = static_cast<int>(parallel) - 2; k >= 0; --k) {
      at_.variables[k] = k == 0 ? rest : b_.CreateURem(rest, k_.outer_extents[k]);
      if (k > 0) rest = b_.CreateUDiv(rest, k_.outer_extents[k]);
    }
    EmitOuterRange(parallel - 1, lo, clamp(b_.CreateNSWAdd(lo, chunk)));
  });
}

void KernelEmitter::EmitOuterFrom(uint32_t loop) {
  if (loop == static_cast<uint32_t>(k_.kernel.outer_size())) {
    EmitStages();
    return;
  }
  EmitOuterRange(loop, b_.I64(0), k_.outer_extents[loop]);
}

void KernelEmitter::EmitOuterRange(uint32_t loop, llvm::Value* lo, llvm::Value* hi) {
  const bool last = loop + 1 == static_cast<uint32_t>(k_.kernel.outer_size());
  if (last && k_.kernel.schedule().vector_dim() == v1::VECTOR_OUTER_LAST) {
    VectorLoop(loop, lo, hi, 1, [&] { EmitStages(); });
    return;
  }
  if (last && !pipeline_.passes.empty()) {
    EmitPipeline(lo, hi);
    return;
  }
  if (loop + 2 == static_cast<uint32_t>(k_.kernel.outer_size()) && tiled_) {
    EmitTiles(loop, lo, hi);
    return;
  }
  b_.ScalarLoop(lo, hi, b_.I64(1), "outer", [&](llvm::Value* i) {
    at_.variables[loop] = i;
    EmitOuterFrom(loop + 1);
  });
}

void KernelEmitter::EmitStages() {
  for (const StageInfo& info : k_.stages) {
    if (IsDoneShifted(info)) continue;
    at_.stage = &info;
    EmitStage(info);
  }
}

void KernelEmitter::EmitStage(const StageInfo& info) {
  at_.variables.resize(k_.kernel.outer_size() + info.extents.size());
  if (shifted_ && shifted_->first == &info) {
    EmitShiftedStages();
    return;
  }
  if (info.extents.empty()) {  // a reduction here is of one value
    reductions_.Init(info, 1);
    EmitOps(info);
    reductions_.Finish(info);
    return;
  }
  reductions_.Init(info, Unroll(info));
  EmitInnerFrom(info, 0);
  reductions_.Finish(info);
}

unsigned KernelEmitter::Unroll(const StageInfo& info) const {
  return schedule_.has_rows() ? rows_.unroll(k_.NumberOf(info)) : 1;
}

void KernelEmitter::EmitInnerFrom(const StageInfo& info, uint32_t level) {
  const uint32_t variable = k_.kernel.outer_size() + level;
  const bool last = level + 1 == info.extents.size();
  if (last && info.has_scan) reductions_.InitScans(info);
  const unsigned unroll = reductions_.copies();
  if (last && k_.kernel.schedule().vector_dim() == v1::VECTOR_INNER_LAST && !info.has_scan) {
    VectorLoop(variable, b_.I64(0), info.extents[level], unroll, [&] { EmitOps(info); });
    return;
  }
  InnerLoop(info, level, [&](llvm::Value* i) {
    at_.variables[variable] = i;
    if (last) {
      EmitOps(info);
      reductions_.AddToTotals(i, 1, info.extents[level]);
      return;
    }
    EmitInnerFrom(info, level + 1);
    if (level + 2 == info.extents.size()) reductions_.AddRunToTotals(info, unroll);
  });
}

void KernelEmitter::InnerLoop(const StageInfo& info, uint32_t level,
                              absl::FunctionRef<void(llvm::Value*)> body) {
  b_.ScalarLoop(b_.I64(0), info.extents[level], b_.I64(1), "inner", body);
}

void KernelEmitter::EmitStore(const v1::LoopOp& op) { memory_.Store(op); }

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
  return k_.on_gpu && op.args_size() == 0 && k_.facts.IsSourceLoad(op);
}

void KernelEmitter::EmitOp(uint32_t id, const v1::LoopOp& op) {
  switch (static_cast<LoopOpcode>(op.op())) {
    case LoopOpcode::kLoad: at_.values[id] = memory_.Load(op); return;
    case LoopOpcode::kStore: EmitStore(op); return;
    case LoopOpcode::kReduce: reductions_.Reduce(id, op); return;
    case LoopOpcode::kScan: at_.values[id] = reductions_.Scan(id, op); return;
    default: break;
  }
  if (const LaneValue value = EmitAboutShift(id, op); value.v != nullptr) {
    at_.values[id] = value;
    return;
  }
  at_.values[id] = ops_.Value(id, op);
}

// Full vectors, `unroll` at a time, then what is left with a mask.
void KernelEmitter::VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll,
                               Body body) {
  if (at_.vector_lanes == 1) {
    b_.ScalarLoop(lo, hi, b_.I64(1), "scalar", [&](llvm::Value* i) {
      at_.variables[variable] = i;
      body();
      reductions_.AddToTotals(b_.CreateNSWSub(i, lo), 1, b_.CreateNSWSub(hi, lo));
    });
    return;
  }
  const int64_t width = at_.vector_lanes;
  llvm::Value* count = b_.CreateNSWSub(hi, lo);
  if (auto* known = llvm::dyn_cast<llvm::ConstantInt>(count)) {
    while (unroll > 1 && known->getSExtValue() < width * unroll) unroll /= 2;
  }
  llvm::Value* rest = b_.CreateURem(count, b_.I64(width * unroll));
  llvm::Value* full_end = b_.CreateNSWSub(hi, rest, "full");
  at_.lanes = at_.vector_lanes;
  at_.vector_variable = variable;
  at_.vector_begin = lo;
  b_.ScalarLoop(lo, full_end, b_.I64(width * unroll), "vector", [&](llvm::Value* i) {
    at_.unrolled = unroll % 2 == 0;
    for (at_.copy = 0; at_.copy < unroll; ++at_.copy) {
      at_.variables[variable] = at_.copy == 0 ? i : b_.CreateNSWAdd(i, b_.I64(at_.copy * width));
      body();
    }
    at_.copy = 0;
    at_.unrolled = false;
    reductions_.TestForNans();
    reductions_.AddToTotals(b_.CreateNSWSub(i, lo), width * unroll, count);
  });
  const auto masked = [&](llvm::Value* i) { MaskedVector(variable, i, hi, body); };
  if (unroll == 1) {
    b_.If(b_.CreateICmpSLT(full_end, hi), "tail", [&] { masked(full_end); });
  } else {
    b_.ScalarLoop(full_end, hi, b_.I64(width), "tail", masked);
  }
  at_.lanes = 1;
  at_.vector_variable = LoopState::kNoVariable;
  at_.vector_begin = nullptr;
}

void KernelEmitter::MaskedVector(uint32_t variable, llvm::Value* i, llvm::Value* hi, Body body) {
  llvm::Type* i32 = b_.getInt32Ty();
  llvm::Value* left = b_.CreateTrunc(b_.CreateNSWSub(hi, i), i32);
  at_.mask = b_.CreateICmpULT(at_.LaneNumbers(i32), b_.CreateVectorSplat(at_.lanes, left), "mask");
  at_.variables[variable] = i;
  body();
  at_.mask = nullptr;
}

}  // namespace kiln
