#include "compiler/schedule/skinny_schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

absl::Status Unsupported(absl::string_view why) {
  return absl::UnimplementedError(absl::StrCat("unsupported: a gemm of few rows ", why));
}

bool IsOneOf(uint32_t value, std::initializer_list<uint32_t> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

constexpr uint32_t kStepsMax = 8;

double Nanoseconds(const Machine& machine, const SkinnyShape& shape) {
  return cost::Nanoseconds(machine,
                           {.depth_bytes = static_cast<double>(shape.gemm.depth * shape.gemm.element_bytes()),
                            .rows = static_cast<double>(shape.gemm.rows),
                            .columns = static_cast<double>(shape.columns()),
                            .columns_all = static_cast<double>(shape.gemm.columns),
                            .units = static_cast<double>(shape.units()),
                            .blocks = static_cast<double>(shape.blocks),
                            .warps = static_cast<double>(shape.warps),
                            .slots = static_cast<double>(shape.slots()),
                            .iterations = static_cast<double>(shape.iterations()),
                            .row_groups = static_cast<double>(shape.gemm.row_groups()),
                            .tiles = static_cast<double>(shape.tiles)});
}

// Its threads have fewer registers than a thread may have.
bool IsLarge(const GpuMachine& gpu, const SkinnyShape& block) {
  return block.threads() * gpu.registers_of_thread_max > gpu.registers_of_multiprocessor;
}

bool FitsRegisters(const GpuMachine& gpu, const SkinnyShape& shape) {
  if (shape.sums_of_lane() > gpu.registers.gemm_sums) return false;
  return !IsLarge(gpu, shape) ||
         shape.sums_of_lane() + shape.words_of_step() <= gpu.registers.gemm_of_large_block;
}

// As many steps at once as registers hold, in as few rounds.
uint32_t StepsFor(const GpuMachine& gpu, const SkinnyShape& shape) {
  const int64_t words = gpu.registers.gemm_loads / (IsLarge(gpu, shape) ? 2 : 1);
  const auto most = static_cast<uint32_t>(std::clamp<int64_t>(words / shape.words_of_step(), 1, kStepsMax));
  const auto needed = static_cast<uint32_t>((shape.gemm.steps() + shape.slots() - 1) / shape.slots());
  if (needed <= most) return needed;
  const uint32_t half = std::max<uint32_t>(1, most / 2);  // the next round's are in flight as well
  const uint32_t rounds = (needed + half - 1) / half;
  return (needed + rounds - 1) / rounds;
}

}  // namespace

absl::StatusOr<SkinnyShape> SkinnyShape::Of(const v1::Gemm& gemm, const v1::SkinnySchedule& schedule) {
  SkinnyShape shape;
  KILN_ASSIGN_OR_RETURN(shape.gemm, SkinnyGemm::Of(gemm));
  shape.tiles = schedule.tiles();
  shape.warps = schedule.warps();
  shape.blocks = schedule.blocks();
  shape.steps = schedule.steps();
  if (!IsOneOf(shape.tiles, {1, 2, 4}) || !IsOneOf(shape.blocks, {1, 2, 4, 8}) || shape.warps < 1 ||
      shape.warps > 16 || shape.steps < 1 || shape.steps > kStepsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a schedule of ", shape.tiles, " tiles, ", shape.warps,
                                                   " warps, ", shape.blocks, " blocks and ", shape.steps,
                                                   " steps"));
  }
  const int64_t needed = (shape.gemm.steps() + shape.slots() - 1) / shape.slots();
  shape.steps_of_warp = static_cast<uint32_t>((needed + shape.steps - 1) / shape.steps) * shape.steps;
  if (shape.gemm.along_n && shape.gemm.columns % (2 * shape.tiles) != 0)
    return Unsupported("whose weights end within a lane's columns");
  if (shape.units() > kLaunchBlocksMax) return Unsupported("of this size");
  if (int64_t{shape.slots()} * shape.slot_elements() * 4 > kPartialSumsBytesMax)
    return absl::InvalidArgumentError("a schedule whose sums do not fit a block's memory");
  return shape;
}

absl::StatusOr<std::vector<v1::SkinnySchedule>> SkinnySchedules(const v1::Gemm& gemm, const Machine& machine,
                                                                size_t wanted) {
  KILN_RETURN_IF_ERROR(SkinnyGemm::Of(gemm).status());
  std::vector<std::pair<double, v1::SkinnySchedule>> found;
  for (const uint32_t tiles : {1u, 2u, 4u}) {
    for (const uint32_t blocks : {1u, 2u, 4u, 8u}) {
      for (const uint32_t warps : {4u, 8u, 16u}) {
        if (blocks > machine.gpu.cluster_blocks_max) continue;
        v1::SkinnySchedule schedule;
        schedule.set_tiles(tiles);
        schedule.set_warps(warps);
        schedule.set_blocks(blocks);
        schedule.set_steps(1);
        absl::StatusOr<SkinnyShape> shape = SkinnyShape::Of(gemm, schedule);
        if (!shape.ok() || !FitsRegisters(machine.gpu, *shape)) continue;
        if (blocks * warps > 4 && shape->gemm.steps() < int64_t{blocks} * warps) continue;  // idle warps
        schedule.set_steps(StepsFor(machine.gpu, *shape));
        found.emplace_back(Nanoseconds(machine, *shape), schedule);
      }
    }
  }
  if (found.empty()) return Unsupported("whose sums are too short");
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& x, const auto& y) { return x.first < y.first; });
  std::vector<v1::SkinnySchedule> schedules;
  for (const auto& [time, schedule] : found) {
    if (schedules.size() < wanted) schedules.push_back(schedule);
  }
  return schedules;
}

}  // namespace kiln
