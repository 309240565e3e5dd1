#include "compiler/schedule/prefetch.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/schedule/row_cache.h"
#include "compiler/schedule/row_reads.h"
#include "compiler/schedule/shifted_reduction.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr uint32_t kSharesMax = 2;  // stages that share a row's lines
// What a schedule may say, far beyond what a rule chooses by any row of the table: a schedule is as valid for
// one machine as for another.
constexpr uint32_t kBytesAheadMax = 1 << 20, kRowsAheadMax = 64;

using Prefetches = std::map<uint32_t, v1::Prefetch>;  // by load

// The one store of a buffer that nobody reads.
std::optional<uint32_t> OnlyStoreOf(const KernelFacts& facts, uint32_t buffer) {
  if (facts.kernel().buffers(static_cast<int>(buffer)).access() != v1::WRITE) return std::nullopt;
  std::optional<uint32_t> store;
  for (uint32_t id = 0; id < facts.ops().size(); ++id) {
    if (facts.opcode(id) != LoopOpcode::kStore || facts.op(id).buffer() != buffer) continue;
    if (store) return std::nullopt;
    store = id;
  }
  return store;
}

// Does the store fill whole cache lines, by one vector or by several that follow each other at once?
bool FillsLines(const KernelFacts& facts, const Machine& machine, const v1::VectorSchedule& schedule,
                uint32_t store) {
  if (schedule.lanes() == 1) return false;
  if (!schedule.has_tile() && (facts.WalksRows() || facts.StageOf(store).stage->inner_size() == 0))
    return true;
  const v1::KernelBuffer& buffer = facts.kernel().buffers(static_cast<int>(facts.op(store).buffer()));
  return int64_t{schedule.lanes()} * ir::ByteWidth(buffer.dtype()) >= machine.cpu.cache_line_bytes;
}

v1::Prefetch BytesAhead(uint32_t load, int64_t bytes, v1::CacheLevel level) {
  v1::Prefetch prefetch;
  prefetch.set_load(load);
  prefetch.set_bytes_ahead(static_cast<uint32_t>(bytes));
  prefetch.set_level(level);
  return prefetch;
}

v1::Prefetch RowsAhead(uint32_t load, uint32_t rows, uint32_t share, uint32_t shares) {
  v1::Prefetch prefetch;
  prefetch.set_load(load);
  prefetch.set_rows_ahead(rows);
  prefetch.set_share(share);
  prefetch.set_shares(shares);
  prefetch.set_level(v1::CACHE_SECOND_LEVEL);
  return prefetch;
}

// Of a row that is walked, the line some way on.
v1::Prefetch InRow(const PrefetchPolicy& policy, const v1::RowSchedule& rows, uint32_t load) {
  const bool side_by_side = rows.has_pipeline();
  if (policy.rows_into_second_level) {
    return BytesAhead(load, side_by_side ? policy.side_by_side_distance_l2 : policy.walk_distance,
                      v1::CACHE_SECOND_LEVEL);
  }
  const bool once = policy.crosses_pages && side_by_side && rows.pipeline().group_rows() == 0;
  return BytesAhead(load, policy.walk_distance, once ? v1::CACHE_ONCE : v1::CACHE_FIRST_LEVEL);
}

// Memory is asked for all the time.
void OfPipeline(const KernelFacts& facts, const Machine& machine, const v1::RowSchedule& rows,
                Prefetches* found) {
  const uint32_t at_once = rows.pipeline().rows_at_once();
  for (const uint32_t load : RowReadsOf(facts, machine, rows).loads) {
    (*found)[load] = at_once > 1 ? RowsAhead(load, at_once, 0, 0) : InRow(machine.cpu.prefetch, rows, load);
  }
}

// Where several stages read a row, the first waits for memory, and the others ask for the next row.
void OfRows(const KernelFacts& facts, const Machine& machine, const v1::RowSchedule& rows,
            Prefetches* found) {
  const std::vector<bool> skipped = SkippedOps(facts, rows);
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> readers;  // of a row, by buffer and index
  for (const StageFacts& stage : facts.stages()) {
    if (!stage.IsRowPass() || ReadsShifted(facts, rows, stage)) continue;
    const bool is_shifted = rows.has_shifted() && (&facts.StageOf(rows.shifted().reduced()) == &stage ||
                                                   &facts.StageOf(rows.shifted().sum()) == &stage);
    for (uint32_t id = stage.first_op; id < stage.end_op(); ++id) {
      if (skipped[id] || RowBytesRead(facts, machine, id, cost::PrefetchedBytesMin(machine)) <
                             machine.cpu.prefetch.row_bytes_min) {
        continue;
      }
      readers[{facts.op(id).buffer(), facts.op(id).index()}].push_back(id);
      if (is_shifted) (*found)[id] = InRow(machine.cpu.prefetch, rows, id);
    }
  }
  for (const auto& [row, loads] : readers) {
    const uint32_t shares = std::min(static_cast<uint32_t>(loads.size()) - 1, kSharesMax);
    for (uint32_t share = 0; share < shares; ++share) {
      (*found)[loads[share + 1]] = RowsAhead(loads[share + 1], 1, share, shares);
    }
  }
}

