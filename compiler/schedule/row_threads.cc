#include "compiler/schedule/row_threads.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr unsigned kWarpsOfBlock = 8;
constexpr int64_t kBytesOfWarpThread = 128;  // of a strip's row, as F32: longer ones take several warps
constexpr int64_t kIterations = 4;  // of a thread, before the block has more threads: combining costs too

bool IsUniform(const KernelFacts& facts, uint32_t expr) {  // over inner loops, as far as other ops give it
  const v1::ExprNode& node = facts.kernel().exprs(static_cast<int>(expr));
  if (node.op() != v1::EXPR_INDIRECT) {
    return std::all_of(node.args().begin(), node.args().end(),
                       [&](uint32_t arg) { return IsUniform(facts, arg); });
  }
  const auto op = static_cast<uint32_t>(node.value());
  return facts.StageOf(op).stage->inner_size() == 0 || facts.opcode(op) == LoopOpcode::kReduce;
}

// Each loop steps over all that the loops inside of it reach. A stage without loops is run by all threads.
bool MeetsElementsOnce(const KernelFacts& facts, const StageFacts& info, uint32_t index) {
  const int loops = info.stage->inner_size();
  int64_t reach = 0;
  for (int k = loops - 1; k >= 0; --k) {
    const std::optional<int64_t> stride =
        facts.CoefficientOf(index, static_cast<uint32_t>(facts.kernel().outer_size() + k));
    if (!stride || *stride <= reach) return false;
    if (k == 0) break;
    const std::optional<int64_t> extent = facts.ConstantExpr(info.stage->inner(k));
    if (!extent || *extent > kLoopMax || *stride > kLoopMax) return false;
    reach += *stride * (*extent - 1);
  }
  return loops > 0 && !info.has_scan;
}

// Whatever a point's loops are shared by.
bool AccumulatesOnceAPoint(const KernelFacts& facts) {
  for (const StageFacts& info : facts.stages()) {
    for (const v1::LoopOp& op : info.stage->ops()) {
      if (!IsAccumulatingStore(op)) continue;
      if (IsRead(facts, op.buffer()) || !IsUniform(facts, op.index()) ||
          !MeetsElementsOnce(facts, info, op.index())) {
        return false;
      }
    }
  }
  return true;
}

bool SharesPoints(const KernelFacts& facts) { return facts.WalksRows() && AccumulatesOnceAPoint(facts); }

// A vector that is aligned in the first iteration has to be so in every other.
bool MayFlatten(const KernelFacts& facts, const v1::ThreadSchedule& schedule, const StageFacts& info) {
  const int loops = info.stage->inner_size();
  if (info.has_scan || loops < 2) return false;
  int64_t total = 1;
  for (const uint32_t extent : info.stage->inner()) {
    const std::optional<int64_t> known = facts.ConstantExpr(extent);
    if (!known || *known < 1 || *known > kLoopMax / total) return false;
    total *= *known;
  }
  if (schedule.lanes() == 1) return true;
  if (*facts.ConstantExpr(info.stage->inner(loops - 1)) % schedule.lanes() != 0) return false;
  const auto first = static_cast<uint32_t>(facts.kernel().outer_size());
  for (const v1::LoopOp& op : info.stage->ops()) {
    if (!IsAccess(op) || facts.DependsOnOps(op.index()) ||
        facts.CoefficientOf(op.index(), first + loops - 1) != 1) {
      continue;
    }
    for (int k = 0; k < loops - 1; ++k) {
      const std::optional<int64_t> stride = facts.CoefficientOf(op.index(), first + k);
      if (!stride || *stride % schedule.lanes() != 0) return false;
    }
  }
  return true;
}

// So many, or somewhat fewer, of which each has as many iterations of a row: then no iteration is
// conditional.
unsigned WithEqualIterations(int64_t iterations, unsigned threads) {
  for (unsigned fewer = threads; 2 * fewer > threads; fewer -= kWarp) {
    if (iterations % fewer == 0) return fewer;
  }
  return threads;
}

// Whose threads have all registers that a thread may have: a strip's sums take many.
unsigned WarpsOfStrip(const Machine& machine) {
  const int64_t of_warps = cost::kStripBlocksOfMultiprocessor * kWarp * machine.gpu.registers_of_thread_max;
  const int64_t warps = machine.gpu.registers_of_multiprocessor / of_warps;
  return static_cast<unsigned>(std::clamp<int64_t>(warps, 1, kWarpsOfBlock));
}

v1::ThreadSchedule With(v1::ThreadSchedule schedule, unsigned threads, unsigned points) {
  schedule.set_threads(threads);
  schedule.mutable_rows()->set_points_per_block(points);
  return schedule;
}

}  // namespace

