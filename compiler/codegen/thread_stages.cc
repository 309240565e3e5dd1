#include "compiler/codegen/thread_stages.h"

#include <algorithm>

#include "compiler/codegen/thread_softmax.h"
#include "compiler/schedule/thread_walk.h"

namespace kiln {
namespace {

// Unrolls the loop by that factor, so that its bodies' accesses are in flight at once. `back`: its branch
// back, nullptr where it never runs.
void UnrollLoop(llvm::Instruction* back, unsigned times) {
  if (back == nullptr || times < 2) return;
  llvm::LLVMContext& context = back->getContext();
  llvm::Constant* number = llvm::ConstantInt::get(llvm::Type::getInt32Ty(context), times);
  llvm::MDNode* count = llvm::MDNode::get(context, {llvm::MDString::get(context, "llvm.loop.unroll.count"),
                                                    llvm::ConstantAsMetadata::get(number)});
  llvm::MDNode* loop = llvm::MDNode::getDistinct(context, {nullptr, count});
  loop->replaceOperandWith(0, loop);
  back->setMetadata(llvm::LLVMContext::MD_loop, loop);
}

}  // namespace

ThreadStages::ThreadStages(KernelContext* context, LoopState* state, OpEmitter* ops, ThreadMemory* memory,
                           ReduceEmitter* reductions, ThreadCombine* combine, ThreadBlock* block,
                           const SharedPoint* point, const StripSums* sums)
    : StageEmitter(context, state, ops, memory, reductions, /*cache=*/nullptr),
      memory_(*memory),
      combine_(*combine),
      block_(*block),
      point_(*point),
      sums_(*sums),
      chosen_(k_.kernel.schedule().threads()),
      threads_(chosen_.threads()) {}

// The shared loop of a point in columns: neighbouring rows take neighbouring iterations.
void ThreadStages::InnerLoop(const StageInfo& info, uint32_t level, LoopBody body) {
  const int number = k_.NumberOf(info);
  if (!chosen_.has_columns() || level != chosen_.columns().levels(number)) {
    const bool last = !chosen_.has_columns() && static_cast<int>(level) + 1 == info.stage->inner_size();
    UnrollLoop(b_.ScalarLoop(b_.I64(0), info.extents[level], b_.I64(1), "inner", body),
               last ? chosen_.unroll(k_.NumberOf(info)) : 1);
    return;
  }
  llvm::Value* end = b_.CreateSelect(point_.active, info.extents[level], b_.I64(0));
  UnrollLoop(b_.ScalarLoop(point_.row, end, b_.I64(rows()), "row", body), chosen_.unroll(k_.NumberOf(info)));
}

void ThreadStages::Iterations(llvm::Value* thread, llvm::Value* count, unsigned at_once, LoopBody iteration) {
  auto* known = llvm::dyn_cast<llvm::ConstantInt>(count);
  if (known == nullptr) {
    UnrollLoop(b_.ScalarLoop(thread, count, b_.I64(threads_), "iteration", iteration), at_once);
    return;
  }
  const int64_t common = known->getSExtValue() / threads_;
  const auto some = [&](llvm::Value* first, int64_t number) {
    for (int64_t k = 0; k < number; ++k) {
      iteration_ = static_cast<unsigned>(k);
      iteration(b_.CreateNSWAdd(first, b_.I64(k * threads_)));
    }
  };
  const int64_t looped = common > at_once ? common / at_once * at_once : 0;
  if (looped > 0) {
    b_.ScalarLoop(b_.I64(0), b_.I64(looped * threads_), b_.I64(int64_t{at_once} * threads_), "iterations",
                  [&](llvm::Value* begin) { some(b_.CreateNSWAdd(begin, thread), at_once); });
  }
  some(b_.CreateNSWAdd(thread, b_.I64(looped * threads_)), common - looped);
  if (known->getSExtValue() % threads_ == 0) return;
  b_.If(b_.CreateICmpSLT(b_.CreateNSWAdd(thread, b_.I64(common * threads_)), count), "iteration", [&] {
    iteration_ = static_cast<unsigned>(common);
    iteration(b_.CreateNSWAdd(thread, b_.I64(common * threads_)));
  });
}

void ThreadStages::InnerFrom(const StageInfo& info, uint32_t level) {
  if (level > 0 || !IsFlattened(chosen_, k_.NumberOf(info))) {
    StageEmitter::InnerFrom(info, level);
    return;
  }
  if (at_.vector_lanes == 1) {
    FlatLoops(info);
    return;
  }
  const uint32_t first = k_.kernel.outer_size();
  const int loops = info.stage->inner_size();
  at_.lanes = at_.vector_lanes;
  at_.vector_variable = first + loops - 1;
  if (chosen_.aligned() == v1::ALIGNED_STAGE) {
    for (int k = 0; k < loops; ++k) at_.variables[first + k] = b_.I64(0);
    memory_.EmitByAlignment(memory_.IsAligned({at_.stage}), [&] { FlatLoops(info); });
  } else {
    FlatLoops(info);
  }
  at_.lanes = 1;
  at_.vector_variable = LoopState::kNoVariable;
}

void ThreadStages::FlatLoops(const StageInfo& info) {
  const uint32_t first = k_.kernel.outer_size();
  const int loops = info.stage->inner_size();
  llvm::Value* thread = block_.Thread();
  const auto iteration = [&](llvm::Value* number) {
    llvm::Value* rest = b_.CreateTrunc(number, b_.getInt32Ty());  // fewer instructions than in 64 bits
    for (int k = loops - 1; k >= 0; --k) {
      const int64_t extent =
          *k_.facts.ConstantExpr(info.stage->inner(k)) / (k == loops - 1 ? int64_t{at_.vector_lanes} : 1);
      llvm::Value* count = b_.getInt32(static_cast<uint32_t>(extent));
      llvm::Value* value = b_.CreateZExt(k == 0 ? rest : b_.CreateURem(rest, count), b_.getInt64Ty());
      if (k > 0) rest = b_.CreateUDiv(rest, count);
      at_.variables[first + k] = k == loops - 1 ? b_.CreateNSWMul(value, b_.I64(at_.vector_lanes)) : value;
    }
    Ops(info);
  };
  Iterations(thread, b_.I64(IterationsOf(k_.facts, chosen_, k_.NumberOf(info))),
             chosen_.unroll(k_.NumberOf(info)), iteration);
}

// The last barrier keeps the next point's partial results out of the slots that are still being read.
void ThreadStages::Stages() {
  if (!chosen_.has_rows() || chosen_.aligned() != v1::ALIGNED_POINT || !sums_.empty()) {
    StagesInOrder();
    return;
  }
  memory_.EmitByAlignment(memory_.IsRowAligned(), [&] { StagesInOrder(); });
}

// Returns the last stage that was emitted.
size_t ThreadStages::StageOrSoftmax(size_t number) {
  if (chosen_.rows().has_softmax()) {
    const v1::SoftmaxSum& softmax = chosen_.rows().softmax();
    if (&k_.stages[number] == &k_.StageOf(softmax.maximum())) {
      ThreadSoftmax(&k_, &at_, this, &combine_, &block_).Emit();
      return static_cast<size_t>(k_.NumberOf(k_.StageOf(softmax.sum())));
    }
  }
  Stage(k_.stages[number]);
  return number;
}

void ThreadStages::StagesInOrder() {
  const bool together = chosen_.has_rows() || chosen_.has_columns();
  // Of a point that several threads share the first row alone stores what has no loop. Where loops follow all
  // rows compute it, and the stages behind the last loop are the first row's.
  size_t common = k_.stages.size();
  while (rows() > 1 && common > 0 && k_.stages[common - 1].stage->inner_size() == 0) --common;
  size_t k = 0;
  for (; k < common; ++k) {
    if (together && k > 0) block_.Barrier();
    loaded_ = stored_ = false;
    k = StageOrSoftmax(k);
  }
  if (k < k_.stages.size()) {
    block_.Barrier();
    IfFirstRow([&] {
      for (; k < k_.stages.size(); ++k) k = StageOrSoftmax(k);
    });
  }
  if (together) block_.Barrier();
}

void ThreadStages::IfFirstRow(CodeBody body) {
  b_.If(b_.CreateAnd(point_.active, b_.CreateICmpEQ(point_.row, b_.I64(0))), "first_row", [&] {
    in_first_row_ = true;
    body();
    in_first_row_ = false;
  });
}

void ThreadStages::VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll,
                              CodeBody body) {
  if (!chosen_.has_rows()) {
    StageEmitter::VectorLoop(variable, lo, hi, unroll, body);
    return;
  }
  llvm::Value* thread = block_.Thread();
  llvm::Value* lanes = b_.I64(at_.vector_lanes);
  llvm::Value* whole_end = b_.CreateNSWSub(hi, b_.CreateURem(b_.CreateNSWSub(hi, lo), lanes), "whole");
  llvm::Value* iterations = b_.CreateUDiv(b_.CreateNSWSub(hi, lo), lanes);
  const auto whole = [&] {
    Iterations(thread, iterations, chosen_.unroll(k_.NumberOf(*at_.stage)), [&](llvm::Value* iteration) {
      at_.variables[variable] = b_.CreateNSWAdd(lo, b_.CreateNSWMul(iteration, lanes));
      body();
    });
  };
  if (at_.vector_lanes == 1) {
    whole();
    return;
  }
  at_.lanes = at_.vector_lanes;
  at_.vector_variable = variable;
  at_.variables[variable] = lo;
  if (chosen_.aligned() == v1::ALIGNED_STAGE) {
    memory_.EmitByAlignment(memory_.IsAligned({at_.stage}), whole);
  } else {
    whole();
  }
  llvm::Value* has_tail = b_.CreateICmpSLT(whole_end, hi);
  b_.If(has_tail, "tail", [&] {
    b_.If(b_.CreateICmpEQ(thread, b_.I64(0)), "first", [&] { MaskedVector(variable, whole_end, hi, body); });
  });
  at_.lanes = 1;
  at_.vector_variable = LoopState::kNoVariable;
}

