#include "compiler/schedule/thread_walk.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kiln {

bool IsAccess(const v1::LoopOp& op) {
  const auto opcode = static_cast<LoopOpcode>(op.op());
  return opcode == LoopOpcode::kLoad || opcode == LoopOpcode::kStore;
}

bool IsAccumulatingStore(const v1::LoopOp& op) {
  return static_cast<LoopOpcode>(op.op()) == LoopOpcode::kStore && op.mode() == v1::STORE_ACCUMULATE;
}

bool HasAccumulatingStore(const KernelFacts& facts) {
  return std::any_of(facts.ops().begin(), facts.ops().end(),
                     [](const v1::LoopOp* op) { return IsAccumulatingStore(*op); });
}

bool IsRead(const KernelFacts& facts, uint32_t buffer) {
  return std::any_of(facts.ops().begin(), facts.ops().end(), [&](const v1::LoopOp* op) {
    return static_cast<LoopOpcode>(op->op()) == LoopOpcode::kLoad && op->buffer() == buffer;
  });
}

bool HasInnerLoops(const KernelFacts& facts) {
  return std::any_of(facts.stages().begin(), facts.stages().end(),
                     [](const StageFacts& info) { return info.stage->inner_size() > 0; });
}

bool AllCheap(const KernelFacts& facts) {
  return std::all_of(facts.stages().begin(), facts.stages().end(),
                     [](const StageFacts& info) { return info.cheap; });
}

bool DrawsNumbers(const KernelFacts& facts) {
  return std::any_of(facts.ops().begin(), facts.ops().end(), [](const v1::LoopOp* op) {
    return static_cast<LoopOpcode>(op->op()) == LoopOpcode::kRandBits;
  });
}

bool MayLoadFirst(const KernelFacts& facts, const v1::LoopOp& op) {
  return op.args_size() == 0 && facts.IsSourceLoad(op);
}

int64_t PointsEstimate(const KernelFacts& facts, int64_t most) {
  int64_t points = 1;
  for (const uint32_t extent : facts.kernel().outer()) {
    points = std::min(most, points * std::min(most, facts.ConstantExpr(extent).value_or(most)));
  }
  return points;
}

uint32_t VectorVariable(const KernelFacts& facts, const v1::ThreadSchedule& schedule, size_t stage) {
  const int inner = schedule.has_rows() ? facts.stages()[stage].stage->inner_size() : 0;
  return static_cast<uint32_t>(facts.kernel().outer_size() + inner - 1);
}

bool IsFlattened(const v1::ThreadSchedule& schedule, size_t stage) {
  const auto& flattened = schedule.rows().flattened();
  return std::find(flattened.begin(), flattened.end(), stage) != flattened.end();
}

int64_t IterationsOf(const KernelFacts& facts, const v1::ThreadSchedule& schedule, size_t stage) {
  const v1::Stage& loops = *facts.stages()[stage].stage;
  const int last = loops.inner_size() - 1;
  int64_t elements = facts.ConstantExpr(loops.inner(last)).value_or(kUsualRow);
  if (IsFlattened(schedule, stage)) {
    for (int k = 0; k < last; ++k) elements *= *facts.ConstantExpr(loops.inner(k));
  }
  return std::max<int64_t>(1, elements / schedule.lanes());
}

int64_t MostIterations(const KernelFacts& facts, const v1::ThreadSchedule& schedule) {
  int64_t longest = 1;
  for (size_t stage = 0; stage < facts.stages().size(); ++stage) {
    if (facts.stages()[stage].stage->inner_size() == 0) continue;
    longest = std::max(longest, IterationsOf(facts, schedule, stage));
  }
  return longest;
}

bool IsStripSum(const v1::ThreadSchedule& schedule, uint32_t op) {
  const auto& stores = schedule.rows().strips().stores();
  return std::find(stores.begin(), stores.end(), op) != stores.end();
}

uint32_t ThreadsOfBlock(const v1::ThreadSchedule& schedule) {
  return schedule.threads() * (schedule.has_rows() ? schedule.rows().points_per_block() : 1);
}

uint32_t PointsOfBlock(const v1::ThreadSchedule& schedule) {
  switch (schedule.form_case()) {
    case v1::ThreadSchedule::kPoints:
      return schedule.threads() * schedule.lanes() * schedule.points().vectors_per_group() *
             schedule.points().groups_per_thread();
    case v1::ThreadSchedule::kColumns: return schedule.threads() / schedule.columns().rows();
    case v1::ThreadSchedule::kTile: return schedule.tile().side() * schedule.tile().side();
    default: return schedule.rows().has_strips() ? 1 : schedule.rows().points_per_block();
  }
}

absl::Status RefuseThreads(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("schedule: ", what));
}

}  // namespace kiln
