#include "compiler/codegen/stage_emitter.h"

#include "compiler/codegen/row_cache_emitter.h"
#include "compiler/schedule/row_pipeline.h"
#include "compiler/schedule/thread_walk.h"

namespace kiln {

void StageEmitter::Stage(const StageInfo& info) {
  at_.stage = &info;
  at_.variables.resize(k_.kernel.outer_size() + info.extents.size());
  if (info.extents.empty()) {  // a reduction here is of one value
    reductions_.Init(info, 1);
    Ops(info);
  } else {
    reductions_.Init(info, Unroll(info));
    InnerFrom(info, 0);
  }
  reductions_.Finish(info);
}

unsigned StageEmitter::Unroll(const StageInfo& info) const {
  const v1::VectorSchedule& schedule = k_.kernel.schedule().vectors();
  return schedule.has_rows() ? schedule.rows().unroll(k_.NumberOf(info)) : 1;
}

unsigned StageEmitter::SideBySide(const StageInfo& info) const {
  return VectorsSideBySide(k_.facts, k_.kernel.schedule().vectors(), info, Unroll(info));
}

void StageEmitter::InnerFrom(const StageInfo& info, uint32_t level) {
  const uint32_t variable = k_.kernel.outer_size() + level;
  const bool last = level + 1 == info.extents.size();
  if (last && info.has_scan) reductions_.InitScans(info);
  if (last && k_.kernel.schedule().vector_dim() == v1::VECTOR_INNER_LAST && !info.has_scan) {
    VectorLoop(variable, b_.I64(0), info.extents[level], SideBySide(info), [&] { Ops(info); });
    return;
  }
  InnerLoop(info, level, [&](llvm::Value* i) {
    at_.variables[variable] = i;
    if (last) {
      Ops(info);
      reductions_.AddToTotals(i, 1, info.extents[level]);
      return;
    }
    InnerFrom(info, level + 1);
    if (level + 2 == info.extents.size()) reductions_.AddRunToTotals(info, Unroll(info));
  });
}

void StageEmitter::InnerLoop(const StageInfo& info, uint32_t level, LoopBody body) {
  b_.ScalarLoop(b_.I64(0), info.extents[level], b_.I64(1), "inner", body);
}

void StageEmitter::Ops(const StageInfo& info) {
  for (int k = 0; k < info.stage->ops_size(); ++k) {
    if (IsLoadedFirst(info.stage->ops(k))) Op(info.first_op + k, info.stage->ops(k));
  }
  for (int k = 0; k < info.stage->ops_size(); ++k) {
    const v1::LoopOp& op = info.stage->ops(k);
    const uint32_t id = info.first_op + k;
    if (IsLoadedFirst(op) || ReadKept(id)) continue;
    Op(id, op);
    if (cache_ != nullptr) cache_->Keep(id);
  }
}

bool StageEmitter::IsLoadedFirst(const v1::LoopOp& op) const {
  return k_.kernel.schedule().threads().loads_first() && MayLoadFirst(k_.facts, op);
}

// Of an op that nothing asks for, nothing.
bool StageEmitter::ReadKept(uint32_t id) {
  if (cache_ == nullptr) return false;
  if (cache_->Skips(id)) return true;
  const LaneValue kept = cache_->Read(id);
  if (kept.v != nullptr) at_.values[id] = kept;
  return kept.v != nullptr;
}

void StageEmitter::Op(uint32_t id, const v1::LoopOp& op) {
  switch (static_cast<LoopOpcode>(op.op())) {
    case LoopOpcode::kLoad: at_.values[id] = Load(op); return;
    case LoopOpcode::kStore: Store(op); return;
    case LoopOpcode::kReduce: reductions_.Reduce(id, op); return;
    case LoopOpcode::kScan: at_.values[id] = reductions_.Scan(id, op); return;
    default: break;
  }
  const LaneValue value = cache_ == nullptr ? LaneValue{} : cache_->AboutEstimate(id, op);
  at_.values[id] = value.v != nullptr ? value : ops_.Value(id, op);
}

void StageEmitter::VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll,
                              CodeBody body) {
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

void StageEmitter::MaskedVector(uint32_t variable, llvm::Value* i, llvm::Value* hi, CodeBody body) {
  llvm::Type* i32 = b_.getInt32Ty();
  llvm::Value* left = b_.CreateTrunc(b_.CreateNSWSub(hi, i), i32);
  at_.mask = b_.CreateICmpULT(at_.LaneNumbers(i32), b_.CreateVectorSplat(at_.lanes, left), "mask");
  at_.variables[variable] = i;
  body();
  at_.mask = nullptr;
}

}  // namespace kiln
