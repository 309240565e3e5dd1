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

// The guess takes as long as some ten vectors do, which are hidden where rows of memory go side by side.
constexpr int64_t kRowElementsMin = 1024, kMemoryRowElementsMin = 256;
// How far the guess may lie below a maximum: an exponent's error is its last place's, times the exponential.
constexpr double kExponentMax = 16;
// How often the variance the square of the guess' distance may be: the sum of squares is so many times larger
// than what is left of it.
constexpr double kSquaresMax = 4;

LoopOpcode OpcodeOf(const v1::LoopOp& op) { return static_cast<LoopOpcode>(op.op()); }

bool IsReduction(const v1::LoopOp& op, v1::ReduceKind kind) {
  return OpcodeOf(op) == LoopOpcode::kReduce && op.mode() == kind;
}

}  // namespace

void KernelEmitter::ChooseShiftedReduction() {
  if (on_gpu_ || tiled_ || vector_lanes_ == 1 || IndexesByValues() ||
      kernel_.schedule().vector_dim() != v1::VECTOR_INNER_LAST) {
    return;
  }
  for (const StageInfo& info : stages_) {
    if (info.has_scan || info.stage->inner_size() != 1) continue;
    for (int k = 0; k < info.stage->ops_size(); ++k) {
      const uint32_t sum = info.first_op + k;
      if (!IsReduction(*ops_[sum], v1::REDUCE_SUM) || uses_[ops_[sum]->args(0)] != 1) continue;
      std::optional<ShiftedReduction> shifted = ShiftedReductionOf(info, sum);
      if (!shifted || uses_[shifted->difference] != (shifted->of_mean ? 2 : 1) || !MayShareAPass(*shifted))
        continue;
      if (row_cache_ && row_cache_->writer == ops_[sum]->args(0)) {
        // Others than a softmax's are values with bits of their own.
        if (OpcodeOf(*ops_[row_cache_->writer]) != LoopOpcode::kSoftmaxExp) continue;
        shifted->scale = Slot(b_.getFloatTy(), "scale");
      }
      shifted_ = std::move(shifted);
      return;
    }
  }
}

// Of the sum of e^(x - maximum of x), or of (x - mean of x)².
std::optional<KernelEmitter::ShiftedReduction> KernelEmitter::ShiftedReductionOf(const StageInfo& info,
                                                                                 uint32_t sum) const {
  ShiftedReduction shifted;
  shifted.second = &info;
  shifted.sum = sum;
  const uint32_t summed = ops_[sum]->args(0);
  if (IsExponential(OpcodeOf(*ops_[summed]))) {
    const std::optional<uint32_t> maximum = MaximumBelow(info, summed);
    if (!maximum) return std::nullopt;
    shifted.difference = ops_[summed]->args(0);
    shifted.reduced = shifted.center = *maximum;
    shifted.first = &StageOf(*maximum);
    return shifted;
  }
  const v1::LoopOp& square = *ops_[summed];
  if (OpcodeOf(square) != LoopOpcode::kMul || square.args(0) != square.args(1)) return std::nullopt;
  shifted.of_mean = true;
  shifted.difference = square.args(0);
  const v1::LoopOp& difference = *ops_[shifted.difference];
  if (OpcodeOf(difference) != LoopOpcode::kSub || difference.dtype() != v1::F32) return std::nullopt;
  shifted.center = difference.args(1);
  const v1::LoopOp& mean = *ops_[shifted.center];
  if ((OpcodeOf(mean) != LoopOpcode::kDiv && OpcodeOf(mean) != LoopOpcode::kMul) ||
      OpcodeOf(*ops_[mean.args(1)]) != LoopOpcode::kConstant) {
    return std::nullopt;
  }
  shifted.reduced = mean.args(0);
  if (!IsReduction(*ops_[shifted.reduced], v1::REDUCE_SUM)) return std::nullopt;
  shifted.first = &StageOf(shifted.reduced);
  if (!SameRow(info, shifted.reduced) || !SameValue(difference.args(0), ops_[shifted.reduced]->args(0))) {
    return std::nullopt;
  }
  return shifted;
}

// Both stages only read what the kernel does not change and reduce once each, and the second needs nothing
// but the guessed of what comes between.
bool KernelEmitter::MayShareAPass(const ShiftedReduction& shifted) const {
  const StageInfo &first = *shifted.first, &second = *shifted.second;
  const bool hidden = kernel_.outer_size() == 1 && ReadsRowFromMemory(shifted.of_mean ? second : first);
  const int64_t elements_min = hidden ? kMemoryRowElementsMin : kRowElementsMin;
  if (&first >= &second || shifted.center >= second.first_op) return false;
  if (ConstantExpr(first.stage->inner(0)).value_or(0) < elements_min) return false;
  for (const StageInfo* info = &first + 1; info < &second; ++info) {
    if (info->stage->inner_size() != 0) return false;
  }
  for (const StageInfo* info : {&first, &second}) {
    int reductions = 0;
    for (const v1::LoopOp& op : info->stage->ops()) {
      const LoopOpcode opcode = OpcodeOf(op);
      if (opcode == LoopOpcode::kStore || opcode == LoopOpcode::kCheckIndex) return false;
      if (opcode == LoopOpcode::kLoad && !IsSourceLoad(op)) return false;
      reductions += opcode == LoopOpcode::kReduce ? 1 : 0;
    }
    if (reductions != 1) return false;
  }
  int centers = 0;
  for (const v1::LoopOp& op : second.stage->ops()) {
    for (uint32_t arg : op.args()) {
      if (arg == shifted.center) {
        ++centers;
      } else if (arg >= first.first_op && arg < second.first_op) {
        return false;
      }
    }
  }
  return centers == 1;
}

