#include "compiler/schedule/thread_unroll.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/schedule/row_threads.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr uint32_t kUnrollMax = 64;
constexpr uint32_t kUnrolledStores = 16;  // of accumulating ones

bool IsOfSoftmax(const KernelFacts& facts, const v1::ThreadSchedule& schedule, const StageFacts& info) {
  if (!schedule.rows().has_softmax()) return false;
  const v1::SoftmaxSum& softmax = schedule.rows().softmax();
  return &info == &facts.StageOf(softmax.maximum()) || &info == &facts.StageOf(softmax.sum());
}

uint32_t OfIterations(const KernelFacts& facts, const Machine& machine, const v1::ThreadSchedule& schedule,
                      size_t stage) {
  const StageFacts& info = facts.stages()[stage];
  const int64_t threads = schedule.threads(), lanes = schedule.lanes();
  const int64_t iterations = (IterationsOf(facts, schedule, stage) + threads - 1) / threads;
  int64_t words = 0;  // of 32 bits that an iteration loads
  for (const v1::LoopOp& op : info.stage->ops()) {
    if (static_cast<LoopOpcode>(op.op()) != LoopOpcode::kLoad) continue;
    const v1::DType dtype = facts.kernel().buffers(static_cast<int>(op.buffer())).dtype();
    words += (ir::ByteWidth(dtype) * lanes + 3) / 4;
  }
  const int64_t words_max = cost::LoadedWordsMax(machine, threads);
  // A row that several stages read is kept whole.
  const bool kept = Passes(facts) > 1 && iterations <= machine.gpu.registers.row_iterations;
  const int64_t most = kept ? iterations : info.cheap ? kIterationsAtOnce : kLongIterationsAtOnce;
  return static_cast<uint32_t>(
      std::clamp<int64_t>(words_max / std::max<int64_t>(words, 1), 1, std::min(iterations, most)));
}

// Is the loop one whose body can stand there several times? A thread's own along a row's vectors is not.
bool HasLoop(const KernelFacts& facts, const v1::ThreadSchedule& schedule, const StageFacts& info) {
  return info.stage->inner_size() > 0 && (schedule.has_rows() || info.has_scan || !facts.WalksRows());
}

uint32_t UnrollOf(const KernelFacts& facts, const Machine& machine, const v1::ThreadSchedule& schedule,
                  size_t stage) {
  const StageFacts& info = facts.stages()[stage];
  if (!HasLoop(facts, schedule, info)) return 1;
  if (schedule.has_columns())
    return static_cast<uint32_t>(info.cheap ? kIterationsAtOnce : kLongIterationsAtOnce);
  if (!schedule.has_rows() || info.has_scan) return HasAccumulatingStore(facts) ? kUnrolledStores : 1;
  if (!IsOfSoftmax(facts, schedule, info)) return OfIterations(facts, machine, schedule, stage);
  return static_cast<uint32_t>(
      std::clamp<int64_t>(machine.gpu.registers.softmax_loads / schedule.lanes(), 2, kIterationsAtOnce));
}

// Does a stage have a load behind other ops that may come before them?
bool HasLaterLoads(const KernelFacts& facts) {
  return std::any_of(facts.stages().begin(), facts.stages().end(), [&](const StageFacts& info) {
    const auto may_be_first = [&](const v1::LoopOp& op) { return MayLoadFirst(facts, op); };
    const auto& ops = info.stage->ops();
    return !std::is_partitioned(ops.begin(), ops.end(), may_be_first);
  });
}

}  // namespace

void ChooseThreadUnroll(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule) {
  schedule->clear_unroll();
  for (size_t stage = 0; stage < facts.stages().size(); ++stage) {
    schedule->add_unroll(UnrollOf(facts, machine, *schedule, stage));
  }
}

absl::Status CheckThreadUnroll(const KernelFacts& facts, const Machine&, const v1::ThreadSchedule& schedule) {
  if (schedule.unroll_size() != static_cast<int>(facts.stages().size()))
    return RefuseThreads(
        absl::StrCat(schedule.unroll_size(), " unroll factors of ", facts.stages().size(), " stages"));
  for (int stage = 0; stage < schedule.unroll_size(); ++stage) {
    const bool loops = HasLoop(facts, schedule, facts.stages()[static_cast<size_t>(stage)]);
    const uint32_t most = loops ? kUnrollMax : 1;
    if (schedule.unroll(stage) == 0 || schedule.unroll(stage) > most)
      return RefuseThreads(absl::StrCat(schedule.unroll(stage), " unrolled bodies of stage ", stage,
                                        ", where 1 to ", most, " are due"));
  }
  return absl::OkStatus();
}

void ChooseLoadsFirst(const KernelFacts& facts, const Machine&, v1::ThreadSchedule* schedule) {
  if (HasLaterLoads(facts)) schedule->set_loads_first(true);
}

absl::Status CheckLoadsFirst(const KernelFacts& facts, const Machine&, const v1::ThreadSchedule& schedule) {
  if (!schedule.loads_first() || HasLaterLoads(facts)) return absl::OkStatus();
  return RefuseThreads("loads_first without a later load");
}

}  // namespace kiln