bool ThreadStages::IsSharedPoint() const { return chosen_.has_rows() && at_.stage->stage->inner_size() == 0; }

LaneValue ThreadStages::Load(const v1::LoopOp& op) {
  if (IsSharedPoint()) {
    if (stored_) block_.Barrier();
    stored_ = false;
    loaded_ = true;
  }
  return StageEmitter::Load(op);
}

// What a shared point stores may lie where it was loaded from, as its own or as memory that was given away:
// one thread stores it when all have loaded.
void ThreadStages::StoreOfSharedPoint(const v1::LoopOp& op) {
  if (loaded_) block_.Barrier();
  loaded_ = false;
  stored_ = true;
  b_.If(b_.CreateICmpEQ(block_.Thread(), b_.I64(0)), "first_thread", [&] { StageEmitter::Store(op); });
}

void ThreadStages::Store(const v1::LoopOp& op) {
  const auto sum = std::find_if(sums_.begin(), sums_.end(),
                                [&](const StripSum& candidate) { return candidate.op == &op; });
  if (sum == sums_.end()) {
    if (IsSharedPoint()) return StoreOfSharedPoint(op);
    const bool one_stores = rows() > 1 && at_.stage->stage->inner_size() == 0 && !in_first_row_;
    if (one_stores) {
      IfFirstRow([&] { StageEmitter::Store(op); });
    } else {
      StageEmitter::Store(op);
    }
    return;
  }
  llvm::AllocaInst* slot = sum->slots[iteration_];
  llvm::Value* before = b_.CreateLoad(slot->getAllocatedType(), slot);
  b_.CreateStore(b_.CreateFAdd(before, at_.Broadcast(at_.values[op.args(0)])), slot);
}

}  // namespace kiln
