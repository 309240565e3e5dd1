// Two sums over a row in one pass, the second of which asks for the first.
//
// A softmax subtracts a row's maximum before each exponential, so that none overflows; a variance is the sum
// of squares of what a row's mean is subtracted from. Either walks the row once for little else than to read
// it, from memory or the second-level cache. Any number nearby does as well, since
//   sum e^(x - m) = e^(g - m) sum e^(x - g)   and   sum (x - c)² = sum (x - g)² - d (2 sum (x - g) - n d), d
//   = c - g:
// the row's first vector gives a guess g, and one pass sums up both and finds what m or c is on the way.
// Where that turns out to lie so far from g that exponentials may have overflowed, or digits were lost, the
// second pass is made after all. The row's own values decide all of it, so results don't depend on threads.
//
// What is special comes out as two passes have it. Rows of -inf have the second pass; infinities beside
// numbers have it too, or their sum is NaN at once; a mean that is infinite or NaN is guessed to
// be 0.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "compiler/codegen/kernel_emitter.h"

namespace kiln {
namespace {

// How far the guess may lie below a maximum: an exponent's error is its last place's, times the exponential.
constexpr double kExponentMax = 16;
// How often the variance the square of the guess' distance may be: the sum of squares is so many times larger
// than what is left of it.
constexpr double kSquaresMax = 4;

}  // namespace

void KernelEmitter::UseShiftedReduction() {
  if (!rows_.has_shifted()) return;
  shifted_ = {.first = &k_.StageOf(rows_.shifted().reduced()), .second = &k_.StageOf(rows_.shifted().sum())};
  const bool keeps =
      rows_.has_cache() && rows_.cache().writer() == k_.facts.op(rows_.shifted().sum()).args(0);
  if (keeps) shifted_->scale = b_.Slot(b_.getFloatTy(), "scale");
}

bool KernelEmitter::IsDoneShifted(const StageInfo& info) const {
  return shifted_ && &info > shifted_->first && &info <= shifted_->second;
}

// From the row's first vector. Of a maximum it is no more than that, and never less than all numbers are. It
// becomes the second stage's center.
llvm::Value* KernelEmitter::EmitShift() {
  const StageInfo& info = *shifted_->first;
  at_.stage = &info;
  at_.variables.resize(k_.kernel.outer_size() + 1);
  reductions_.Init(info, 1);
  VectorLoop(k_.kernel.outer_size(), b_.I64(0), b_.I64(at_.vector_lanes), 1, [&] { EmitOps(info); });
  reductions_.Finish(info);
  llvm::Type* type = b_.getFloatTy();
  llvm::Value* found = at_.values[rows_.shifted().reduced()].v;
  llvm::Value* origin;
  if (rows_.shifted().of_mean()) {
    llvm::Value* mean = b_.CreateFMul(found, llvm::ConstantFP::get(type, 1.0 / at_.vector_lanes));
    llvm::Value* finite = b_.CreateFCmpORD(b_.CreateFSub(mean, mean), mean);
    origin = b_.CreateSelect(finite, mean, llvm::ConstantFP::get(type, 0.0));
  } else {
    llvm::Value* none = b_.CreateFCmpOEQ(found, llvm::ConstantFP::getInfinity(type, true));
    llvm::Constant* lowest = llvm::ConstantFP::get(type, std::numeric_limits<float>::lowest());
    origin = b_.CreateSelect(none, lowest, found);
  }
  at_.values[rows_.shifted().center()] = {origin, false};
  return origin;
}

// In a loop along the row, in which what is guessed is the second stage's center.
void KernelEmitter::EmitShiftedOps() {
  if (!rows_.shifted().of_mean()) {
    at_.stage = shifted_->first;
    EmitOps(*at_.stage);
  }
  at_.stage = shifted_->second;
  EmitOps(*at_.stage);
  if (rows_.shifted().of_mean()) {
    const v1::LoopOp& sum = k_.facts.op(rows_.shifted().reduced());
    at_.values[sum.args(0)] = at_.values[rows_.shifted().difference()];
    reductions_.Reduce(rows_.shifted().reduced(), sum);
  }
}

void KernelEmitter::InitShifted(unsigned unroll) {
  reductions_.Init(*shifted_->first, unroll);
  reductions_.Init(*shifted_->second, unroll);
}

// After the pass from `origin`: what it reduced becomes what two passes have reduced, and the stages between
// are emitted.
void KernelEmitter::SettleShifted(llvm::Value* origin) {
  reductions_.Finish(*shifted_->first);
  reductions_.Finish(*shifted_->second);
  llvm::Type *f32 = b_.getFloatTy(), *f64 = b_.getDoubleTy();
  const auto wide = [&](llvm::Value* v) { return b_.CreateFPExt(v, f64); };
  const auto constant = [](llvm::Type* type, double v) { return llvm::ConstantFP::get(type, v); };
  llvm::Value* found = at_.values[rows_.shifted().reduced()].v;
  llvm::Value* count = b_.CreateSIToFP(shifted_->first->extents[0], f64);
  if (rows_.shifted().of_mean()) {
    llvm::Value* all = b_.CreateFAdd(wide(found), b_.CreateFMul(count, wide(origin)));
    at_.values[rows_.shifted().reduced()].v = b_.CreateFPTrunc(all, f32);
  }
  llvm::Value* sum = at_.values[rows_.shifted().sum()].v;
  for (const StageInfo* info = shifted_->first + 1; info < shifted_->second; ++info) {
    at_.stage = info;
    EmitStage(*info);
  }
  llvm::Value* center = at_.values[rows_.shifted().center()].v;
  llvm::Value* unshift = constant(f32, std::ldexp(1.0, -k_.math.ExpBelowShift()));
  llvm::Value *misfit, *settled;
  if (rows_.shifted().of_mean()) {
    llvm::Value* d = b_.CreateFSub(wide(center), wide(origin));
    llvm::Value* times = b_.CreateFMul(count, d);
    llvm::Value* less = b_.CreateFMul(d, b_.CreateFSub(b_.CreateFMul(constant(f64, 2), wide(found)), times));
    llvm::Value* squares = b_.CreateFSub(wide(sum), less);
    misfit = b_.CreateFCmpOGT(b_.CreateFMul(times, d), b_.CreateFMul(constant(f64, kSquaresMax), squares));
    settled = b_.CreateFPTrunc(squares, f32);
  } else {
    llvm::Value* none = b_.CreateFCmpOEQ(center, llvm::ConstantFP::getInfinity(f32, true));
    misfit = b_.CreateFCmpOGT(b_.CreateFSub(center, origin), constant(f32, kExponentMax));
    misfit = b_.CreateOr(none, misfit);
    llvm::Value* scale = k_.math.Emit(b_, LoopOpcode::kExp, {b_.CreateFSub(origin, center)});
    if (shifted_->scale != nullptr) {  // of exponentials that are kept with a shift
      scale = b_.CreateFMul(scale, unshift);
      b_.CreateStore(b_.CreateSelect(misfit, unshift, scale), shifted_->scale);
    }
    settled = b_.CreateFMul(sum, scale);
  }
  llvm::AllocaInst* result = b_.Slot(f32, "settled");
  b_.CreateStore(settled, result);
  const std::vector<LaneValue> values = at_.values;
  std::vector<Accumulator> others;  // of passes beside this one
  reductions_.Swap(&others);
  const auto pass_again = [&] {
    at_.stage = shifted_->second;
    EmitStage(*at_.stage);
    llvm::Value* again = at_.values[rows_.shifted().sum()].v;
    b_.CreateStore(shifted_->scale == nullptr ? again : b_.CreateFMul(again, unshift), result);
  };
  b_.If(misfit, "again", pass_again, /*rarely=*/true);
  reductions_.Swap(&others);
  at_.values = values;
  at_.values[rows_.shifted().sum()] = {b_.CreateLoad(f32, result), false};
}

void KernelEmitter::EmitShiftedStages() {
  llvm::Value* origin = EmitShift();
  const unsigned unroll = Unroll(*shifted_->second);
  InitShifted(unroll);
  VectorLoop(k_.kernel.outer_size(), b_.I64(0), shifted_->first->extents[0], unroll,
             [&] { EmitShiftedOps(); });
  SettleShifted(origin);
}

}  // namespace kiln
