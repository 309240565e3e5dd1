#include "compiler/schedule/shifted_reduction.h"

#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/row_reads.h"
#include "compiler/schedule/summed_exponentials.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

// The mean's part of it: of the sum of (x - mean of x)², whose terms are `squares`.
std::optional<v1::ShiftedReduction> OfMean(const KernelFacts& facts, uint32_t sum, uint32_t squares) {
  v1::ShiftedReduction shifted;
  const v1::LoopOp& square = facts.op(squares);
  if (facts.opcode(squares) != LoopOpcode::kMul || square.args(0) != square.args(1)) return std::nullopt;
  const v1::LoopOp& difference = facts.op(square.args(0));
  if (facts.opcode(square.args(0)) != LoopOpcode::kSub || difference.dtype() != v1::F32) return std::nullopt;
  const uint32_t center = difference.args(1);
  const v1::LoopOp& mean = facts.op(center);
  if ((facts.opcode(center) != LoopOpcode::kDiv && facts.opcode(center) != LoopOpcode::kMul) ||
      facts.opcode(mean.args(1)) != LoopOpcode::kConstant) {
    return std::nullopt;
  }
  const uint32_t reduced = mean.args(0);
  if (!facts.IsReduction(reduced, v1::REDUCE_SUM) || !facts.SameRow(facts.StageOf(sum), reduced) ||
      !facts.SameValue(difference.args(0), facts.op(reduced).args(0))) {
    return std::nullopt;
  }
  shifted.set_of_mean(true);
  shifted.set_reduced(reduced);
  shifted.set_center(center);
  shifted.set_difference(square.args(0));
  shifted.set_sum(sum);
  return shifted;
}

// Of the sum of e^(x - maximum of x), or of (x - mean of x)².
std::optional<v1::ShiftedReduction> ShiftedReductionOf(const KernelFacts& facts, uint32_t sum) {
  if (!facts.IsReduction(sum, v1::REDUCE_SUM) || !facts.StageOf(sum).IsRowPass()) return std::nullopt;
  const uint32_t summed = facts.op(sum).args(0);
  if (facts.uses(summed) != 1) return std::nullopt;
  if (!IsExponential(facts.opcode(summed))) return OfMean(facts, sum, summed);
  const std::optional<uint32_t> maximum = MaximumBelow(facts, summed);
  if (!maximum) return std::nullopt;
  v1::ShiftedReduction shifted;
  shifted.set_reduced(*maximum);
  shifted.set_center(*maximum);
  shifted.set_difference(facts.op(summed).args(0));
  shifted.set_sum(sum);
  return shifted;
}

// The stage reduces once, and else only reads what the kernel does not change.
bool OnlyReduces(const KernelFacts& facts, const StageFacts& stage) {
  int reductions = 0;
  for (uint32_t id = stage.first_op; id < stage.end_op(); ++id) {
    const LoopOpcode opcode = facts.opcode(id);
    if (opcode == LoopOpcode::kStore || opcode == LoopOpcode::kCheckIndex) return false;
    if (opcode == LoopOpcode::kLoad && !facts.IsSourceLoad(facts.op(id))) return false;
    reductions += opcode == LoopOpcode::kReduce ? 1 : 0;
  }
  return reductions == 1;
}

// Of all between the two stages the second needs nothing but the center, once.
bool AsksForCenterAlone(const KernelFacts& facts, const v1::ShiftedReduction& shifted,
                        const StageFacts& first, const StageFacts& second) {
  int centers = 0;
  for (uint32_t id = second.first_op; id < second.end_op(); ++id) {
    for (const uint32_t arg : facts.op(id).args()) {
      if (arg == shifted.center()) {
        ++centers;
      } else if (arg >= first.first_op && arg < second.first_op) {
        return false;
      }
    }
  }
  return centers == 1;
}

