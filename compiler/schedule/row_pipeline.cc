#include "compiler/schedule/row_pipeline.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/schedule/long_sums.h"
#include "compiler/schedule/row_reads.h"
#include "compiler/schedule/shifted_reduction.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr uint32_t kGroupRows = 8;
constexpr uint32_t kBlockColumns = 256;
constexpr uint32_t kRowsAtOnce = 4;  // of a group, where not the processor itself fetches ahead
constexpr uint32_t kGroupRowsMax = 64;
constexpr uint32_t kUnrollMax = 4;

bool IsUpdated(const v1::KernelBuffer& buffer) {
  return buffer.access() != v1::READ && buffer.access() != v1::WRITE;
}

bool ComputesMuch(const KernelFacts& facts, const v1::RowSchedule& rows) {
  if (rows.has_shifted()) return true;
  return std::any_of(facts.ops().begin(), facts.ops().end(),
                     [](const v1::LoopOp* op) { return IsExponential(static_cast<LoopOpcode>(op->op())); });
}

bool AllStoresArePlain(const KernelFacts& facts) {
  return std::all_of(facts.ops().begin(), facts.ops().end(), [](const v1::LoopOp* op) {
    return static_cast<LoopOpcode>(op->op()) != LoopOpcode::kStore || op->mode() == v1::STORE_PLAIN;
  });
}

// Two passes, the last of which makes the results.
bool AllowsGroups(const KernelFacts& facts, const v1::RowSchedule& rows, const RowPasses& all) {
  const RowPasses::Pass& last = all.passes.back();
  const StageFacts& stage = facts.stages()[last.stage];
  return !rows.has_cache() && all.passes.size() == 2 && !stage.has_reduce && last.after.empty() &&
         facts.ConstantExpr(stage.stage->inner(0)).has_value();
}

// What the last pass reads beside its row, alike for all rows.
int64_t SharedColumnsBytes(const KernelFacts& facts, const RowPasses& all) {
  const StageFacts& last = facts.stages()[all.passes.back().stage];
  const int64_t columns = *facts.ConstantExpr(last.stage->inner(0));
  std::set<std::pair<uint32_t, uint32_t>> seen;
  int64_t bytes = 0;
  for (const v1::LoopOp& op : last.stage->ops()) {
    if (static_cast<LoopOpcode>(op.op()) != LoopOpcode::kLoad || facts.DependsOnOps(op.index())) continue;
    if (facts.CoefficientOf(op.index(), 0) != 0 || facts.CoefficientOf(op.index(), 1) != 1) continue;
    if (!seen.insert({op.buffer(), op.index()}).second) continue;
    bytes += columns * ir::ByteWidth(facts.kernel().buffers(static_cast<int>(op.buffer())).dtype());
  }
  return bytes;
}

// The passes, where the kernel allows a pipeline of them.
std::optional<RowPasses> PipelinePasses(const KernelFacts& facts, const v1::VectorSchedule& schedule) {
  const v1::Kernel& kernel = facts.kernel();
  if (!schedule.has_rows() || schedule.lanes() == 1 || kernel.outer_size() != 1 || facts.IndexesByValues() ||
      std::any_of(kernel.buffers().begin(), kernel.buffers().end(), IsUpdated) || !AllStoresArePlain(facts)) {
    return std::nullopt;
  }
  const v1::RowSchedule& rows = schedule.rows();
  std::optional<RowPasses> all = RowPassesOf(facts, rows);
  if (!all || all->passes.size() < 2) return std::nullopt;
  if (rows.has_shifted() &&  // the estimate is made where an iteration begins
      &facts.stages()[all->passes[0].stage] != &facts.StageOf(rows.shifted().reduced())) {
    return std::nullopt;
  }
  if (rows.has_cache() &&
      all->PassOf(facts, rows.cache().reader()) != all->PassOf(facts, rows.cache().writer()) + 1) {
    return std::nullopt;
  }
  return all;
}

