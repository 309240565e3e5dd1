#include "compiler/schedule/thread_lanes.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/schedule/strip_sums.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr int64_t kVectorBytesMax = 32;  // of a buffer with wider elements than another's

// Of a load or store along the vector loop: how far from an aligned address its vectors can lie.
enum class Offsets { kAligned, kMisaligned, kUnknown };

int64_t BytesOf(const KernelFacts& facts, const v1::LoopOp& op) {
  return ir::ByteWidth(facts.kernel().buffers(static_cast<int>(op.buffer())).dtype());
}

// What an index is where all loop variables are 0.
std::optional<int64_t> ConstantTerm(const v1::Kernel& kernel, uint32_t expr) {
  const v1::ExprNode& node = kernel.exprs(static_cast<int>(expr));
  if (node.op() == v1::EXPR_CONST) return node.value();
  if (node.op() == v1::EXPR_VAR) return 0;
  if (node.op() != v1::EXPR_ADD && node.op() != v1::EXPR_MUL) return std::nullopt;
  int64_t term = node.op() == v1::EXPR_ADD ? 0 : 1;
  for (const uint32_t arg : node.args()) {
    const std::optional<int64_t> value = ConstantTerm(kernel, arg);
    if (!value || *value > kLoopMax || *value < -kLoopMax) return std::nullopt;
    term = node.op() == v1::EXPR_ADD ? term + *value : term * *value;
  }
  return term;
}

Offsets OffsetsOf(const KernelFacts& facts, const StageFacts& info, const v1::LoopOp& op, uint32_t along,
                  unsigned lanes) {
  if (facts.DependsOnOps(op.index()) || facts.CoefficientOf(op.index(), along) != 1)
    return Offsets::kAligned;  // tested nowhere
  const int64_t unit = std::clamp<int64_t>(kAccessBytes / BytesOf(facts, op), 1, lanes);
  std::vector<std::optional<int64_t>> offsets = {ConstantTerm(facts.kernel(), op.index())};
  const auto variables = static_cast<uint32_t>(facts.kernel().outer_size() + info.stage->inner_size());
  for (uint32_t variable = 0; variable < variables; ++variable) {
    if (variable != along) offsets.push_back(facts.CoefficientOf(op.index(), variable));
  }
  bool known = true;
  for (const std::optional<int64_t>& offset : offsets) {
    if (offset && *offset % unit != 0) return Offsets::kMisaligned;
    known = known && offset;
  }
  return known ? Offsets::kAligned : Offsets::kUnknown;
}

bool RunsAlong(const KernelFacts& facts, const v1::ThreadSchedule& schedule, uint32_t id, uint32_t along) {
  const v1::LoopOp& op = facts.op(id);
  switch (facts.opcode(id)) {
    case LoopOpcode::kScan: return false;
    case LoopOpcode::kIndexExpr:
      return facts.DependsOnOps(op.index()) || facts.CoefficientOf(op.index(), along).has_value();
    case LoopOpcode::kLoad: {
      if (op.args_size() > 0) return false;  // a masked vector is read lane by lane, with branches
      if (facts.DependsOnOps(op.index())) return true;
      const std::optional<int64_t> coefficient = facts.CoefficientOf(op.index(), along);
      return coefficient == 0 || coefficient == 1;
    }
    case LoopOpcode::kStore:
      return op.args_size() == 1 && (op.mode() != v1::STORE_ACCUMULATE || IsStripSum(schedule, id)) &&
             !facts.DependsOnOps(op.index()) && facts.CoefficientOf(op.index(), along) == 1;
    default: return true;
  }
}

// 1: some access does not run along the stage's vector loop.
unsigned MostLanes(const KernelFacts& facts, const v1::ThreadSchedule& schedule, size_t stage) {
  const StageFacts& info = facts.stages()[stage];
  const uint32_t along = VectorVariable(facts, schedule, stage);
  int64_t lanes = kAccessBytes;
  int64_t narrowest = kAccessBytes;
  bool accesses = false;
  for (uint32_t id = info.first_op; id < info.end_op(); ++id) {
    if (!RunsAlong(facts, schedule, id, along)) return 1;
    if (!IsAccess(facts.op(id))) continue;
    const int64_t bytes = BytesOf(facts, facts.op(id));
    lanes = std::min(lanes, kVectorBytesMax / bytes);
    narrowest = std::min(narrowest, bytes);
    accesses = true;
  }
  // A stage without any takes what others take.
  return static_cast<unsigned>(accesses ? std::min(lanes, kAccessBytes / narrowest) : lanes);
}

unsigned LanesOf(const KernelFacts& facts, const v1::ThreadSchedule& schedule, size_t stage) {
  const StageFacts& info = facts.stages()[stage];
  const uint32_t along = VectorVariable(facts, schedule, stage);
  unsigned lanes = MostLanes(facts, schedule, stage);
  for (const v1::LoopOp& op : info.stage->ops()) {
    while (lanes > 1 && IsAccess(op) && OffsetsOf(facts, info, op, along, lanes) == Offsets::kMisaligned) {
      lanes /= 2;
    }
  }
  return lanes;
}

