#include "compiler/schedule/column_threads.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/reduce_kinds.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr unsigned kThreadsOfLongCode = 128;
constexpr unsigned kColumnsMin = 8;  // 32 bytes of F32: what memory moves at least
constexpr unsigned kRowsMax = 128;   // of threads

// The longest inner loop; 0 where there is none.
uint32_t LongestLevel(const KernelFacts& facts, const StageFacts& info) {
  uint32_t longest = 0;
  int64_t most = -1;
  for (int k = 0; k < info.stage->inner_size(); ++k) {
    const int64_t extent = facts.ConstantExpr(info.stage->inner(k)).value_or(kUsualRow);
    if (extent > most) longest = static_cast<uint32_t>(k);
    most = std::max(most, extent);
  }
  return longest;
}

// Does the stage load nothing that it stores? Then threads may all run it, and one of them store.
bool StoresApart(const v1::Stage& stage) {
  const auto touches = [&](LoopOpcode opcode, uint32_t buffer) {
    return std::any_of(stage.ops().begin(), stage.ops().end(), [&](const v1::LoopOp& op) {
      return static_cast<LoopOpcode>(op.op()) == opcode && op.buffer() == buffer;
    });
  };
  return std::none_of(stage.ops().begin(), stage.ops().end(), [&](const v1::LoopOp& op) {
    return static_cast<LoopOpcode>(op.op()) == LoopOpcode::kStore && touches(LoopOpcode::kLoad, op.buffer());
  });
}

// What stores once a point is for the first row of threads, which alone knows such a stage's values then: all
// that follow must be of that kind.
bool MayShare(const KernelFacts& facts) {
  if (facts.kernel().outer_size() == 0 || HasAccumulatingStore(facts)) return false;
  bool last = false;
  for (const StageFacts& info : facts.stages()) {
    if (info.has_scan || (last && info.stage->inner_size() > 0)) return false;
    last = last || (info.stage->inner_size() == 0 && !StoresApart(*info.stage));
  }
  return true;
}

// Of shared memory.
int64_t BytesOfThread(const KernelFacts& facts) {
  int64_t bytes = 0;
  for (const StageFacts& info : facts.stages()) {
    if (info.stage->inner_size() == 0) continue;
    for (const v1::LoopOp& op : info.stage->ops()) {
      if (static_cast<LoopOpcode>(op.op()) != LoopOpcode::kReduce) continue;
      bytes += IsArgReduce(static_cast<v1::ReduceKind>(op.mode())) ? 16 : 8;
    }
  }
  return bytes;
}

absl::Status CheckRows(const KernelFacts& facts, const Machine& machine, unsigned rows, unsigned threads) {
  if (!MayShare(facts)) return RefuseThreads("threads cannot share a point's loop");
  const unsigned columns = rows == 0 ? 0 : threads / rows;
  if (!absl::has_single_bit(rows) || !absl::has_single_bit(threads) || columns < kColumnsMin ||
      rows > kRowsMax || rows < 2) {
    return RefuseThreads(absl::StrCat(rows, " rows of ", threads, " threads, where a power of two up to ",
                                      kRowsMax, " is due, and ", kColumnsMin, " columns at least"));
  }
  if (BytesOfThread(facts) * threads > machine.gpu.shared_bytes_of_block)
    return RefuseThreads("too little shared memory for what rows of threads reduce");
  return absl::OkStatus();
}

// May be, and pays.
bool PayRows(const KernelFacts& facts, const Machine& machine, unsigned rows, unsigned threads) {
  if (threads > kBlockThreadsMax || !CheckRows(facts, machine, rows, threads).ok()) return false;
  int64_t longest = 0;
  for (const StageFacts& info : facts.stages()) {
    if (info.stage->inner_size() == 0 || !info.has_reduce) continue;
    const uint32_t extent = info.stage->inner(static_cast<int>(LongestLevel(facts, info)));
    longest = std::max(longest, facts.ConstantExpr(extent).value_or(kUsualRow));
  }
  return cost::PaysSharedLoop(longest, rows);
}