// What is walked once, front to back.
void OfPoints(const KernelFacts& facts, const Machine& machine, Prefetches* found) {
  for (const StageFacts& stage : facts.stages()) {
    if (stage.stage->inner_size() > 0) continue;
    for (uint32_t id = stage.first_op; id < stage.end_op(); ++id) {
      const v1::LoopOp& op = facts.op(id);
      if (facts.opcode(id) != LoopOpcode::kLoad || op.args_size() > 0) continue;
      const v1::KernelBuffer& buffer = facts.kernel().buffers(static_cast<int>(op.buffer()));
      const std::optional<int64_t> elements = facts.ConstantExpr(buffer.span());
      const bool small = elements && *elements * static_cast<int64_t>(ir::ByteWidth(buffer.dtype())) <
                                         cost::PrefetchedBytesMin(machine);
      if (small || facts.DependsOnOps(op.index())) continue;
      (*found)[id] = BytesAhead(id, machine.cpu.prefetch.walk_distance, v1::CACHE_SECOND_LEVEL);
    }
  }
}

bool MayBeNontemporal(const KernelFacts& facts, const v1::VectorSchedule& schedule, uint32_t store) {
  if (schedule.lanes() == 1 || store >= facts.ops().size() || facts.opcode(store) != LoopOpcode::kStore)
    return false;
  const auto& buffers = schedule.nontemporal();
  return std::find(buffers.begin(), buffers.end(), facts.op(store).buffer()) != buffers.end();
}

bool MayPrefetch(const KernelFacts& facts, const v1::VectorSchedule& schedule, const v1::Prefetch& prefetch) {
  const v1::LoopOp& op = facts.op(prefetch.load());
  if (static_cast<LoopOpcode>(op.op()) != LoopOpcode::kLoad || op.args_size() > 0 ||
      facts.DependsOnOps(op.index()) || !v1::CacheLevel_IsValid(prefetch.level())) {
    return false;
  }
  if (prefetch.bytes_ahead() > 0) {
    return prefetch.bytes_ahead() <= kBytesAheadMax && prefetch.rows_ahead() == 0 && prefetch.shares() == 0 &&
           prefetch.share() == 0;
  }
  return prefetch.rows_ahead() > 0 && prefetch.rows_ahead() <= kRowsAheadMax &&
         (prefetch.shares() == 0 ? prefetch.share() == 0 : prefetch.share() < prefetch.shares()) &&
         schedule.has_rows() && facts.kernel().outer_size() > 0 && facts.StageOf(prefetch.load()).IsRowPass();
}

}  // namespace

// Sizes may be known at run time only: the condition is the code's.
void ChooseNontemporal(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule) {
  const int64_t bytes_min = cost::NontemporalBytesMin(target.machine);
  for (int k = 0; k < facts.kernel().buffers_size(); ++k) {
    const std::optional<uint32_t> store = OnlyStoreOf(facts, static_cast<uint32_t>(k));
    if (!store) continue;
    const v1::KernelBuffer& buffer = facts.kernel().buffers(k);
    const std::optional<int64_t> elements = facts.ConstantExpr(buffer.span());
    if (elements && *elements < bytes_min / ir::ByteWidth(buffer.dtype())) continue;
    schedule->add_nontemporal(static_cast<uint32_t>(k));
    if (FillsLines(facts, target.machine, *schedule, *store)) schedule->add_nontemporal_stores(*store);
  }
  std::sort(schedule->mutable_nontemporal_stores()->begin(), schedule->mutable_nontemporal_stores()->end());
  if (schedule->nontemporal_size() > 0) schedule->set_nontemporal_bytes_min(static_cast<uint64_t>(bytes_min));
}

absl::Status CheckNontemporal(const KernelFacts& facts, const VectorTarget&,
                              const v1::VectorSchedule& schedule) {
  uint32_t next = 0;
  for (const uint32_t buffer : schedule.nontemporal()) {
    if (buffer < next || buffer >= static_cast<uint32_t>(facts.kernel().buffers_size()) ||
        !OnlyStoreOf(facts, buffer)) {
      return absl::InvalidArgumentError(
          absl::StrCat("schedule: buffer ", buffer, " is not written by one store and read by nobody"));
    }
    next = buffer + 1;
  }
  next = 0;
  for (const uint32_t store : schedule.nontemporal_stores()) {
    if (store < next || !MayBeNontemporal(facts, schedule, store)) {
      return absl::InvalidArgumentError(
          absl::StrCat("schedule: op ", store, " stores no vectors of a nontemporal buffer"));
    }
    next = store + 1;
  }
  if (schedule.nontemporal_bytes_min() > static_cast<uint64_t>(INT64_MAX)) {
    return absl::InvalidArgumentError("schedule: more bytes of a nontemporal store than there can be");
  }
  return absl::OkStatus();
}

void ChoosePrefetches(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule) {
  if (facts.kernel().outer_size() == 0 || schedule->lanes() == 1) return;
  Prefetches found;
  if (schedule->rows().has_pipeline()) {
    OfPipeline(facts, target.machine, schedule->rows(), &found);
  } else if (schedule->has_rows()) {
    OfRows(facts, target.machine, schedule->rows(), &found);
  } else if (!schedule->has_tile() && !target.machine.cpu.prefetch.crosses_pages) {
    OfPoints(facts, target.machine, &found);
  }
  for (auto& [load, prefetch] : found) *schedule->add_prefetches() = std::move(prefetch);
}

absl::Status CheckPrefetches(const KernelFacts& facts, const VectorTarget&,
                             const v1::VectorSchedule& schedule) {
  uint32_t next = 0;
  for (const v1::Prefetch& prefetch : schedule.prefetches()) {
    if (prefetch.load() < next || prefetch.load() >= facts.ops().size() ||
        !MayPrefetch(facts, schedule, prefetch)) {
      return absl::InvalidArgumentError(
          absl::StrCat("schedule: op ", prefetch.load(), " has no such lines to ask for ahead"));
    }
    next = prefetch.load() + 1;
  }
  return absl::OkStatus();
}

}  // namespace kiln
