#include "compiler/codegen/thread_softmax.h"

#include <vector>

#include "compiler/schedule/thread_walk.h"

namespace kiln {
namespace {

// What is subtracted before an exponential: where nothing but -inf was seen so far, nothing is.
llvm::Value* OriginOf(llvm::Value* largest, llvm::IRBuilder<>* b) {
  llvm::Value* none = b->CreateFCmpOEQ(largest, llvm::ConstantFP::getInfinity(b->getFloatTy(), true));
  return b->CreateSelect(none, llvm::ConstantFP::get(b->getFloatTy(), 0.0), largest);
}

}  // namespace

ThreadSoftmax::ThreadSoftmax(KernelContext* context, LoopState* state, ThreadStages* stages,
                             ThreadCombine* combine, ThreadBlock* block)
    : k_(*context),
      at_(*state),
      b_(k_.b),
      stages_(*stages),
      combine_(*combine),
      block_(*block),
      chosen_(k_.kernel.schedule().threads()),
      softmax_(chosen_.rows().softmax()) {}

// The values of some iterations, all of them in flight at once, join what there is.
void ThreadSoftmax::Add(llvm::Value* first_iteration, int64_t iterations, const Running& running) {
  const int64_t threads = chosen_.threads();
  const StageInfo& info = k_.StageOf(softmax_.maximum());
  std::vector<llvm::Value*> values;
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
    at_.variables[k_.kernel.outer_size()] = b_.CreateNSWMul(
        b_.CreateNSWAdd(first_iteration, b_.I64(iteration * threads)), b_.I64(at_.vector_lanes));
    for (int k = 0; k + 1 < info.stage->ops_size(); ++k) stages_.Op(info.first_op + k, info.stage->ops(k));
    values.push_back(at_.Broadcast(at_.values[k_.facts.op(softmax_.maximum()).args(0)]));
  }
  const auto lanes_of = [&](llvm::Value* v, absl::FunctionRef<void(llvm::Value*)> visit) {
    for (uint64_t lane = 0; lane < at_.lanes; ++lane)
      visit(at_.lanes == 1 ? v : b_.CreateExtractElement(v, lane));
  };
  CombineEmitter combine(&k_);
  llvm::Value* most = values[0];
  for (size_t k = 1; k < values.size(); ++k) most = combine.Combine(v1::REDUCE_MAX, v1::F32, most, values[k]);
  llvm::Value* before = b_.CreateLoad(b_.getFloatTy(), running.largest);
  llvm::Value* after = before;
  lanes_of(most, [&](llvm::Value* v) { after = combine.Combine(v1::REDUCE_MAX, v1::F32, after, v); });
  llvm::Value* origin = OriginOf(after, &b_);
  llvm::Value* scaled = b_.CreateLoad(b_.getFloatTy(), running.sum);
  llvm::Value* total = b_.CreateFMul(scaled, Exp(b_.CreateFSub(before, origin)));
  llvm::Value* wide_origin = at_.Splat(origin);
  llvm::Value* added = nullptr;
  for (llvm::Value* v : values) {
    llvm::Value* power = Exp(b_.CreateFSub(v, wide_origin));
    added = added == nullptr ? power : b_.CreateFAdd(added, power);
  }
  lanes_of(added, [&](llvm::Value* v) { total = b_.CreateFAdd(total, v); });
  b_.CreateStore(after, running.largest);
  b_.CreateStore(total, running.sum);
}

// The stage of the maximum, by this thread's iterations.
void ThreadSoftmax::OnePass(const Running& running) {
  const StageInfo& first = k_.StageOf(softmax_.maximum());
  at_.stage = &first;
  at_.variables.resize(k_.kernel.outer_size() + 1);
  b_.CreateStore(llvm::ConstantFP::getInfinity(b_.getFloatTy(), true), running.largest);
  b_.CreateStore(llvm::ConstantFP::get(b_.getFloatTy(), 0.0), running.sum);
  at_.lanes = at_.vector_lanes;
  if (at_.lanes > 1) at_.vector_variable = k_.kernel.outer_size();
  const int64_t threads = chosen_.threads();
  const int64_t iterations = IterationsOf(k_.facts, chosen_, k_.NumberOf(first));
  const int64_t common = iterations / threads;
  const int64_t at_once = chosen_.unroll(k_.NumberOf(first));
  const int64_t looped = common / at_once * at_once;
  llvm::Value* thread = block_.Thread();
  b_.ScalarLoop(b_.I64(0), b_.I64(looped * threads), b_.I64(at_once * threads), "iterations",
                [&](llvm::Value* begin) { Add(b_.CreateNSWAdd(begin, thread), at_once, running); });
  llvm::Value* rest = b_.CreateNSWAdd(thread, b_.I64(looped * threads));
  if (common > looped) Add(rest, common - looped, running);
  if (iterations % threads != 0) {
    llvm::Value* last = b_.CreateNSWAdd(thread, b_.I64(common * threads));
    b_.If(b_.CreateICmpSLT(last, b_.I64(iterations)), "iteration", [&] { Add(last, 1, running); });
  }
  at_.lanes = 1;
  at_.vector_variable = LoopState::kNoVariable;
}

void ThreadSoftmax::Emit() {
  llvm::Type* f32 = b_.getFloatTy();
  llvm::AllocaInst* largest = b_.Slot(f32, "largest");
  llvm::AllocaInst* sum = b_.Slot(f32, "sum");
  OnePass({largest, sum});
  llvm::Value* own = b_.CreateLoad(f32, largest);
  llvm::Value* most = own;
  llvm::Value* position = nullptr;
  combine_.CombineThreads(v1::REDUCE_MAX, v1::F32, &most, &position);
  at_.values[softmax_.maximum()] = {most, false};
  llvm::Value* total = b_.CreateLoad(f32, sum);
  total = b_.CreateFMul(total, Exp(b_.CreateFSub(own, OriginOf(most, &b_))));
  combine_.CombineThreads(v1::REDUCE_SUM, v1::F32, &total, &position);
  // Of a row of -inf it is that of exp(-inf - -inf).
  llvm::Value* none = b_.CreateFCmpOEQ(most, llvm::ConstantFP::getInfinity(f32, true));
  at_.values[softmax_.sum()] = {b_.CreateSelect(none, llvm::ConstantFP::getNaN(f32), total), false};
}

}  // namespace kiln
