#include "compiler/schedule/softmax_sum.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/ir/reduce_kinds.h"
#include "compiler/schedule/long_sums.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

bool IsReduceOfF32(const KernelFacts& facts, uint32_t id, v1::ReduceKind kind) {
  return facts.IsReduction(id, kind) && facts.op(id).dtype() == v1::F32;
}

// Is what `second` begins with what `first` computes but for its last op?
bool BeginsAlike(const KernelFacts& facts, const StageFacts& first, const StageFacts& second) {
  for (uint32_t k = 0; first.first_op + k + 1 < first.end_op(); ++k) {
    const v1::LoopOp &a = facts.op(first.first_op + k), &b = facts.op(second.first_op + k);
    const LoopOpcode opcode = facts.opcode(first.first_op + k);
    if (opcode == LoopOpcode::kStore || opcode == LoopOpcode::kReduce || opcode == LoopOpcode::kCheckIndex)
      return false;
    if (opcode == LoopOpcode::kLoad && !facts.IsSourceLoad(a)) return false;
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

// Loops of one extent, with nothing in between.
bool AreNeighbours(const KernelFacts& facts, const StageFacts& first, const StageFacts& second) {
  if (!first.IsRowPass() || !second.IsRowPass()) return false;
  for (const StageFacts* between = &first + 1; between < &second; ++between) {
    if (between->stage->ops_size() > 0) return false;
  }
  const std::optional<int64_t> extent = facts.ConstantExpr(first.stage->inner(0));
  return extent && facts.ConstantExpr(second.stage->inner(0)) == extent;
}

std::optional<v1::SoftmaxSum> SoftmaxSumOf(const KernelFacts& facts) {
  std::vector<const StageFacts*> loops;
  for (const StageFacts& info : facts.stages()) {
    if (info.stage->inner_size() > 0) loops.push_back(&info);
  }
  if (loops.size() != 2 || !AreNeighbours(facts, *loops[0], *loops[1])) return std::nullopt;
  const StageFacts &first = *loops[0], &second = *loops[1];
  const auto own = static_cast<uint32_t>(first.stage->ops_size());  // with the maximum
  if (own < 2 || second.end_op() - second.first_op != own + 2) return std::nullopt;
  const uint32_t maximum = first.end_op() - 1, sum = second.end_op() - 1;
  if (!IsReduceOfF32(facts, maximum, v1::REDUCE_MAX) || !BeginsAlike(facts, first, second))
    return std::nullopt;
  const uint32_t value = facts.op(maximum).args(0);
  if (value < first.first_op) return std::nullopt;
  const uint32_t apart = sum - 2, power = sum - 1;
  const v1::LoopOp& difference = facts.op(apart);
  if (facts.opcode(apart) != LoopOpcode::kSub || difference.dtype() != v1::F32 ||
      difference.args(0) != second.first_op + value - first.first_op || difference.args(1) != maximum) {
    return std::nullopt;
  }
  if (!IsExponential(facts.opcode(power)) || facts.op(power).args(0) != apart) return std::nullopt;
  if (!IsReduceOfF32(facts, sum, v1::REDUCE_SUM) || facts.op(sum).args(0) != power) return std::nullopt;
  v1::SoftmaxSum found;
  found.set_maximum(maximum);
  found.set_sum(sum);
  return found;
}

}  // namespace

void ChooseSoftmaxSum(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule) {
  if (!schedule->has_rows()) return;
  const std::optional<v1::SoftmaxSum> found = SoftmaxSumOf(facts);
  if (!found) return;
  const v1::Stage& loop = *facts.StageOf(found->maximum()).stage;
  if (facts.ConstantExpr(loop.inner(0)).value_or(0) < cost::LongRow(machine)) return;
  *schedule->mutable_rows()->mutable_softmax() = *found;
}

absl::Status CheckSoftmaxSum(const KernelFacts& facts, const Machine&, const v1::ThreadSchedule& schedule) {
  if (!schedule.rows().has_softmax()) return absl::OkStatus();
  const v1::SoftmaxSum& asked = schedule.rows().softmax();
  const std::optional<v1::SoftmaxSum> found = SoftmaxSumOf(facts);
  if (found && found->maximum() == asked.maximum() && found->sum() == asked.sum()) return absl::OkStatus();
  return RefuseThreads("a softmax's sum that the kernel does not compute");
}

absl::Status CheckSoftmaxFits(const KernelFacts& facts, const Machine&, const v1::ThreadSchedule& schedule) {
  if (!schedule.rows().has_softmax()) return absl::OkStatus();
  const StageFacts& info = facts.StageOf(schedule.rows().softmax().sum());
  if (*facts.ConstantExpr(info.stage->inner(0)) % schedule.lanes() != 0)
    return RefuseThreads("a softmax's row is no whole vectors");
  if (HasLongSums(facts, schedule, static_cast<size_t>(&info - facts.stages().data())))
    return RefuseThreads("a softmax's sum that is kept in F64");
  return absl::OkStatus();
}

}  // namespace kiln
