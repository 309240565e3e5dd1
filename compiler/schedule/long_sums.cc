#include "compiler/schedule/long_sums.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "compiler/ir/dtype_groups.h"
#include "compiler/schedule/row_pipeline.h"
#include "compiler/schedule/thread_walk.h"

namespace kiln {
namespace {

// Additions in a row into one accumulator before a sum is kept in F64. On the CPU eager has a cascade of 16
// each: 64 in a row err more than twice as much.
constexpr int64_t kVectorAdditionsMax = 32;
// Runs of an inner loop of unknown length before it is added to a total: each leaves up to as many iterations
// behind.
constexpr int64_t kRunsToTotal = 4;

// Of one run of a CPU's innermost loop, into the accumulator that gets most; nullopt: not known.
std::optional<int64_t> AdditionsOfRun(const KernelFacts& facts, const StageFacts& stage, uint32_t unroll) {
  if (stage.stage->inner_size() == 0) return 1;
  const std::optional<int64_t> known = facts.ConstantExpr(*stage.stage->inner().rbegin());
  if (!known || !facts.WalksRows() || stage.has_scan) return known;
  const v1::VectorSchedule& schedule = facts.kernel().schedule().vectors();
  const int64_t width = schedule.lanes(),
                per_iteration = width * VectorsSideBySide(facts, schedule, stage, unroll);
  return *known / per_iteration + (*known % per_iteration + width - 1) / width;
}

// Into one accumulator of a CPU's, or it may be so.
bool AddsMany(const KernelFacts& facts, const StageFacts& stage, uint32_t unroll) {
  int64_t runs = 1;
  for (int k = 0; k + 1 < stage.stage->inner_size(); ++k) {
    const std::optional<int64_t> known = facts.ConstantExpr(stage.stage->inner(k));
    if (!known || *known > kLoopMax) return true;
    runs *= *known;
    if (runs > kLoopMax) return true;
  }
  const std::optional<int64_t> run = AdditionsOfRun(facts, stage, unroll);
  return !run || *run > kLoopMax || runs * *run > kVectorAdditionsMax;
}

// That share a GPU's loop of the stage.
int64_t ThreadsOfStage(const KernelFacts& facts, const v1::ThreadSchedule& schedule, size_t stage) {
  const StageFacts& info = facts.stages()[stage];
  const int loops = info.stage->inner_size();
  if (schedule.has_columns() && loops > 0) {
    const auto level = static_cast<int>(schedule.columns().levels(static_cast<int>(stage)));
    const int64_t extent = facts.ConstantExpr(info.stage->inner(level)).value_or(1);
    return std::clamp<int64_t>(extent, 1, schedule.columns().rows());
  }
  if (!schedule.has_rows() || info.has_scan || loops == 0) return 1;
  if (!facts.ConstantExpr(info.stage->inner(loops - 1))) return 1;
  return std::clamp<int64_t>(IterationsOf(facts, schedule, stage), 1, schedule.threads());
}

}  // namespace

bool IsLongSum(const KernelFacts& facts, uint32_t op, uint32_t unroll) {
  if (!facts.IsReduction(op, v1::REDUCE_SUM)) return false;
  const v1::DType dtype = facts.op(facts.op(op).args(0)).dtype();
  if (!ir::IsFloating(dtype)) return false;
  const StageFacts& stage = facts.StageOf(op);
  const v1::KernelSchedule& schedule = facts.kernel().schedule();
  if (!schedule.has_threads()) return AddsMany(facts, stage, unroll);
  const auto number = static_cast<size_t>(&stage - facts.stages().data());
  return dtype != v1::F64 && HasLongSums(facts, schedule.threads(), number);
}

bool HasLongSums(const KernelFacts& facts, const v1::ThreadSchedule& schedule, size_t stage) {
  const StageFacts& info = facts.stages()[stage];
  if (info.stage->inner_size() == 0) return false;
  int64_t additions = 1;
  for (const uint32_t extent : info.stage->inner()) {
    const std::optional<int64_t> known = facts.ConstantExpr(extent);
    if (!known || *known > kLoopMax) return true;
    additions *= *known;
    if (additions > kLoopMax) return true;
  }
  const bool by_vectors = facts.WalksRows() && !info.has_scan;
  return additions > kThreadAdditionsMax * ThreadsOfStage(facts, schedule, stage) *
                         (by_vectors ? int64_t{schedule.lanes()} : 1);
}

int64_t RunsToTotal(const KernelFacts& facts, const StageFacts& stage, uint32_t unroll) {
  const std::optional<int64_t> run = AdditionsOfRun(facts, stage, unroll);
  if (!run) return kRunsToTotal;
  if (*run >= kIterationsToTotal + unroll) return 0;
  const int64_t runs = kIterationsToTotal / std::max<int64_t>(1, *run);
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(runs)));
}

}  // namespace kiln
