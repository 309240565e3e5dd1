#include "compiler/schedule/vector_lanes.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr unsigned kColumnVectorsMax = 8;  // side by side down a column

bool AllCheap(const KernelFacts& facts) {
  return std::all_of(facts.stages().begin(), facts.stages().end(),
                     [](const StageFacts& stage) { return stage.cheap; });
}

// Whether narrower vectors pay for some vector loop.
bool HasShortVectorLoop(const KernelFacts& facts, unsigned lanes) {
  const auto is_short = [&](uint32_t extent) {
    const std::optional<int64_t> iterations = facts.ConstantExpr(extent);
    return iterations && cost::PaysNarrowVectors(*iterations, lanes);
  };
  if (!facts.WalksRows()) return is_short(*facts.kernel().outer().rbegin());
  return std::any_of(facts.stages().begin(), facts.stages().end(), [&](const StageFacts& stage) {
    return stage.stage->inner_size() > 0 && is_short(*stage.stage->inner().rbegin());
  });
}

// Accumulators of the stage with most, in vectors of F32.
unsigned AccumulatorsOf(const KernelFacts& facts) {
  unsigned most = 0;
  for (const StageFacts& stage : facts.stages()) {
    unsigned used = 0;
    for (const v1::LoopOp& op : stage.stage->ops()) {
      if (static_cast<LoopOpcode>(op.op()) != LoopOpcode::kReduce) continue;
      used += ir::ByteWidth(facts.op(op.args(0)).dtype()) == 8 ? 2 : 1;
    }
    most = std::max(most, used);
  }
  return most;
}

bool IsTransposed(const KernelFacts& facts, const v1::LoopOp& op) {
  const auto opcode = static_cast<LoopOpcode>(op.op());
  if (opcode != LoopOpcode::kLoad && opcode != LoopOpcode::kStore) return false;
  if (facts.DependsOnOps(op.index())) return false;
  const auto last = static_cast<uint32_t>(facts.kernel().outer_size()) - 1;
  const std::optional<int64_t> along = facts.CoefficientOf(op.index(), last);
  return along && *along != 0 && *along != 1 && facts.CoefficientOf(op.index(), last - 1) == 1;
}

// What is also written must be read where it stands.
bool IsPackable(const KernelFacts& facts, const v1::LoopOp& op) {
  return facts.IsSourceLoad(op) && op.args_size() == 0 && IsTransposed(facts, op);
}

bool MayTile(const KernelFacts& facts) {
  return facts.kernel().schedule().vector_dim() == v1::VECTOR_OUTER_LAST &&
         facts.kernel().outer_size() >= 2 &&
         std::all_of(facts.stages().begin(), facts.stages().end(),
                     [](const StageFacts& stage) { return stage.stage->inner_size() == 0; });
}

absl::Status Refuse(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("schedule: ", what));
}

}  // namespace

// A reduction along strided rows reads few bytes a row unless several vectors run side by side; as many do as
// the registers hold accumulators for.
void ChooseLanes(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule) {
  const v1::KernelSchedule& loops = facts.kernel().schedule();
  schedule->set_lanes(1);
  if (loops.vector_dim() == v1::VECTOR_NONE) return;
  const unsigned narrow = HasShortVectorLoop(facts, target.lanes) ? target.register_lanes : target.lanes;
  schedule->set_lanes(narrow);
  if (facts.WalksRows()) return;
  const unsigned accumulators = AccumulatorsOf(facts);
  if (accumulators == 0 || !AllCheap(facts)) return;
  unsigned vectors = kColumnVectorsMax;
  while (vectors > 1 && vectors * accumulators > target.accumulators) vectors /= 2;
  unsigned lanes = narrow * vectors;
  const int last = facts.kernel().outer_size() - 1;
  const std::optional<int64_t> extent = facts.ConstantExpr(facts.kernel().outer(last));
  const bool parallel = loops.parallel_dims() == static_cast<uint32_t>(last) + 1;
  while (lanes > narrow && ((extent && *extent < lanes) || (parallel && loops.chunk() < lanes))) lanes /= 2;
  schedule->set_lanes(lanes);
}

absl::Status CheckLanes(const KernelFacts& facts, const VectorTarget& target,
                        const v1::VectorSchedule& schedule) {
  const unsigned lanes = schedule.lanes();
  if (lanes == 1) return absl::OkStatus();
  if (facts.kernel().schedule().vector_dim() == v1::VECTOR_NONE)
    return Refuse("lanes of a kernel of scalars");
  const bool wide = !facts.WalksRows() && AllCheap(facts);
  const unsigned most = target.lanes * (wide ? kColumnVectorsMax : 1);
  if (!absl::has_single_bit(lanes) || lanes < target.register_lanes || lanes > most) {
    return Refuse(absl::StrCat(lanes, " lanes, where a power of two from ", target.register_lanes, " to ",
                               most, " is due, or 1"));
  }
  return absl::OkStatus();
}

void ChooseTile(const KernelFacts& facts, const VectorTarget&, v1::VectorSchedule* schedule) {
  if (!MayTile(facts)) return;
  const auto is_transposed = [&](const v1::LoopOp* op) { return IsTransposed(facts, *op); };
  if (std::none_of(facts.ops().begin(), facts.ops().end(), is_transposed)) return;
  v1::TileSchedule* tile = schedule->mutable_tile();
  if (!AllCheap(facts)) return;  // the packed copy of the body is one more
  for (uint32_t id = 0; id < facts.ops().size(); ++id) {
    if (IsPackable(facts, facts.op(id))) tile->add_packed(id);
  }
}

absl::Status CheckTile(const KernelFacts& facts, const VectorTarget&, const v1::VectorSchedule& schedule) {
  if (!schedule.has_tile()) return absl::OkStatus();
  if (!MayTile(facts) || schedule.lanes() == 1) {
    return Refuse("a tile needs vectors along the last of two outer loops and no inner ones");
  }
  uint32_t next = 0;
  for (const uint32_t id : schedule.tile().packed()) {
    if (id < next || id >= facts.ops().size() || !IsPackable(facts, facts.op(id))) {
      return Refuse(absl::StrCat("op ", id, " is no load that a tile can transpose"));
    }
    next = id + 1;
  }
  return absl::OkStatus();
}

}  // namespace kiln