int Passes(const KernelFacts& facts) {
  return static_cast<int>(std::count_if(facts.stages().begin(), facts.stages().end(),
                                        [](const StageFacts& info) { return info.stage->inner_size() > 0; }));
}

void ChooseForm(const KernelFacts& facts, const Machine&, v1::ThreadSchedule* schedule) {
  if (SharesPoints(facts)) {
    schedule->mutable_rows();
  } else {
    schedule->mutable_points();
  }
}

absl::Status CheckForm(const KernelFacts& facts, const Machine&, const v1::ThreadSchedule& schedule) {
  if (schedule.form_case() == v1::ThreadSchedule::FORM_NOT_SET) return RefuseThreads("no form is set");
  if (schedule.has_rows() == SharesPoints(facts)) return absl::OkStatus();
  return RefuseThreads(schedule.has_rows() ? "no block can share a point of this kernel"
                                           : "a block shares a point of this kernel");
}

void ChooseFlattened(const KernelFacts& facts, const Machine&, v1::ThreadSchedule* schedule) {
  if (!schedule->has_rows()) return;
  for (size_t stage = 0; stage < facts.stages().size(); ++stage) {
    if (!MayFlatten(facts, *schedule, facts.stages()[stage])) continue;
    schedule->mutable_rows()->add_flattened(static_cast<uint32_t>(stage));
  }
}

absl::Status CheckFlattened(const KernelFacts& facts, const Machine&, const v1::ThreadSchedule& schedule) {
  uint32_t next = 0;
  for (const uint32_t stage : schedule.rows().flattened()) {
    if (stage < next || stage >= facts.stages().size() ||
        !MayFlatten(facts, schedule, facts.stages()[stage])) {
      return RefuseThreads(absl::StrCat("the loops of stage ", stage, " cannot be flattened"));
    }
    next = stage + 1;
  }
  return absl::OkStatus();
}

void ChooseRowThreads(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule) {
  if (!schedule->has_rows()) return;
  v1::RowThreads* rows = schedule->mutable_rows();
  rows->set_points_per_block(1);
  const int64_t lanes = schedule->lanes();
  const int64_t vectors = MostIterations(facts, *schedule);
  if (rows->has_strips() && vectors * lanes * 4 <= int64_t{kWarp} * kBytesOfWarpThread) {
    schedule->set_threads(kWarp);
    rows->set_points_per_block(WarpsOfStrip(machine));
    return;
  }
  const bool few = PointsEstimate(facts, cost::ManyPoints(machine)) <= cost::FewPoints(machine);
  const bool read_again = !rows->has_softmax() && Passes(facts) > 1;
  int64_t most = few || (read_again && cost::PaysLargestBlock(machine, vectors * lanes, lanes))
                     ? kBlockThreadsMax
                     : kBlockThreads;
  while (read_again && most < kBlockThreadsMax && vectors > most * machine.gpu.registers.row_iterations)
    most *= 2;
  const int64_t iterations = few ? 1 : kIterations;
  const auto wanted = static_cast<uint64_t>((vectors + iterations - 1) / iterations);
  const auto threads =
      static_cast<unsigned>(std::clamp(static_cast<int64_t>(absl::bit_ceil(wanted)), int64_t{kWarp}, most));
  const int64_t many_rows = cost::ManyRows(machine);
  if (threads == kWarp && PointsEstimate(facts, many_rows) == many_rows)
    rows->set_points_per_block(kWarpsOfBlock);
  schedule->set_threads(WithEqualIterations(vectors, threads));
}

absl::Status CheckRowThreads(const KernelFacts&, const Machine&, const v1::ThreadSchedule& schedule) {
  if (!schedule.has_rows()) return absl::OkStatus();
  const unsigned points = schedule.rows().points_per_block();
  if (points == 1 || (schedule.threads() == kWarp && points > 0 && points <= kBlockThreadsMax / kWarp))
    return absl::OkStatus();
  return RefuseThreads(absl::StrCat(points, " points a block of ", schedule.threads(), " threads each"));
}

std::vector<v1::ThreadSchedule> OtherRowThreads(const KernelFacts& facts, const Machine&,
                                                const v1::ThreadSchedule& own) {
  if (!own.has_rows()) return {};
  const int64_t vectors = MostIterations(facts, own);
  const auto block = [&](unsigned wanted) {
    return With(own, WithEqualIterations(vectors, std::max(wanted / kWarp, 1u) * kWarp), 1);
  };
  const unsigned threads = own.threads(), points = own.rows().points_per_block();
  if (points > 1) {
    return {With(own, kWarp, points / 2), With(own, kWarp, points * 2), block(2 * kWarp), block(4 * kWarp)};
  }
  return {block(threads / 2), block(threads * 2), With(own, kWarp, kBlockThreads / kWarp), block(threads / 4),
          block(threads * 4)};
}

}  // namespace kiln
