#include "compiler/schedule/row_cache.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

bool IsCacheable(const KernelFacts& facts, uint32_t id) {
  return IsExponential(facts.opcode(id)) && facts.op(id).dtype() == v1::F32;
}

bool MayCache(const KernelFacts& facts, const v1::VectorSchedule& schedule, uint32_t writer,
              uint32_t reader) {
  if (facts.IndexesByValues() || !IsCacheable(facts, writer) || !IsCacheable(facts, reader)) return false;
  const StageFacts &first = facts.StageOf(writer), &second = facts.StageOf(reader);
  if (&first >= &second || !first.IsRowPass() || !second.IsRowPass()) return false;
  if (first.stage->inner(0) != second.stage->inner(0) || !facts.SameValue(writer, reader)) return false;
  const int64_t elements = facts.ConstantExpr(second.stage->inner(0)).value_or(0);
  return elements >= schedule.lanes() && elements <= kRowCacheBytesMax / 4;
}

// The first exponential of an earlier stage that is the one asked for.
std::optional<uint32_t> EarlierExponential(const KernelFacts& facts, const v1::VectorSchedule& schedule,
                                           uint32_t reader) {
  for (uint32_t id = 0; id < reader; ++id) {
    if (MayCache(facts, schedule, id, reader)) return id;
  }
  return std::nullopt;
}

// What only the value that is read back was computed from.
void SkipArgumentsOf(const KernelFacts& facts, uint32_t reader, std::vector<bool>* skipped) {
  const StageFacts& stage = facts.StageOf(reader);
  std::vector<bool> needed(facts.ops().size());
  for (uint32_t id = stage.end_op(); id-- > stage.first_op;) {
    const LoopOpcode opcode = facts.opcode(id);
    const bool acts =
        opcode == LoopOpcode::kStore || opcode == LoopOpcode::kReduce || opcode == LoopOpcode::kCheckIndex;
    if (id < reader && !acts && !needed[id]) {
      (*skipped)[id] = true;
    } else if (id != reader) {
      for (uint32_t arg : facts.op(id).args()) needed[arg] = true;
    }
  }
}

// Of other factors than the inverse of the sum the product with the row's scale might be too small.
bool MayScale(const KernelFacts& facts, const v1::RowSchedule& rows, uint32_t id) {
  if (facts.opcode(id) != LoopOpcode::kMul) return false;
  const auto of = [&](uint32_t kept, uint32_t factor) {
    return kept == rows.cache().reader() && facts.opcode(factor) == LoopOpcode::kReciprocal &&
           facts.op(factor).args(0) == rows.shifted().sum();
  };
  const v1::LoopOp& op = facts.op(id);
  return of(op.args(0), op.args(1)) || of(op.args(1), op.args(0));
}

}  // namespace

void ChooseRowCache(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule) {
  if (!schedule->has_rows() || schedule->lanes() == 1) return;
  for (uint32_t id = 0; id < facts.ops().size(); ++id) {
    if (!IsCacheable(facts, id) || !facts.StageOf(id).IsRowPass()) continue;
    const int64_t elements = facts.ConstantExpr(facts.StageOf(id).stage->inner(0)).value_or(0);
    if (elements > cost::SecondLevelRowBytesMax(target.machine) / 4) continue;
    if (const std::optional<uint32_t> writer = EarlierExponential(facts, *schedule, id)) {
      schedule->mutable_rows()->mutable_cache()->set_writer(*writer);
      schedule->mutable_rows()->mutable_cache()->set_reader(id);
      return;
    }
  }
}

absl::Status CheckRowCache(const KernelFacts& facts, const VectorTarget&,
                           const v1::VectorSchedule& schedule) {
  if (!schedule.rows().has_cache()) return absl::OkStatus();
  const v1::RowCache& cache = schedule.rows().cache();
  if (schedule.lanes() == 1 || cache.writer() >= facts.ops().size() || cache.reader() >= facts.ops().size() ||
      !MayCache(facts, schedule, cache.writer(), cache.reader())) {
    return absl::InvalidArgumentError(absl::StrCat("schedule: op ", cache.reader(), " cannot read what op ",
                                                   cache.writer(), " keeps of a row"));
  }
  return absl::OkStatus();
}

bool KeepsShifted(const KernelFacts& facts, const v1::RowSchedule& rows) {
  return rows.has_cache() && rows.has_shifted() &&
         rows.cache().writer() == facts.op(rows.shifted().sum()).args(0);
}

void ChooseScaledProducts(const KernelFacts& facts, const VectorTarget&, v1::VectorSchedule* schedule) {
  if (!KeepsShifted(facts, schedule->rows())) return;
  v1::RowSchedule* rows = schedule->mutable_rows();
  for (uint32_t id = 0; id < facts.ops().size(); ++id) {
    if (MayScale(facts, *rows, id)) rows->mutable_cache()->add_scaled(id);
  }
}

absl::Status CheckScaledProducts(const KernelFacts& facts, const VectorTarget&,
                                 const v1::VectorSchedule& schedule) {
  const v1::RowSchedule& rows = schedule.rows();
  uint32_t next = 0;
  for (const uint32_t id : rows.cache().scaled()) {
    if (!KeepsShifted(facts, rows) || id < next || id >= facts.ops().size() || !MayScale(facts, rows, id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("schedule: op ", id, " is no product that scales what a row keeps"));
    }
    next = id + 1;
  }
  return absl::OkStatus();
}

std::vector<bool> SkippedOps(const KernelFacts& facts, const v1::RowSchedule& rows) {
  std::vector<bool> skipped(facts.ops().size());
  if (rows.has_cache()) SkipArgumentsOf(facts, rows.cache().reader(), &skipped);
  for (const uint32_t sum : rows.summed_exponentials()) skipped[facts.op(sum).args(0)] = true;
  return skipped;
}

}  // namespace kiln