uint32_t UnrollOf(const KernelFacts& facts, const VectorTarget& target, const v1::VectorSchedule& schedule,
                  const StageFacts& stage, int64_t row_bytes) {
  const v1::RowPipeline& pipeline = schedule.rows().pipeline();
  if (pipeline.rows_at_once() > 1) return 1;  // by rows instead
  if (!stage.has_reduce || !stage.short_body || stage.has_scan) return 1;
  // Rows that wait in the second-level cache alternate in shorter pieces: memory is busier then.
  const bool alternates = target.machine.cpu.prefetch.crosses_pages && schedule.rows().has_pipeline();
  if (alternates && pipeline.group_rows() > 0) return 2;
  if (alternates && row_bytes > cost::FirstLevelRowBytesMax(target.machine)) return 1;
  return schedule.lanes() > target.register_lanes ? 2 : kUnrollMax;
}

absl::Status Refuse(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("schedule: row pipeline: ", what));
}

}  // namespace

size_t RowPasses::PassOf(const KernelFacts& facts, uint32_t op) const {
  size_t pass = 0;
  while (pass + 1 < passes.size() && facts.stages()[passes[pass + 1].stage].first_op <= op) ++pass;
  return pass;
}

std::optional<RowPasses> RowPassesOf(const KernelFacts& facts, const v1::RowSchedule& rows) {
  RowPasses all;
  for (size_t k = 0; k < facts.stages().size(); ++k) {
    const StageFacts& stage = facts.stages()[k];
    const int loops = stage.stage->inner_size();
    if (stage.has_scan || loops > 1 || (loops > 0 && !stage.short_body)) return std::nullopt;
    if (IsDoneShifted(facts, rows, stage)) continue;
    if (loops == 0) {
      (all.passes.empty() ? all.before : all.passes.back().after).push_back(k);
      continue;
    }
    const bool first = all.passes.empty();
    if (!first && stage.stage->inner(0) != facts.stages()[all.passes[0].stage].stage->inner(0)) {
      return std::nullopt;
    }
    all.passes.push_back({k, {}});
  }
  return all;
}

void ChooseRowPipeline(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule) {
  const std::optional<RowPasses> all = PipelinePasses(facts, *schedule);
  if (!all) return;
  v1::RowSchedule* rows = schedule->mutable_rows();
  if (!cost::PaysRowPipeline(facts.ConstantExpr(facts.kernel().outer(0)), all->passes.size(),
                             ComputesMuch(facts, *rows))) {
    return;
  }
  const RowReads reads = RowReadsOf(facts, target.machine, *rows);
  if (reads.loads.empty()) return;
  v1::RowPipeline pipeline;
  pipeline.set_rows_at_once(1);
  const StageFacts& last = facts.stages()[all->passes.back().stage];
  if (AllowsGroups(facts, *rows, *all) && *facts.ConstantExpr(last.stage->inner(0)) % kBlockColumns == 0 &&
      SharedColumnsBytes(facts, *all) >= cost::SharedColumnsBytesMin(target.machine)) {
    if (!rows->has_shifted() && reads.loads.size() > 1) return;
    pipeline.set_group_rows(kGroupRows);
    pipeline.set_block_columns(kBlockColumns);
    if (!target.machine.cpu.prefetch.crosses_pages) pipeline.set_rows_at_once(kRowsAtOnce);
  }
  *rows->mutable_pipeline() = pipeline;
}

