#include "compiler/codegen/shifted_reduction_emitter.h"

#include <cmath>
#include <limits>
#include <vector>

namespace kiln {
namespace {

// How far the estimate may lie below a maximum: an exponent's error is its last place's, times the
// exponential.
constexpr double kExponentMax = 16;
// The largest ratio of the squared distance of mean and estimate to the variance: the sum of squares about
// the estimate is at most 1 + kSquaresMax times what the subtraction leaves, the one about the mean.
constexpr double kSquaresMax = 4;

llvm::Constant* Constant(llvm::Type* type, double v) { return llvm::ConstantFP::get(type, v); }

}  // namespace

ShiftedReductionEmitter::ShiftedReductionEmitter(KernelContext* context, LoopState* state,
                                                 StageEmitter* stages, ReduceEmitter* reductions,
                                                 RowCacheEmitter* cache)
    : k_(*context),
      at_(*state),
      b_(k_.b),
      stages_(*stages),
      reductions_(*reductions),
      cache_(*cache),
      shifted_(k_.kernel.schedule().vectors().rows().shifted()) {
  if (!k_.kernel.schedule().vectors().rows().has_shifted()) return;
  first_ = &k_.StageOf(shifted_.reduced());
  second_ = &k_.StageOf(shifted_.sum());
}

// From the first vector: its mean, 0 if that is not finite, or its maximum, the lowest finite number if that
// is -inf.
llvm::Value* ShiftedReductionEmitter::Estimate() {
  const StageInfo& info = *first_;
  at_.stage = &info;
  at_.variables.resize(k_.kernel.outer_size() + 1);
  reductions_.Init(info, 1);
  stages_.VectorLoop(k_.kernel.outer_size(), b_.I64(0), b_.I64(at_.vector_lanes), 1,
                     [&] { stages_.Ops(info); });
  reductions_.Finish(info);
  llvm::Type* type = b_.getFloatTy();
  llvm::Value* found = at_.values[shifted_.reduced()].v;
  llvm::Value* origin;
  if (shifted_.of_mean()) {
    llvm::Value* mean = b_.CreateFMul(found, llvm::ConstantFP::get(type, 1.0 / at_.vector_lanes));
    llvm::Value* finite = b_.CreateFCmpORD(b_.CreateFSub(mean, mean), mean);
    origin = b_.CreateSelect(finite, mean, llvm::ConstantFP::get(type, 0.0));
  } else {
    llvm::Value* none = b_.CreateFCmpOEQ(found, llvm::ConstantFP::getInfinity(type, true));
    llvm::Constant* lowest = llvm::ConstantFP::get(type, std::numeric_limits<float>::lowest());
    origin = b_.CreateSelect(none, lowest, found);
  }
  at_.values[shifted_.center()] = {origin, false};
  return origin;
}

void ShiftedReductionEmitter::Ops() {
  if (!shifted_.of_mean()) {
    at_.stage = first_;
    stages_.Ops(*at_.stage);
  }
  at_.stage = second_;
  stages_.Ops(*at_.stage);
  if (shifted_.of_mean()) {
    const v1::LoopOp& sum = k_.facts.op(shifted_.reduced());
    at_.values[sum.args(0)] = at_.values[shifted_.difference()];
    reductions_.Reduce(shifted_.reduced(), sum);
  }
}

void ShiftedReductionEmitter::Init(unsigned unroll) {
  reductions_.Init(*first_, unroll);
  reductions_.Init(*second_, unroll);
}

ShiftedReductionEmitter::Settled ShiftedReductionEmitter::SettleSquares(llvm::Value* origin,
                                                                        llvm::Value* found,
                                                                        llvm::Value* count) {
  llvm::Type *f32 = b_.getFloatTy(), *f64 = b_.getDoubleTy();
  const auto wide = [&](llvm::Value* v) { return b_.CreateFPExt(v, f64); };
  llvm::Value* center = at_.values[shifted_.center()].v;
  llvm::Value* sum = at_.values[shifted_.sum()].v;
  llvm::Value* d = b_.CreateFSub(wide(center), wide(origin));
  llvm::Value* times = b_.CreateFMul(count, d);
  llvm::Value* less = b_.CreateFMul(d, b_.CreateFSub(b_.CreateFMul(Constant(f64, 2), wide(found)), times));
  llvm::Value* squares = b_.CreateFSub(wide(sum), less);
  llvm::Value* misfit =
      b_.CreateFCmpOGT(b_.CreateFMul(times, d), b_.CreateFMul(Constant(f64, kSquaresMax), squares));
  return {misfit, b_.CreateFPTrunc(squares, f32)};
}

ShiftedReductionEmitter::Settled ShiftedReductionEmitter::SettleExponentials(llvm::Value* origin,
                                                                             llvm::Value* unshift) {
  llvm::Type* f32 = b_.getFloatTy();
  llvm::Value* center = at_.values[shifted_.center()].v;
  llvm::Value* none = b_.CreateFCmpOEQ(center, llvm::ConstantFP::getInfinity(f32, true));
  llvm::Value* misfit = b_.CreateFCmpOGT(b_.CreateFSub(center, origin), Constant(f32, kExponentMax));
  misfit = b_.CreateOr(none, misfit);
  llvm::Value* scale = k_.math.Emit(b_, LoopOpcode::kExp, {b_.CreateFSub(origin, center)});
  if (cache_.scale() != nullptr) {  // of exponentials that are kept with a shift
    scale = b_.CreateFMul(scale, unshift);
    b_.CreateStore(b_.CreateSelect(misfit, unshift, scale), cache_.scale());
  }
  return {misfit, b_.CreateFMul(at_.values[shifted_.sum()].v, scale)};
}

void ShiftedReductionEmitter::Settle(llvm::Value* origin) {
  reductions_.Finish(*first_);
  reductions_.Finish(*second_);
  llvm::Type *f32 = b_.getFloatTy(), *f64 = b_.getDoubleTy();
  const auto wide = [&](llvm::Value* v) { return b_.CreateFPExt(v, f64); };
  llvm::Value* found = at_.values[shifted_.reduced()].v;
  llvm::Value* count = b_.CreateSIToFP(first_->extents[0], f64);
  if (shifted_.of_mean()) {
    llvm::Value* all = b_.CreateFAdd(wide(found), b_.CreateFMul(count, wide(origin)));
    at_.values[shifted_.reduced()].v = b_.CreateFPTrunc(all, f32);
  }
  for (const StageInfo* info = first_ + 1; info < second_; ++info) stages_.Stage(*info);
  llvm::Value* unshift = Constant(f32, std::ldexp(1.0, -k_.math.ExpBelowShift()));
  const Settled settled =
      shifted_.of_mean() ? SettleSquares(origin, found, count) : SettleExponentials(origin, unshift);
  llvm::AllocaInst* result = b_.Slot(f32, "settled");
  b_.CreateStore(settled.sum, result);
  const std::vector<LaneValue> values = at_.values;
  std::vector<Accumulator> others;  // of passes beside this one
  reductions_.Swap(&others);
  const auto pass_again = [&] {
    stages_.Stage(*second_);
    llvm::Value* again = at_.values[shifted_.sum()].v;
    b_.CreateStore(cache_.scale() == nullptr ? again : b_.CreateFMul(again, unshift), result);
  };
  b_.If(settled.misfit, "again", pass_again, /*rarely=*/true);
  reductions_.Swap(&others);
  at_.values = values;
  at_.values[shifted_.sum()] = {b_.CreateLoad(f32, result), false};
}

void ShiftedReductionEmitter::Stage(const StageInfo& info) {
  if (!IsFirst(info)) {
    stages_.Stage(info);
    return;
  }
  llvm::Value* origin = Estimate();
  Init(stages_.Unroll(*second_));
  stages_.VectorLoop(k_.kernel.outer_size(), b_.I64(0), first_->extents[0], stages_.SideBySide(*second_),
                     [&] { Ops(); });
  Settle(origin);
}

}  // namespace kiln