bool KernelEmitter::IsDoneShifted(const StageInfo& info) const {
  return shifted_ && &info > shifted_->first && &info <= shifted_->second;
}

// Of two stages in one pass: the one whose loads are the other's.
bool KernelEmitter::ReadsShifted(const StageInfo& info) const {
  return shifted_ && &info == (shifted_->of_mean ? shifted_->first : shifted_->second);
}

// From the row's first vector. Of a maximum it is no more than that, and never less than all numbers are. It
// becomes the second stage's center.
llvm::Value* KernelEmitter::EmitShift() {
  const StageInfo& info = *shifted_->first;
  stage_ = &info;
  variables_.resize(kernel_.outer_size() + 1);
  InitAccumulators(info, 1);
  VectorLoop(kernel_.outer_size(), I64(0), I64(vector_lanes_), 1, [&] { EmitOps(info); });
  FinishAccumulators(info);
  llvm::Type* type = b_.getFloatTy();
  llvm::Value* found = values_[shifted_->reduced].v;
  llvm::Value* origin;
  if (shifted_->of_mean) {
    llvm::Value* mean = b_.CreateFMul(found, llvm::ConstantFP::get(type, 1.0 / vector_lanes_));
    llvm::Value* finite = b_.CreateFCmpORD(b_.CreateFSub(mean, mean), mean);
    origin = b_.CreateSelect(finite, mean, llvm::ConstantFP::get(type, 0.0));
  } else {
    llvm::Value* none = b_.CreateFCmpOEQ(found, llvm::ConstantFP::getInfinity(type, true));
    llvm::Constant* lowest = llvm::ConstantFP::get(type, std::numeric_limits<float>::lowest());
    origin = b_.CreateSelect(none, lowest, found);
  }
  values_[shifted_->center] = {origin, false};
  return origin;
}

// In a loop along the row, in which what is guessed is the second stage's center.
void KernelEmitter::EmitShiftedOps() {
  if (!shifted_->of_mean) {
    stage_ = shifted_->first;
    EmitOps(*stage_);
  }
  stage_ = shifted_->second;
  EmitOps(*stage_);
  if (shifted_->of_mean) {
    const v1::LoopOp& sum = *ops_[shifted_->reduced];
    values_[sum.args(0)] = values_[shifted_->difference];
    EmitReduce(shifted_->reduced, sum);
  }
}

void KernelEmitter::InitShifted(unsigned unroll) {
  InitAccumulators(*shifted_->first, unroll);
  InitAccumulators(*shifted_->second, unroll);
}

// After the pass from `origin`: what it reduced becomes what two passes have reduced, and the stages between
// are emitted.
void KernelEmitter::SettleShifted(llvm::Value* origin) {
  FinishAccumulators(*shifted_->first);
  FinishAccumulators(*shifted_->second);
  llvm::Type *f32 = b_.getFloatTy(), *f64 = b_.getDoubleTy();
  const auto wide = [&](llvm::Value* v) { return b_.CreateFPExt(v, f64); };
  const auto constant = [](llvm::Type* type, double v) { return llvm::ConstantFP::get(type, v); };
  llvm::Value* found = values_[shifted_->reduced].v;
  llvm::Value* count = b_.CreateSIToFP(shifted_->first->extents[0], f64);
  if (shifted_->of_mean) {
    llvm::Value* all = b_.CreateFAdd(wide(found), b_.CreateFMul(count, wide(origin)));
    values_[shifted_->reduced].v = b_.CreateFPTrunc(all, f32);
  }
  llvm::Value* sum = values_[shifted_->sum].v;
  for (const StageInfo* info = shifted_->first + 1; info < shifted_->second; ++info) {
    stage_ = info;
    EmitStage(*info);
  }
  llvm::Value* center = values_[shifted_->center].v;
  llvm::Value* unshift = constant(f32, std::ldexp(1.0, -math_.ExpBelowShift()));
  llvm::Value *misfit, *settled;
  if (shifted_->of_mean) {
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
    llvm::Value* scale = EmitFloat(LoopOpcode::kExp, {b_.CreateFSub(origin, center)});
    if (shifted_->scale != nullptr) {  // of exponentials that are kept with a shift
      scale = b_.CreateFMul(scale, unshift);
      b_.CreateStore(b_.CreateSelect(misfit, unshift, scale), shifted_->scale);
    }
    settled = b_.CreateFMul(sum, scale);
  }
  llvm::AllocaInst* result = Slot(f32, "settled");
  b_.CreateStore(settled, result);
  const std::vector<LaneValue> values = values_;
  std::vector<Accumulator> others;  // of passes beside this one
  std::swap(accumulators_, others);
  const auto pass_again = [&] {
    stage_ = shifted_->second;
    EmitStage(*stage_);
    llvm::Value* again = values_[shifted_->sum].v;
    b_.CreateStore(shifted_->scale == nullptr ? again : b_.CreateFMul(again, unshift), result);
  };
  If(misfit, "again", pass_again, /*rarely=*/true);
  std::swap(accumulators_, others);
  values_ = values;
  values_[shifted_->sum] = {b_.CreateLoad(f32, result), false};
}

void KernelEmitter::EmitShiftedStages() {
  llvm::Value* origin = EmitShift();
  const unsigned unroll = Unroll(*shifted_->second);
  InitShifted(unroll);
  VectorLoop(kernel_.outer_size(), I64(0), shifted_->first->extents[0], unroll, [&] { EmitShiftedOps(); });
  SettleShifted(origin);
}

}  // namespace kiln