absl::Status CheckRowPipeline(const KernelFacts& facts, const VectorTarget&,
                              const v1::VectorSchedule& schedule) {
  if (!schedule.rows().has_pipeline()) return absl::OkStatus();
  const v1::RowPipeline& pipeline = schedule.rows().pipeline();
  const std::optional<RowPasses> all = PipelinePasses(facts, schedule);
  if (!all) return Refuse("the kernel is not made of short passes over the same row of one outer loop");
  if (pipeline.group_rows() == 0) {
    if (pipeline.block_columns() != 0 || pipeline.rows_at_once() != 1)
      return Refuse("numbers of a group without one");
    return absl::OkStatus();
  }
  if (!AllowsGroups(facts, schedule.rows(), *all))
    return Refuse("groups need two passes, and results by the last");
  if (pipeline.group_rows() > kGroupRowsMax || pipeline.rows_at_once() == 0 ||
      pipeline.group_rows() % pipeline.rows_at_once() != 0) {
    return Refuse(
        absl::StrCat(pipeline.rows_at_once(), " rows at once of a group of ", pipeline.group_rows()));
  }
  const size_t first = all->passes[0].stage;
  if (static_cast<int>(first) >= schedule.rows().unroll_size())
    return Refuse("passes without an unroll count");
  const uint64_t per_iteration =
      uint64_t{schedule.lanes()} * schedule.rows().unroll(static_cast<int>(first)) * pipeline.rows_at_once();
  const int64_t columns = *facts.ConstantExpr(facts.stages()[first].stage->inner(0));
  // A row's iterations of a block divide those between additions to long sums: rows of a group are added up
  // as others are.
  if (per_iteration == 0 || pipeline.block_columns() == 0 || pipeline.block_columns() % per_iteration != 0 ||
      kIterationsToTotal % static_cast<int64_t>(pipeline.block_columns() / per_iteration) != 0 ||
      columns % pipeline.block_columns() != 0) {
    return Refuse(absl::StrCat("blocks of ", pipeline.block_columns(), " columns, of rows of ", columns,
                               " and iterations of ", per_iteration));
  }
  return absl::OkStatus();
}

void ChooseUnroll(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule) {
  if (!schedule->has_rows()) return;
  const int64_t row_bytes =
      schedule->rows().has_pipeline() ? RowReadsOf(facts, target.machine, schedule->rows()).row_bytes : 0;
  for (const StageFacts& stage : facts.stages()) {
    schedule->mutable_rows()->add_unroll(UnrollOf(facts, target, *schedule, stage, row_bytes));
  }
}

absl::Status CheckUnroll(const KernelFacts& facts, const VectorTarget&, const v1::VectorSchedule& schedule) {
  if (!schedule.has_rows()) return absl::OkStatus();
  const auto& unroll = schedule.rows().unroll();
  if (static_cast<size_t>(unroll.size()) != facts.stages().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule: unroll counts of ", unroll.size(), " stages of ", facts.stages().size()));
  }
  uint32_t of_passes = 0;
  for (int k = 0; k < unroll.size(); ++k) {
    const StageFacts& stage = facts.stages()[static_cast<size_t>(k)];
    const bool may_unroll = stage.has_reduce && !stage.has_scan && schedule.lanes() > 1;
    // Rows at the ends of a range are walked a stage at a time, and must be added up as others are.
    if (schedule.rows().has_pipeline() && may_unroll && stage.stage->inner_size() > 0) {
      if (of_passes != 0 && unroll[k] != of_passes) return Refuse("passes that are unrolled differently");
      of_passes = unroll[k];
    }
    if (!absl::has_single_bit(unroll[k]) || unroll[k] > (may_unroll ? kUnrollMax : 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("schedule: stage ", k, " unrolled ", unroll[k], " times"));
    }
  }
  return absl::OkStatus();
}

uint32_t VectorsSideBySide(const KernelFacts& facts, const v1::VectorSchedule& schedule,
                           const StageFacts& stage, uint32_t unroll) {
  if (stage.stage->inner_size() == 0) return unroll;
  const std::optional<int64_t> known = facts.ConstantExpr(*stage.stage->inner().rbegin());
  while (known && unroll > 1 && *known < int64_t{schedule.lanes()} * unroll) unroll /= 2;
  return unroll;
}

}  // namespace kiln