bool RunsAlongPoints(const KernelFacts& facts) {
  return facts.kernel().schedule().vector_dim() == v1::VECTOR_OUTER_LAST && facts.kernel().outer_size() > 0 &&
         !HasInnerLoops(facts);
}

// Does one look at the first vector of each of a point's stages tell of all?
bool LooksOnceAPoint(const KernelFacts& facts, const v1::ThreadSchedule& schedule) {
  for (size_t stage = 0; stage < facts.stages().size(); ++stage) {
    if (facts.stages()[stage].stage->inner_size() > 1 && !IsFlattened(schedule, stage)) return false;
  }
  return true;
}

bool LooksOnceAKernel(const KernelFacts& facts, const v1::ThreadSchedule& schedule) {
  for (size_t stage = 0; stage < facts.stages().size(); ++stage) {
    if (!KeepsAlignment(facts, schedule, stage)) return false;
  }
  return true;
}

}  // namespace

bool KeepsAlignment(const KernelFacts& facts, const v1::ThreadSchedule& schedule, size_t stage) {
  const StageFacts& info = facts.stages()[stage];
  const uint32_t along = VectorVariable(facts, schedule, stage);
  for (uint32_t id = info.first_op; id < info.end_op(); ++id) {
    if (!IsAccess(facts.op(id))) continue;
    const bool keeps =
        IsStripSum(schedule, id)
            ? *StripStride(facts, facts.op(id).index()) % schedule.lanes() == 0
            : OffsetsOf(facts, info, facts.op(id), along, schedule.lanes()) == Offsets::kAligned;
    if (!keeps) return false;
  }
  return true;
}

void ChooseThreadLanes(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule) {
  schedule->set_lanes(1);
  if (!schedule->has_rows()) {
    const int64_t many = cost::ManyPoints(machine);
    if (!RunsAlongPoints(facts) || PointsEstimate(facts, many) < many) return;
  } else if (!HasInnerLoops(facts)) {
    return;
  }
  unsigned lanes = kAccessBytes;
  for (size_t stage = 0; stage < facts.stages().size(); ++stage) {
    if (schedule->has_rows() && facts.stages()[stage].stage->inner_size() == 0) continue;
    lanes = std::min(lanes, LanesOf(facts, *schedule, stage));
  }
  schedule->set_lanes(lanes);
}

absl::Status CheckThreadLanes(const KernelFacts& facts, const Machine&, const v1::ThreadSchedule& schedule) {
  const unsigned lanes = schedule.lanes();
  if (lanes == 1) return absl::OkStatus();
  unsigned most = schedule.has_rows() && HasInnerLoops(facts) ? kAccessBytes : 1;
  if (schedule.has_points() && RunsAlongPoints(facts)) most = kAccessBytes;
  for (size_t stage = 0; stage < facts.stages().size(); ++stage) {
    if (schedule.has_rows() && facts.stages()[stage].stage->inner_size() == 0) continue;
    most = std::min(most, MostLanes(facts, schedule, stage));
  }
  if (absl::has_single_bit(lanes) && lanes <= most) return absl::OkStatus();
  return RefuseThreads(absl::StrCat(lanes, " lanes, where a power of two up to ", most, " is due"));
}

void ChooseAligned(const KernelFacts& facts, const Machine&, v1::ThreadSchedule* schedule) {
  v1::AlignedCode aligned = v1::ALIGNED_NONE;
  if (schedule->lanes() > 1 && schedule->has_points()) {
    const bool once = AllCheap(facts) && LooksOnceAKernel(facts, *schedule);
    aligned = once ? v1::ALIGNED_KERNEL : v1::ALIGNED_POINT;
  } else if (schedule->lanes() > 1) {
    aligned = LooksOnceAPoint(facts, *schedule) ? v1::ALIGNED_POINT : v1::ALIGNED_STAGE;
  }
  schedule->set_aligned(aligned);
}

absl::Status CheckAligned(const KernelFacts& facts, const Machine&, const v1::ThreadSchedule& schedule) {
  if (schedule.aligned() == v1::ALIGNED_NONE) return absl::OkStatus();
  if (schedule.lanes() == 1) return RefuseThreads("code for aligned vectors, of scalars");
  switch (schedule.aligned()) {
    case v1::ALIGNED_KERNEL:
      if (schedule.has_points() && LooksOnceAKernel(facts, schedule)) return absl::OkStatus();
      return RefuseThreads("vectors of some points may be aligned and others not");
    case v1::ALIGNED_POINT:
      if (schedule.has_points() || LooksOnceAPoint(facts, schedule)) return absl::OkStatus();
      return RefuseThreads("vectors of a point may be aligned in one run of a loop and not in another");
    case v1::ALIGNED_STAGE:
      if (schedule.has_rows() && !schedule.rows().has_strips()) return absl::OkStatus();
      return RefuseThreads("code for a stage's aligned vectors is for rows without strips");
    default: return RefuseThreads("unknown code for aligned vectors");
  }
}

}  // namespace kiln
