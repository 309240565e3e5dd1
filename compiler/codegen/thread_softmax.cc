// A long row's maximum and the sum of its exponentials in one pass: each thread keeps the largest value so
// far and the sum scaled by it.
#include <vector>

#include "compiler/codegen/thread_emitter.h"

namespace kiln {
namespace {

// What is subtracted before an exponential: where nothing but -inf was seen so far, nothing is.
llvm::Value* OriginOf(llvm::Value* largest, llvm::IRBuilder<>* b) {
  llvm::Value* none = b->CreateFCmpOEQ(largest, llvm::ConstantFP::getInfinity(b->getFloatTy(), true));
  return b->CreateSelect(none, llvm::ConstantFP::get(b->getFloatTy(), 0.0), largest);
}

}  // namespace

// The values of some turns, all of them in flight at once, join what there is.
void ThreadEmitter::AddToSoftmaxSum(llvm::Value* first_turn, int64_t turns, llvm::AllocaInst* largest,
                                    llvm::AllocaInst* sum) {
  const uint32_t maximum = chosen_.rows().softmax().maximum();
  const StageInfo& info = k_.StageOf(maximum);
  std::vector<llvm::Value*> values;
  for (int64_t turn = 0; turn < turns; ++turn) {
    at_.variables[k_.kernel.outer_size()] =
        b_.CreateNSWMul(b_.CreateNSWAdd(first_turn, b_.I64(turn * threads_)), b_.I64(at_.vector_lanes));
    for (int k = 0; k + 1 < info.stage->ops_size(); ++k) EmitOp(info.first_op + k, info.stage->ops(k));
    values.push_back(at_.Broadcast(at_.values[k_.facts.op(maximum).args(0)]));
  }
  const auto lanes_of = [&](llvm::Value* v, absl::FunctionRef<void(llvm::Value*)> visit) {
    for (uint64_t lane = 0; lane < at_.lanes; ++lane)
      visit(at_.lanes == 1 ? v : b_.CreateExtractElement(v, lane));
  };
  llvm::Value* most = values[0];
  for (size_t k = 1; k < values.size(); ++k)
    most = CombineEmitter(&k_).Combine(v1::REDUCE_MAX, v1::F32, most, values[k]);
  llvm::Value* before = b_.CreateLoad(b_.getFloatTy(), largest);
  llvm::Value* after = before;
  lanes_of(most,
           [&](llvm::Value* v) { after = CombineEmitter(&k_).Combine(v1::REDUCE_MAX, v1::F32, after, v); });
  llvm::Value* origin = OriginOf(after, &b_);
  const auto exp_of = [&](llvm::Value* v) { return k_.math.Emit(b_, LoopOpcode::kExp, {v}); };
  llvm::Value* scaled = b_.CreateLoad(b_.getFloatTy(), sum);
  llvm::Value* total = b_.CreateFMul(scaled, exp_of(b_.CreateFSub(before, origin)));
  llvm::Value* wide_origin = at_.Splat(origin);
  llvm::Value* added = nullptr;
  for (llvm::Value* v : values) {
    llvm::Value* power = exp_of(b_.CreateFSub(v, wide_origin));
    added = added == nullptr ? power : b_.CreateFAdd(added, power);
  }
  lanes_of(added, [&](llvm::Value* v) { total = b_.CreateFAdd(total, v); });
  b_.CreateStore(after, largest);
  b_.CreateStore(total, sum);
}

void ThreadEmitter::EmitSoftmaxSum() {
  const v1::SoftmaxSum& softmax = chosen_.rows().softmax();
  const StageInfo& first = k_.StageOf(softmax.maximum());
  at_.stage = &first;
  at_.variables.resize(k_.kernel.outer_size() + 1);
  llvm::Type* f32 = b_.getFloatTy();
  llvm::Constant* lowest = llvm::ConstantFP::getInfinity(f32, true);
  llvm::AllocaInst* largest = b_.Slot(f32, "largest");
  llvm::AllocaInst* sum = b_.Slot(f32, "sum");
  b_.CreateStore(lowest, largest);
  b_.CreateStore(llvm::ConstantFP::get(f32, 0.0), sum);
  at_.lanes = at_.vector_lanes;
  if (at_.lanes > 1) at_.vector_variable = k_.kernel.outer_size();
  const int64_t turns = TurnsOf(k_.facts, chosen_, k_.NumberOf(first));
  const int64_t common = turns / threads_;
  const int64_t at_once = chosen_.unroll(k_.NumberOf(first));
  const int64_t looped = common / at_once * at_once;
  llvm::Value* thread = block_.Thread();
  b_.ScalarLoop(
      b_.I64(0), b_.I64(looped * threads_), b_.I64(at_once * threads_), "turns",
      [&](llvm::Value* begin) { AddToSoftmaxSum(b_.CreateNSWAdd(begin, thread), at_once, largest, sum); });
  llvm::Value* rest = b_.CreateNSWAdd(thread, b_.I64(looped * threads_));
  if (common > looped) AddToSoftmaxSum(rest, common - looped, largest, sum);
  if (turns % threads_ != 0) {
    llvm::Value* last = b_.CreateNSWAdd(thread, b_.I64(common * threads_));
    b_.If(b_.CreateICmpSLT(last, b_.I64(turns)), "turn", [&] { AddToSoftmaxSum(last, 1, largest, sum); });
  }
  at_.lanes = 1;
  at_.vector_variable = LoopState::kNoVariable;

  llvm::Value* own = b_.CreateLoad(f32, largest);
  llvm::Value* most = own;
  llvm::Value* position = nullptr;
  combine_.CombineThreads(v1::REDUCE_MAX, v1::F32, &most, &position);
  at_.values[softmax.maximum()] = {most, false};
  llvm::Value* total = b_.CreateLoad(f32, sum);
  total = b_.CreateFMul(total, k_.math.Emit(b_, LoopOpcode::kExp, {b_.CreateFSub(own, OriginOf(most, &b_))}));
  combine_.CombineThreads(v1::REDUCE_SUM, v1::F32, &total, &position);
  // Of a row of -inf it is that of exp(-inf - -inf).
  llvm::Value* none = b_.CreateFCmpOEQ(most, lowest);
  at_.values[softmax.sum()] = {b_.CreateSelect(none, llvm::ConstantFP::getNaN(f32), total), false};
}

}  // namespace kiln
