#include "compiler/schedule/tile_threads.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr int64_t kBankBytes = 4;
constexpr uint32_t kSideMin = 32, kSideMax = 64;

// Of what the kernel does not write, that runs along `loop`.
bool IsTransposed(const KernelFacts& facts, const v1::LoopOp& op, uint32_t loop) {
  if (op.args_size() > 0 || !facts.IsSourceLoad(op)) return false;
  const auto last = static_cast<uint32_t>(facts.kernel().outer_size()) - 1;
  const std::optional<int64_t> along = facts.CoefficientOf(op.index(), last);
  return along != 0 && along != 1 && facts.CoefficientOf(op.index(), loop) == 1;
}

void AddTransposed(const KernelFacts& facts, v1::TileThreads* tile) {
  for (uint32_t id = 0; id < facts.ops().size(); ++id) {
    if (IsTransposed(facts, facts.op(id), tile->loop())) tile->add_transposed(id);
  }
}

int64_t BytesOf(const KernelFacts& facts, const v1::TileThreads& tile) {
  int64_t sum = 0;
  for (const uint32_t load : tile.transposed()) {
    const auto buffer = static_cast<int>(facts.op(load).buffer());
    const int64_t width = ir::ByteWidth(facts.kernel().buffers(buffer).dtype());
    sum += tile.side() * TileRowElements(tile.side(), width) * width;
  }
  return sum;
}

bool MayTile(const KernelFacts& facts) {
  return facts.kernel().outer_size() >= 2 && !HasAccumulatingStore(facts) && !HasInnerLoops(facts);
}

}  // namespace

int64_t TileRowElements(int64_t side, int64_t bytes) {
  return side + std::max<int64_t>(1, kBankBytes / bytes);
}

void ChooseTileThreads(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule) {
  if (!schedule->has_points() || schedule->lanes() > 1 || !MayTile(facts)) return;
  const int64_t large = cost::LargeTilePoints(machine);
  const int64_t points = PointsEstimate(facts, large);
  if (points < cost::TilePointsMin(machine)) return;
  const auto is_long = [&](uint32_t loop) {
    const uint32_t extent = facts.kernel().outer(static_cast<int>(loop));
    return cost::PaysTile(facts.ConstantExpr(extent).value_or(kUsualRow));
  };
  const auto last = static_cast<uint32_t>(facts.kernel().outer_size()) - 1;
  if (!is_long(last)) return;
  v1::TileThreads tile;
  for (uint32_t loop = last; loop-- > 0 && tile.transposed_size() == 0;) {
    if (!is_long(loop)) continue;
    tile.set_loop(loop);
    AddTransposed(facts, &tile);
  }
  if (tile.transposed_size() == 0) return;
  tile.set_side(kSideMax);
  const bool large_fits = BytesOf(facts, tile) <= cost::LargeTileBytesMax(machine);
  tile.set_side(points >= large && large_fits ? kSideMax : kSideMin);
  while (BytesOf(facts, tile) > machine.gpu.shared_bytes_of_block) tile.mutable_transposed()->RemoveLast();
  tile.set_unrolled(AllCheap(facts));
  schedule->set_threads(kBlockThreads);
  *schedule->mutable_tile() = tile;
}

absl::Status CheckTileThreads(const KernelFacts& facts, const Machine& machine,
                              const v1::ThreadSchedule& schedule) {
  if (!schedule.has_tile()) return absl::OkStatus();
  const v1::TileThreads& tile = schedule.tile();
  if (!MayTile(facts)) return RefuseThreads("tiles need two outer loops, no inner ones, and plain stores");
  if (tile.loop() + 1 >= static_cast<uint32_t>(facts.kernel().outer_size()))
    return RefuseThreads("the first loop of a tile is not before the last");
  const uint32_t side = tile.side(), rows = schedule.threads() / std::max(side, 1u);
  if ((side != kSideMin && side != kSideMax) || rows == 0 || rows * side != schedule.threads() ||
      side % rows != 0 || side / rows > kPointsPerThreadMax) {
    return RefuseThreads(
        absl::StrCat("tiles of ", side, " points a side by ", schedule.threads(), " threads"));
  }
  uint32_t next = 0;
  for (const uint32_t load : tile.transposed()) {
    if (load < next || load >= facts.ops().size() || !IsTransposed(facts, facts.op(load), tile.loop()))
      return RefuseThreads(absl::StrCat("op ", load, " is no load along the first loop of a tile"));
    next = load + 1;
  }
  if (next == 0) return RefuseThreads("tile without transposed loads");
  if (BytesOf(facts, tile) > machine.gpu.shared_bytes_of_block)
    return RefuseThreads("too little shared memory for the tile");
  return absl::OkStatus();
}

// Those of the other size, and none.
std::vector<v1::ThreadSchedule> OtherTileThreads(const KernelFacts&, const Machine&,
                                                 const v1::ThreadSchedule& own) {
  if (!own.has_tile()) return {};
  std::vector<v1::ThreadSchedule> others = {own, own};
  others[0].mutable_tile()->set_side(own.tile().side() == kSideMin ? kSideMax : kSideMin);
  others[1].mutable_points()->set_vectors_per_group(1);
  others[1].mutable_points()->set_groups_per_thread(1);
  return others;
}

}  // namespace kiln
