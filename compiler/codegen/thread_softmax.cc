// A long row's maximum and the sum of its exponentials in one pass: each thread keeps the largest value so
// far and the sum scaled by it.
#include <algorithm>
#include <optional>
#include <vector>

#include "compiler/codegen/thread_emitter.h"

namespace kiln {
namespace {

constexpr int64_t kRowMin = 16384;  // shorter ones are kept in registers from one stage to the next
constexpr int64_t kWordsAtOnce = 16;

LoopOpcode OpcodeOf(const v1::LoopOp& op) { return static_cast<LoopOpcode>(op.op()); }

bool IsReduce(const v1::LoopOp& op, v1::ReduceKind kind) {
  return OpcodeOf(op) == LoopOpcode::kReduce && op.mode() == kind && op.dtype() == v1::F32;
}

}  // namespace

// Is what `second` begins with what `first` computes but for its last op?
bool ThreadEmitter::BeginsAlike(const StageInfo& first, const StageInfo& second) const {
  for (int k = 0; k + 1 < first.stage->ops_size(); ++k) {
    const v1::LoopOp &a = first.stage->ops(k), &b = second.stage->ops(k);
    const LoopOpcode opcode = OpcodeOf(a);
    if (opcode == LoopOpcode::kStore || opcode == LoopOpcode::kReduce || opcode == LoopOpcode::kCheckIndex)
      return false;
    if (opcode == LoopOpcode::kLoad && !IsSourceLoad(a)) return false;
    if (a.op() != b.op() || a.dtype() != b.dtype() || a.buffer() != b.buffer() || a.index() != b.index() ||
        a.bits() != b.bits() || a.mode() != b.mode() || a.args_size() != b.args_size()) {
      return false;
    }
    for (int n = 0; n < a.args_size(); ++n) {
      const bool own = a.args(n) >= first.first_op;
      if (b.args(n) != (own ? a.args(n) - first.first_op + second.first_op : a.args(n))) return false;
    }
  }
  return true;
}

// max(x) and then sum(exp(x - max)), nothing else that runs along the row, and nothing in between.
void ThreadEmitter::FindSoftmaxSum() {
  softmax_sum_.reset();
  std::vector<size_t> loops;
  for (size_t k = 0; k < stages_.size(); ++k) {
    if (stages_[k].stage->inner_size() > 0) loops.push_back(k);
  }
  if (loops.size() != 2) return;
  for (size_t k = loops[0] + 1; k < loops[1]; ++k) {
    if (stages_[k].stage->ops_size() > 0) return;
  }
  const StageInfo &first = stages_[loops[0]], &second = stages_[loops[1]];
  if (first.stage->inner_size() != 1 || second.stage->inner_size() != 1 || first.has_scan || second.has_scan)
    return;
  const std::optional<int64_t> extent = ConstantExpr(first.stage->inner(0));
  if (!extent || ConstantExpr(second.stage->inner(0)) != extent || *extent < kRowMin) return;
  const int own = first.stage->ops_size();  // with the maximum
  if (own < 2 || second.stage->ops_size() != own + 2) return;
  const v1::LoopOp& largest = first.stage->ops(own - 1);
  if (!IsReduce(largest, v1::REDUCE_MAX) || !BeginsAlike(first, second)) return;
  if (largest.args(0) < first.first_op) return;
  const uint32_t value = largest.args(0) - first.first_op;
  const v1::LoopOp &apart = second.stage->ops(own - 1), &power = second.stage->ops(own),
                   &sum = second.stage->ops(own + 1);
  if (OpcodeOf(apart) != LoopOpcode::kSub || apart.dtype() != v1::F32 ||
      apart.args(0) != second.first_op + value || apart.args(1) != first.first_op + own - 1) {
    return;
  }
  if (!IsExponential(OpcodeOf(power)) || power.args(0) != second.first_op + own - 1) return;
  if (!IsReduce(sum, v1::REDUCE_SUM) || sum.args(0) != second.first_op + own) return;
  softmax_sum_ = SoftmaxSum{loops[0], loops[1], first.first_op + value};
}

bool ThreadEmitter::SoftmaxSumFits() const {
  const StageInfo& second = stages_[softmax_sum_->sum];
  return *ConstantExpr(second.stage->inner(0)) % vector_lanes_ == 0 &&
         !LongSum(second, second.stage->ops(second.stage->ops_size() - 1), 1);
}

// The values of some turns, all of them in flight at once, join what there is.
void ThreadEmitter::AddToSoftmaxSum(llvm::Value* first_turn, int64_t turns, llvm::AllocaInst* largest,
                                    llvm::AllocaInst* sum) {
  const StageInfo& info = stages_[softmax_sum_->largest];
  std::vector<llvm::Value*> values;
  for (int64_t turn = 0; turn < turns; ++turn) {
    variables_[kernel_.outer_size()] =
        b_.CreateNSWMul(b_.CreateNSWAdd(first_turn, I64(turn * threads_)), I64(vector_lanes_));
    for (int k = 0; k + 1 < info.stage->ops_size(); ++k) EmitOp(info.first_op + k, info.stage->ops(k));
    values.push_back(Broadcast(values_[softmax_sum_->value]));
  }
  const auto lanes_of = [&](llvm::Value* v, absl::FunctionRef<void(llvm::Value*)> visit) {
    for (uint64_t lane = 0; lane < lanes_; ++lane) visit(lanes_ == 1 ? v : b_.CreateExtractElement(v, lane));
  };
  llvm::Value* most = values[0];
  for (size_t k = 1; k < values.size(); ++k) most = Combine(v1::REDUCE_MAX, v1::F32, most, values[k]);
  llvm::Value* before = b_.CreateLoad(b_.getFloatTy(), largest);
  llvm::Value* after = before;
  lanes_of(most, [&](llvm::Value* v) { after = Combine(v1::REDUCE_MAX, v1::F32, after, v); });
  llvm::Value* origin = SoftmaxOrigin(after);
  llvm::Value* total =
      b_.CreateFMul(b_.CreateLoad(b_.getFloatTy(), sum), ExpOf(b_.CreateFSub(before, origin)));
  llvm::Value* wide_origin = Splat(origin);
  llvm::Value* added = nullptr;
  for (llvm::Value* v : values) {
    llvm::Value* power = ExpOf(b_.CreateFSub(v, wide_origin));
    added = added == nullptr ? power : b_.CreateFAdd(added, power);
  }
  lanes_of(added, [&](llvm::Value* v) { total = b_.CreateFAdd(total, v); });
  b_.CreateStore(after, largest);
  b_.CreateStore(total, sum);
}

llvm::Value* ThreadEmitter::ExpOf(llvm::Value* v) { return EmitFloat(LoopOpcode::kExp, {v}); }

// What is subtracted before an exponential: where nothing but -inf was seen so far, nothing is.
llvm::Value* ThreadEmitter::SoftmaxOrigin(llvm::Value* largest) {
  llvm::Value* none = b_.CreateFCmpOEQ(largest, llvm::ConstantFP::getInfinity(b_.getFloatTy(), true));
  return b_.CreateSelect(none, llvm::ConstantFP::get(b_.getFloatTy(), 0.0), largest);
}

void ThreadEmitter::EmitSoftmaxSum() {
  const StageInfo &first = stages_[softmax_sum_->largest], &second = stages_[softmax_sum_->sum];
  stage_ = &first;
  variables_.resize(kernel_.outer_size() + 1);
  llvm::Type* f32 = b_.getFloatTy();
  llvm::Constant* lowest = llvm::ConstantFP::getInfinity(f32, true);
  llvm::AllocaInst* largest = Slot(f32, "largest");
  llvm::AllocaInst* sum = Slot(f32, "sum");
  b_.CreateStore(lowest, largest);
  b_.CreateStore(llvm::ConstantFP::get(f32, 0.0), sum);
  lanes_ = vector_lanes_;
  if (lanes_ > 1) vector_variable_ = kernel_.outer_size();
  const int64_t turns = Turns(first);
  const int64_t common = turns / threads_;
  const int64_t at_once = std::clamp<int64_t>(kWordsAtOnce / vector_lanes_, 2, kUnrolledTurns);
  const int64_t looped = common / at_once * at_once;
  llvm::Value* thread = Thread();
  ScalarLoop(I64(0), I64(looped * threads_), I64(at_once * threads_), "turns", [&](llvm::Value* begin) {
    AddToSoftmaxSum(b_.CreateNSWAdd(begin, thread), at_once, largest, sum);
  });
  llvm::Value* rest = b_.CreateNSWAdd(thread, I64(looped * threads_));
  if (common > looped) AddToSoftmaxSum(rest, common - looped, largest, sum);
  if (turns % threads_ != 0) {
    llvm::Value* last = b_.CreateNSWAdd(thread, I64(common * threads_));
    If(b_.CreateICmpSLT(last, I64(turns)), "turn", [&] { AddToSoftmaxSum(last, 1, largest, sum); });
  }
  lanes_ = 1;
  vector_variable_ = kNoVariable;

  Accumulator accumulator;
  accumulator.op = first.first_op + first.stage->ops_size() - 1;
  accumulator.kind = v1::REDUCE_MAX;
  accumulator.dtype = v1::F32;
  llvm::Value* own = b_.CreateLoad(f32, largest);
  llvm::Value* most = own;
  llvm::Value* position = nullptr;
  CombineThreads(accumulator, v1::F32, &most, &position);
  values_[accumulator.op] = {most, false};
  llvm::Value* total = b_.CreateFMul(b_.CreateLoad(f32, sum), ExpOf(b_.CreateFSub(own, SoftmaxOrigin(most))));
  accumulator.op = second.first_op + second.stage->ops_size() - 1;
  accumulator.kind = v1::REDUCE_SUM;
  CombineThreads(accumulator, v1::F32, &total, &position);
  // Of a row of -inf it is that of exp(-inf - -inf).
  llvm::Value* none = b_.CreateFCmpOEQ(most, lowest);
  values_[accumulator.op] = {b_.CreateSelect(none, llvm::ConstantFP::getNaN(f32), total), false};
}

}  // namespace kiln
