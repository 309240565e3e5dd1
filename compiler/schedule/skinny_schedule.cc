#include "compiler/schedule/skinny_schedule.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr int64_t kElementsMax = std::numeric_limits<int32_t>::max();
constexpr uint32_t kClustersFrom = 90;

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

absl::StatusOr<SkinnyGemm> SkinnyGemm::Of(const v1::Gemm& gemm) {
  const v1::MatrixOperand &a = gemm.a(), &b = gemm.b(), &d = gemm.d();
  SkinnyGemm skinny;
  skinny.dtype = gemm.dtype();
  skinny.tensor_cores = skinny.dtype != v1::F32 || gemm.tf32();
  skinny.rows = d.rows();
  skinny.columns = d.columns();
  skinny.depth = a.columns();
  skinny.has_c = gemm.has_c();
  skinny.has_bias = gemm.bias();
  skinny.activation = gemm.activation();
  if (skinny.dtype != v1::F32 && skinny.dtype != v1::F16 && skinny.dtype != v1::BF16)
    return Unsupported("of this type");
  if (!v1::Activation_IsValid(skinny.activation)) return Unsupported("with this activation");
  if (gemm.batch() != 1) return Unsupported("in a batch");
  if (skinny.rows < 1 || skinny.columns < 1 || skinny.depth < 1 || a.rows() != skinny.rows ||
      b.rows() != skinny.depth || b.columns() != skinny.columns) {
    return absl::InvalidArgumentError("a gemm whose sizes do not fit together");
  }
  if (skinny.rows > (skinny.tensor_cores ? kRowsMax : kRowsByFmaMax))
    return Unsupported(absl::StrCat("with ", skinny.rows, " of them"));
  const auto aligned = [&](int64_t stride) { return stride >= 0 && stride % skinny.terms() == 0; };
  if (a.column_stride() != 1 || !aligned(a.row_stride()))
    return Unsupported("that do not each start at 16 bytes");
  skinny.a_stride = a.row_stride();
  if (skinny.depth % skinny.terms() != 0) return Unsupported("whose sums do not fill 16 bytes");
  if (b.row_stride() == 1 && aligned(b.column_stride())) {
    skinny.b_stride = b.column_stride();
  } else if (b.column_stride() == 1 && aligned(b.row_stride())) {
    skinny.b_stride = b.row_stride();
    skinny.along_n = true;
  } else {
    return Unsupported("with weights that do not start at 16 bytes");
  }
  for (const v1::MatrixOperand* m : {&a, &b, &d, gemm.has_c() ? &gemm.c() : &d}) {
    if (m->row_stride() < 0 || m->column_stride() < 0 || m->row_stride() > kElementsMax ||
        m->column_stride() > kElementsMax || m->rows() > kElementsMax / 256 ||
        m->columns() > kElementsMax / 256) {
      return Unsupported("of this size");
    }
  }
  if (gemm.has_c() && (gemm.c().rows() != d.rows() || gemm.c().columns() != d.columns()))
    return absl::InvalidArgumentError("a summand of another size than the gemm");
  skinny.c.row = gemm.c().row_stride();
  skinny.c.column = gemm.c().column_stride();
  skinny.d.row = d.row_stride();
  skinny.d.column = d.column_stride();
  return skinny;
}

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
                                                                uint32_t architecture, size_t wanted) {
  KILN_RETURN_IF_ERROR(SkinnyGemm::Of(gemm).status());
  std::vector<std::pair<double, v1::SkinnySchedule>> found;
  for (const uint32_t tiles : {1u, 2u, 4u}) {
    for (const uint32_t blocks : {1u, 2u, 4u, 8u}) {
      for (const uint32_t warps : {4u, 8u, 16u}) {
        if (blocks > 1 && architecture < kClustersFrom) continue;
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
