#include "compiler/codegen/reduce_emitter.h"

#include <algorithm>
#include <utility>

#include "compiler/ir/reduce_kinds.h"
#include "compiler/schedule/long_sums.h"
#include "compiler/schedule/row_pipeline.h"

namespace kiln {
namespace {

bool IsMax(v1::ReduceKind kind) { return kind == v1::REDUCE_MAX || kind == v1::REDUCE_ARGMAX; }

}  // namespace

ReduceEmitter::ReduceEmitter(KernelContext* context, LoopState* state, SharedReduction* shared)
    : k_(*context), at_(*state), b_(k_.b), combine_(context), shared_(shared) {
  for (const uint32_t sum : k_.kernel.schedule().vectors().rows().summed_exponentials()) {
    summed_exponents_[sum] = k_.facts.op(k_.facts.op(sum).args(0)).args(0);
  }
}

llvm::Type* ReduceEmitter::AccumulatorType(const StageInfo& info, llvm::Type* scalar) const {
  const bool vector = at_.lanes > 1 || (k_.kernel.schedule().vector_dim() == v1::VECTOR_INNER_LAST &&
                                        !info.has_scan && !info.extents.empty());
  return vector && at_.vector_lanes > 1 ? llvm::FixedVectorType::get(scalar, at_.vector_lanes) : scalar;
}

void ReduceEmitter::BeginTotal(const StageInfo& info, Accumulator* accumulator) {
  if (info.stage->inner_size() > 1) {
    runs_ = b_.Slot(b_.getInt64Ty(), "runs");
    b_.CreateStore(b_.I64(0), runs_);
  }
  llvm::Type* type = AccumulatorType(info, b_.getDoubleTy());
  accumulator->total = b_.Slot(type, "total");
  b_.CreateStore(llvm::Constant::getNullValue(type), accumulator->total);
  if (accumulator->dtype == v1::F64) {
    accumulator->lost = b_.Slot(type, "lost");
    b_.CreateStore(llvm::Constant::getNullValue(type), accumulator->lost);
  }
}

void ReduceEmitter::Init(const StageInfo& info, unsigned unroll) {
  for (int k = 0; k < info.stage->ops_size(); ++k) {
    const v1::LoopOp& op = info.stage->ops(k);
    const auto opcode = static_cast<LoopOpcode>(op.op());
    if (opcode != LoopOpcode::kReduce && opcode != LoopOpcode::kScan) continue;
    Accumulator accumulator;
    accumulator.op = info.first_op + k;
    accumulator.kind = static_cast<v1::ReduceKind>(op.mode());
    accumulator.dtype = k_.DTypeOf(op.args(0));
    accumulator.widened = IsLongSum(k_.facts, accumulator.op, unroll);
    if (accumulator.widened && shared_ == nullptr && !info.has_scan) BeginTotal(info, &accumulator);
    const unsigned copies = accumulator.total == nullptr
                                ? unroll
                                : VectorsSideBySide(k_.facts, k_.kernel.schedule().vectors(), info, unroll);
    const bool doubles = accumulator.widened && accumulator.total == nullptr;
    llvm::Constant* identity = combine_.Identity(accumulator.kind, doubles ? v1::F64 : accumulator.dtype);
    llvm::Type* type = AccumulatorType(info, identity->getType());
    for (unsigned copy = 0; copy < copies; ++copy) {
      accumulator.value.push_back(b_.Slot(type, "acc"));
      if (opcode == LoopOpcode::kScan) continue;
      llvm::Value* start = identity;
      if (auto* v = llvm::dyn_cast<llvm::FixedVectorType>(type)) {
        start = llvm::ConstantVector::getSplat(v->getElementCount(), identity);
      }
      b_.CreateStore(start, accumulator.value.back());
      if (IsArgReduce(accumulator.kind)) {
        llvm::Type* position = AccumulatorType(info, b_.getInt64Ty());
        accumulator.position.push_back(b_.Slot(position, "arg"));
        b_.CreateStore(llvm::Constant::getNullValue(position), accumulator.position.back());
      }
    }
    accumulators_.push_back(std::move(accumulator));
  }
}

// Row-major number of the iteration in the stage's inner domain, per lane.
llvm::Value* ReduceEmitter::PositionInDomain() {
  llvm::Value* position = b_.I64(0);
  const uint32_t first = k_.kernel.outer_size();
  for (size_t k = 0; k < at_.stage->extents.size(); ++k) {
    position = b_.CreateAdd(b_.CreateMul(position, at_.stage->extents[k]), at_.variables[first + k]);
  }
  const bool along = at_.vector_variable != LoopState::kNoVariable && at_.vector_variable >= first;
  llvm::Value* wide = at_.Splat(position);
  return along ? b_.CreateAdd(wide, at_.LaneNumbers(b_.getInt64Ty())) : wide;
}

// `exponential`: what is added is e^value.
llvm::Value* ReduceEmitter::Accumulate(Accumulator& accumulator, llvm::Value* sum, llvm::Value* value,
                                       bool exponential) {
  if (at_.unrolled && (accumulator.kind == v1::REDUCE_MAX || accumulator.kind == v1::REDUCE_MIN)) {
    if (llvm::Value* chosen = combine_.VectorMaximum(sum, value, IsMax(accumulator.kind))) {
      accumulator.untested.push_back(value);
      return chosen;
    }
  }
  if (!accumulator.widened || accumulator.total != nullptr) {
    return exponential ? k_.math.PlusExp(b_, sum, value)
                       : combine_.Combine(accumulator.kind, accumulator.dtype, sum, value);
  }
  if (exponential) value = k_.math.PlusExp(b_, llvm::Constant::getNullValue(value->getType()), value);
  return combine_.Combine(accumulator.kind, v1::F64, sum, b_.CreateFPExt(value, at_.Wide(b_.getDoubleTy())));
}

void ReduceEmitter::Reduce(uint32_t id, const v1::LoopOp& op) {
  for (Accumulator& accumulator : accumulators_) {
    if (accumulator.op != id) continue;
    llvm::AllocaInst* slot = accumulator.value[at_.copy];
    const auto exponent = summed_exponents_.find(id);
    const bool exponential = exponent != summed_exponents_.end();
    llvm::Value* value = at_.Broadcast(at_.values[exponential ? exponent->second : op.args(0)]);
    llvm::Value* old_value = b_.CreateLoad(slot->getAllocatedType(), slot);
    if (IsArgReduce(accumulator.kind)) {
      llvm::AllocaInst* position_slot = accumulator.position[at_.copy];
      llvm::Value* position = b_.CreateLoad(position_slot->getAllocatedType(), position_slot);
      combine_.CombineArg(accumulator.kind, accumulator.dtype, &old_value, &position, value,
                          PositionInDomain(), false, at_.mask);
      b_.CreateStore(old_value, slot);
      b_.CreateStore(position, position_slot);
      return;
    }
    llvm::Value* combined = Accumulate(accumulator, old_value, value, exponential);
    if (at_.mask != nullptr) combined = b_.CreateSelect(at_.mask, combined, old_value);
    b_.CreateStore(combined, slot);
    return;
  }
}

// Maxima of an unrolled body have passed over NaN: one comparison of two of its vectors finds
// that, and a maximum that is NaN once stays so.
void ReduceEmitter::TestForNans() {
  for (Accumulator& accumulator : accumulators_) {
    llvm::Value* found = nullptr;
    for (size_t k = 0; k + 1 < accumulator.untested.size(); k += 2) {
      llvm::Value* pair = b_.CreateFCmpUNO(accumulator.untested[k], accumulator.untested[k + 1]);
      found = found == nullptr ? pair : b_.CreateOr(found, pair);
    }
    accumulator.untested.clear();
    if (found == nullptr) continue;
    llvm::AllocaInst* slot = accumulator.value[0];
    llvm::Value* value = b_.CreateLoad(slot->getAllocatedType(), slot);
    b_.CreateStore(b_.CreateSelect(found, llvm::ConstantFP::getNaN(value->getType()), value), slot);
  }
}

bool ReduceEmitter::HasTotals() const {
  return std::any_of(accumulators_.begin(), accumulators_.end(),
                     [](const Accumulator& accumulator) { return accumulator.total != nullptr; });
}

// The copies in pairs first: few additions, as exact as eager's, and one conversion instead of many.
void ReduceEmitter::AddToTotal(const Accumulator& accumulator) {
  std::vector<llvm::Value*> parts;
  for (llvm::AllocaInst* slot : accumulator.value) {
    llvm::Type* type = slot->getAllocatedType();
    parts.push_back(b_.CreateLoad(type, slot));
    b_.CreateStore(llvm::Constant::getNullValue(type), slot);
  }
  for (; parts.size() > 1; parts.resize(parts.size() / 2)) {
    for (size_t k = 0; k < parts.size() / 2; ++k) {
      parts[k] = b_.CreateFAdd(parts[k], parts[k + parts.size() / 2]);
    }
  }
  llvm::Type* type = accumulator.total->getAllocatedType();
  llvm::Value* total = b_.CreateLoad(type, accumulator.total);
  llvm::Value* part = b_.CreateFPExt(parts[0], type);
  llvm::Value* sum = b_.CreateFAdd(total, part);
  b_.CreateStore(sum, accumulator.total);
  if (accumulator.lost == nullptr) return;
  // What the addition loses, of either operand. Of an infinite sum nothing is lost.
  llvm::Value* added = b_.CreateFSub(sum, total);
  llvm::Value* lost =
      b_.CreateFAdd(b_.CreateFSub(total, b_.CreateFSub(sum, added)), b_.CreateFSub(part, added));
  llvm::Value* finite = b_.CreateFCmpORD(b_.CreateFSub(sum, sum), sum);
  lost = b_.CreateSelect(finite, lost, llvm::Constant::getNullValue(type));
  b_.CreateStore(b_.CreateFAdd(b_.CreateLoad(type, accumulator.lost), lost), accumulator.lost);
}

void ReduceEmitter::AddToTotalsIf(llvm::Value* due) {
  const auto add = [&] {
    for (const Accumulator& accumulator : accumulators_) {
      if (accumulator.total != nullptr) AddToTotal(accumulator);
    }
  };
  b_.If(due, "totals", add, /*rarely=*/true);
}

void ReduceEmitter::AddToTotals(llvm::Value* done, int64_t step, llvm::Value* count) {
  if (!HasTotals()) return;
  const auto* known = llvm::dyn_cast<llvm::ConstantInt>(count);
  if (known != nullptr && known->getSExtValue() / step < kIterationsToTotal) return;
  llvm::Value* iteration = b_.CreateURem(b_.CreateUDiv(done, b_.I64(step)), b_.I64(kIterationsToTotal));
  AddToTotalsIf(b_.CreateICmpEQ(iteration, b_.I64(kIterationsToTotal - 1)));
}

void ReduceEmitter::AddRunToTotals(const StageInfo& info, unsigned unroll) {
  if (!HasTotals()) return;
  const int64_t period = RunsToTotal(k_.facts, info, unroll);
  if (period == 0) return;
  llvm::Value* runs = b_.CreateNSWAdd(b_.CreateLoad(b_.getInt64Ty(), runs_), b_.I64(1));
  b_.CreateStore(runs, runs_);
  AddToTotalsIf(b_.CreateICmpEQ(b_.CreateURem(runs, b_.I64(period)), b_.I64(0)));
}

// In halves.
void ReduceEmitter::FoldLanes(const Accumulator& accumulator, v1::DType kept, llvm::Value** value,
                              llvm::Value** position) {
  auto* type = llvm::cast<llvm::FixedVectorType>((*value)->getType());
  const bool arg = *position != nullptr;
  for (unsigned width = type->getNumElements() / 2; width >= 1; width /= 2) {
    llvm::SmallVector<int, 64> high;
    llvm::SmallVector<int, 64> low;
    for (unsigned lane = 0; lane < width; ++lane) {
      low.push_back(lane);
      high.push_back(width + lane);
    }
    llvm::Value* other = b_.CreateShuffleVector(*value, high);
    llvm::Value* other_position = arg ? b_.CreateShuffleVector(*position, high) : nullptr;
    *value = b_.CreateShuffleVector(*value, low);
    if (arg) *position = b_.CreateShuffleVector(*position, low);
    combine_.Fold(accumulator.kind, kept, value, position, other, other_position);
  }
  *value = b_.CreateExtractElement(*value, uint64_t{0});
  if (arg) *position = b_.CreateExtractElement(*position, uint64_t{0});
}

LaneValue ReduceEmitter::ResultOf(const Accumulator& accumulator) {
  const v1::DType kept = accumulator.widened ? v1::F64 : accumulator.dtype;
  const bool arg = IsArgReduce(accumulator.kind);
  const auto load = [&](llvm::AllocaInst* slot) { return b_.CreateLoad(slot->getAllocatedType(), slot); };
  if (accumulator.total != nullptr) AddToTotal(accumulator);
  llvm::Value* value = load(accumulator.total != nullptr ? accumulator.total : accumulator.value[0]);
  if (accumulator.lost != nullptr) value = b_.CreateFAdd(value, load(accumulator.lost));
  llvm::Value* position = arg ? load(accumulator.position[0]) : nullptr;
  for (size_t copy = 1; copy < accumulator.value.size() && accumulator.total == nullptr; ++copy) {
    llvm::Value* other_position = arg ? load(accumulator.position[copy]) : nullptr;
    combine_.Fold(accumulator.kind, kept, &value, &position, load(accumulator.value[copy]), other_position);
  }
  // Lanes of the outer loop are results of their own.
  if (value->getType()->isVectorTy() && at_.lanes == 1) FoldLanes(accumulator, kept, &value, &position);
  if (shared_ != nullptr) shared_->CombineThreads(accumulator.kind, kept, &value, &position);
  if (accumulator.widened && accumulator.dtype == v1::F32)
    value = b_.CreateFPTrunc(value, value->getType()->getWithNewType(b_.getFloatTy()));
  return {arg ? position : value, at_.lanes > 1};
}

void ReduceEmitter::Finish(const StageInfo& info) {
  const auto own = [&](const Accumulator& accumulator) {
    return accumulator.op >= info.first_op && accumulator.op < info.end_op();
  };
  for (const Accumulator& accumulator : accumulators_) {
    if (own(accumulator) && k_.facts.opcode(accumulator.op) == LoopOpcode::kReduce)
      at_.values[accumulator.op] = ResultOf(accumulator);
  }
  std::erase_if(accumulators_, own);
}

void ReduceEmitter::InitScans(const StageInfo& info) {
  for (const Accumulator& accumulator : accumulators_) {
    if (static_cast<LoopOpcode>(k_.facts.op(accumulator.op).op()) != LoopOpcode::kScan) continue;
    b_.CreateStore(at_.Splat(combine_.Identity(accumulator.kind, accumulator.dtype)), accumulator.value[0]);
  }
}

LaneValue ReduceEmitter::Scan(uint32_t id, const v1::LoopOp& op) {
  for (const Accumulator& accumulator : accumulators_) {
    if (accumulator.op != id) continue;
    llvm::AllocaInst* slot = accumulator.value[0];
    llvm::Value* old_value = b_.CreateLoad(slot->getAllocatedType(), slot);
    llvm::Value* combined = combine_.Combine(accumulator.kind, accumulator.dtype, old_value,
                                             at_.Broadcast(at_.values[op.args(0)]));
    b_.CreateStore(combined, slot);
    return {combined, at_.lanes > 1};
  }
  k_.Fail(absl::InternalError("scan without an accumulator"));
  return at_.values[op.args(0)];
}

}  // namespace kiln
