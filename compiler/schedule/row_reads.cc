#include "compiler/schedule/row_reads.h"

#include <set>
#include <utility>

#include "compiler/ir/dtype_groups.h"
#include "compiler/schedule/row_cache.h"
#include "compiler/schedule/shifted_reduction.h"
#include "compiler/target/cost_model.h"

namespace kiln {

int64_t RowBytesRead(const KernelFacts& facts, const Machine& machine, uint32_t id,
                     int64_t buffer_bytes_min) {
  const v1::LoopOp& op = facts.op(id);
  if (facts.opcode(id) != LoopOpcode::kLoad || op.args_size() > 0) return 0;
  const auto outer = static_cast<uint32_t>(facts.kernel().outer_size());
  if (outer == 0) return 0;
  const v1::KernelBuffer& buffer = facts.kernel().buffers(static_cast<int>(op.buffer()));
  const auto width = static_cast<int64_t>(ir::ByteWidth(buffer.dtype()));
  const int64_t row = facts.ConstantExpr(facts.StageOf(id).stage->inner(0)).value_or(0) * width;
  if (buffer.access() != v1::READ || row > cost::SecondLevelRowBytesMax(machine)) return 0;
  if (facts.ConstantExpr(buffer.span()).value_or(0) * width < buffer_bytes_min) return 0;
  if (facts.DependsOnOps(op.index()) || facts.CoefficientOf(op.index(), outer) != 1) return 0;
  return facts.CoefficientOf(op.index(), outer - 1).value_or(0) * width < row ? 0 : row;
}

RowReads RowReadsOf(const KernelFacts& facts, const Machine& machine, const v1::RowSchedule& rows) {
  const std::vector<bool> skipped = SkippedOps(facts, rows);
  RowReads reads;
  std::set<std::pair<uint32_t, uint32_t>> seen;
  for (const StageFacts& stage : facts.stages()) {
    if (stage.stage->inner_size() == 0 || ReadsShifted(facts, rows, stage)) continue;
    for (uint32_t id = stage.first_op; id < stage.end_op(); ++id) {
      if (skipped[id]) continue;
      const int64_t bytes = RowBytesRead(facts, machine, id, cost::FromMemoryBytesMin(machine));
      if (bytes == 0 || !seen.insert({facts.op(id).buffer(), facts.op(id).index()}).second) continue;
      reads.loads.push_back(id);
      reads.row_bytes += bytes;
    }
  }
  return reads;
}

bool ReadsRowFromMemory(const KernelFacts& facts, const Machine& machine, const v1::RowSchedule& rows,
                        const StageFacts& stage) {
  const std::vector<bool> skipped = SkippedOps(facts, rows);
  for (uint32_t id = stage.first_op; id < stage.end_op(); ++id) {
    if (!skipped[id] && RowBytesRead(facts, machine, id, cost::FromMemoryBytesMin(machine)) > 0) return true;
  }
  return false;
}

}  // namespace kiln
