#include "compiler/schedule/summed_exponentials.h"

#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

// Are the sum's terms exponentials below a row's maximum that nothing else uses? They need no exact bits.
bool MayApproximate(const KernelFacts& facts, const v1::RowSchedule& rows, uint32_t sum) {
  if (!facts.IsReduction(sum, v1::REDUCE_SUM) || facts.IndexesByValues()) return false;
  if (!facts.StageOf(sum).IsRowPass()) return false;
  const uint32_t exponential = facts.op(sum).args(0);
  if (!IsExponential(facts.opcode(exponential)) || facts.uses(exponential) != 1) return false;
  // What the row cache keeps is computed in a form of its own, and what it gives back has no argument here.
  if (rows.has_cache() && (rows.cache().writer() == exponential || rows.cache().reader() == exponential))
    return false;
  return MaximumBelow(facts, exponential).has_value();
}

}  // namespace

std::optional<uint32_t> MaximumBelow(const KernelFacts& facts, uint32_t exponential) {
  const StageFacts& stage = facts.StageOf(exponential);
  if (!stage.IsRowPass() || facts.op(exponential).dtype() != v1::F32) return std::nullopt;
  const v1::LoopOp& difference = facts.op(facts.op(exponential).args(0));
  if (static_cast<LoopOpcode>(difference.op()) != LoopOpcode::kSub) return std::nullopt;
  const uint32_t x = difference.args(0), maximum = difference.args(1);
  if (!facts.IsReduction(maximum, v1::REDUCE_MAX) || !facts.SameRow(stage, maximum) ||
      !facts.SameValue(x, facts.op(maximum).args(0))) {
    return std::nullopt;
  }
  return maximum;
}

void ChooseSummedExponentials(const KernelFacts& facts, const VectorTarget&, v1::VectorSchedule* schedule) {
  if (!schedule->has_rows()) return;
  v1::RowSchedule* rows = schedule->mutable_rows();
  for (uint32_t id = 0; id < facts.ops().size(); ++id) {
    if (MayApproximate(facts, *rows, id)) rows->add_summed_exponentials(id);
  }
}

absl::Status CheckSummedExponentials(const KernelFacts& facts, const VectorTarget&,
                                     const v1::VectorSchedule& schedule) {
  uint32_t next = 0;
  for (const uint32_t id : schedule.rows().summed_exponentials()) {
    if (id < next || id >= facts.ops().size() || !MayApproximate(facts, schedule.rows(), id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("schedule: op ", id, " is no sum of exponentials below a row's maximum"));
    }
    next = id + 1;
  }
  return absl::OkStatus();
}

}  // namespace kiln