v1::ThreadSchedule WithRows(const KernelFacts& facts, v1::ThreadSchedule schedule, unsigned rows,
                            unsigned threads) {
  schedule.set_threads(threads);
  if (rows == 1) {
    if (schedule.has_points()) return schedule;
    schedule.mutable_points()->set_vectors_per_group(1);
    schedule.mutable_points()->set_groups_per_thread(1);
    return schedule;
  }
  v1::ColumnThreads* columns = schedule.mutable_columns();
  columns->set_rows(rows);
  columns->clear_levels();
  for (const StageFacts& info : facts.stages()) columns->add_levels(LongestLevel(facts, info));
  return schedule;
}

bool TakesOnePoint(const v1::ThreadSchedule& schedule) {
  return schedule.lanes() == 1 && schedule.points().vectors_per_group() == 1 &&
         schedule.points().groups_per_thread() == 1;
}

}  // namespace

void ChooseColumnThreads(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule) {
  if (!schedule->has_points()) return;
  const bool is_long = !HasInnerLoops(facts) && !AllCheap(facts) && !DrawsNumbers(facts);
  schedule->set_threads(is_long ? kThreadsOfLongCode : kBlockThreads);
  if (schedule->lanes() > 1) return;
  const int64_t many = cost::ManyPoints(machine);
  const int64_t points = PointsEstimate(facts, many);
  unsigned columns = kWarp;
  while (columns > kColumnsMin && points / columns < machine.gpu.multiprocessors) columns /= 2;
  unsigned rows = 1;
  while (points * rows < many && PayRows(facts, machine, 2 * rows, 2 * rows * columns)) rows *= 2;
  if (rows == 1) return;
  if (PayRows(facts, machine, rows, kBlockThreads)) columns = std::max(columns, kBlockThreads / rows);
  // Few columns, and no shared memory for more: half a warp would be left.
  if (rows * columns % kWarp != 0) return;
  *schedule = WithRows(facts, *schedule, rows, rows * columns);
}

absl::Status CheckColumnThreads(const KernelFacts& facts, const Machine& machine,
                                const v1::ThreadSchedule& schedule) {
  if (!schedule.has_columns()) return absl::OkStatus();
  const v1::ColumnThreads& columns = schedule.columns();
  if (columns.levels_size() != static_cast<int>(facts.stages().size()))
    return RefuseThreads(absl::StrCat(columns.levels_size(), " loops that rows of threads share, of ",
                                      facts.stages().size(), " stages"));
  for (int stage = 0; stage < columns.levels_size(); ++stage) {
    const int loops = facts.stages()[static_cast<size_t>(stage)].stage->inner_size();
    if (columns.levels(stage) >= static_cast<uint32_t>(std::max(loops, 1)))
      return RefuseThreads(absl::StrCat("rows of threads share a loop that stage ", stage, " does not have"));
  }
  return CheckRows(facts, machine, columns.rows(), schedule.threads());
}

// Half and twice of what was chosen, and the other kind of sharing where there is one.
std::vector<v1::ThreadSchedule> OtherColumnThreads(const KernelFacts& facts, const Machine& machine,
                                                   const v1::ThreadSchedule& own) {
  if (own.has_rows() || own.has_tile()) return {};
  std::vector<v1::ThreadSchedule> others;
  const auto add = [&](unsigned rows, unsigned threads) {
    if (rows > 1 && !PayRows(facts, machine, rows, threads)) return;
    others.push_back(WithRows(facts, own, rows, threads));
  };
  const unsigned threads = own.threads();
  if (own.has_points()) {
    if (TakesOnePoint(own)) {
      add(4, kBlockThreads);
      add(8, kBlockThreads);
    }
    add(1, threads / 2);
    add(1, threads * 2);
    return others;
  }
  const unsigned rows = own.columns().rows();
  add(rows * 2, threads * 2);
  add(rows / 2, threads / 2);
  add(rows * 2, threads);
  add(rows / 2, threads);
  add(1, kBlockThreads);
  return others;
}

}  // namespace kiln