bool MayShareAPass(const KernelFacts& facts, const v1::RowSchedule& rows,
                   const v1::ShiftedReduction& shifted) {
  const StageFacts &first = facts.StageOf(shifted.reduced()), &second = facts.StageOf(shifted.sum());
  if (facts.uses(shifted.difference()) != (shifted.of_mean() ? 2 : 1)) return false;
  if (&first >= &second || !first.IsRowPass() || shifted.center() >= second.first_op) return false;
  for (const StageFacts* between = &first + 1; between < &second; ++between) {
    if (between->stage->inner_size() != 0) return false;
  }
  // Kept exponentials are scaled afterwards: others than a softmax's are values with bits of their own.
  const uint32_t summed = facts.op(shifted.sum()).args(0);
  if (rows.has_cache() && rows.cache().writer() == summed &&
      facts.opcode(summed) != LoopOpcode::kSoftmaxExp) {
    return false;
  }
  // Off a mean the pass emits the second stage alone: what the first keeps would not be there.
  if (shifted.of_mean() && rows.has_cache() && &facts.StageOf(rows.cache().writer()) == &first) return false;
  return OnlyReduces(facts, first) && OnlyReduces(facts, second) &&
         AsksForCenterAlone(facts, shifted, first, second);
}

bool Pays(const KernelFacts& facts, const Machine& machine, const v1::RowSchedule& rows,
          const v1::ShiftedReduction& shifted) {
  const StageFacts& first = facts.StageOf(shifted.reduced());
  const StageFacts& reader = shifted.of_mean() ? facts.StageOf(shifted.sum()) : first;
  const bool from_memory =
      facts.kernel().outer_size() == 1 && ReadsRowFromMemory(facts, machine, rows, reader);
  return cost::PaysShiftedReduction(facts.ConstantExpr(first.stage->inner(0)).value_or(0), from_memory);
}

bool Equals(const v1::ShiftedReduction& a, const v1::ShiftedReduction& b) {
  return a.of_mean() == b.of_mean() && a.reduced() == b.reduced() && a.center() == b.center() &&
         a.difference() == b.difference() && a.sum() == b.sum();
}

}  // namespace

void ChooseShiftedReduction(const KernelFacts& facts, const VectorTarget& target,
                            v1::VectorSchedule* schedule) {
  if (!schedule->has_rows() || schedule->lanes() == 1 || facts.IndexesByValues()) return;
  v1::RowSchedule* rows = schedule->mutable_rows();
  for (uint32_t id = 0; id < facts.ops().size(); ++id) {
    const std::optional<v1::ShiftedReduction> shifted = ShiftedReductionOf(facts, id);
    if (!shifted || !MayShareAPass(facts, *rows, *shifted) || !Pays(facts, target.machine, *rows, *shifted)) {
      continue;
    }
    *rows->mutable_shifted() = *shifted;
    return;
  }
}

absl::Status CheckShiftedReduction(const KernelFacts& facts, const VectorTarget&,
                                   const v1::VectorSchedule& schedule) {
  if (!schedule.rows().has_shifted()) return absl::OkStatus();
  const v1::ShiftedReduction& asked = schedule.rows().shifted();
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule: shifted reduction of op ", asked.sum(), " ", what));
  };
  if (schedule.lanes() == 1 || facts.IndexesByValues())
    return refuse("needs vectors, and no index by values");
  if (asked.sum() >= facts.ops().size()) return refuse("that does not exist");
  const std::optional<v1::ShiftedReduction> found = ShiftedReductionOf(facts, asked.sum());
  if (!found || !Equals(*found, asked)) return refuse("is not what the kernel computes");
  if (!MayShareAPass(facts, schedule.rows(), asked)) return refuse("cannot share a pass");
  // The estimate is the row's first vector.
  if (facts.ConstantExpr(facts.StageOf(asked.reduced()).stage->inner(0)).value_or(0) < schedule.lanes()) {
    return refuse("has rows shorter than a vector");
  }
  return absl::OkStatus();
}

bool ReadsShifted(const KernelFacts& facts, const v1::RowSchedule& rows, const StageFacts& stage) {
  if (!rows.has_shifted()) return false;
  return &stage == &facts.StageOf(rows.shifted().of_mean() ? rows.shifted().reduced() : rows.shifted().sum());
}

bool IsDoneShifted(const KernelFacts& facts, const v1::RowSchedule& rows, const StageFacts& stage) {
  return rows.has_shifted() && &stage > &facts.StageOf(rows.shifted().reduced()) &&
         &stage <= &facts.StageOf(rows.shifted().sum());
}

}  // namespace kiln
