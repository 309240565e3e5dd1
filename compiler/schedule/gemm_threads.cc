#include "compiler/schedule/gemm_threads.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/graph/dtype_range.h"
#include "compiler/graph/dtypes.h"
#include "compiler/schedule/long_sums.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr size_t kFactorOpsMax = 32;  // each is there for every element that a thread has in flight

// The only stage with loops, if it has one loop and all else is plain work at a point.
std::optional<size_t> StageOfSums(const KernelFacts& facts) {
  std::optional<size_t> found;
  for (size_t k = 0; k < facts.stages().size(); ++k) {
    const StageFacts& info = facts.stages()[k];
    if (info.stage->inner_size() == 0) {
      if (info.has_reduce || info.has_scan) return std::nullopt;
      continue;
    }
    if (found || info.stage->inner_size() != 1 || info.has_scan) return std::nullopt;
    found = k;
  }
  return found;
}

bool HasPlace(LoopOpcode opcode) { return opcode == LoopOpcode::kLoad || opcode == LoopOpcode::kIndexExpr; }

// May be computed anywhere, for elements that nobody asks for, too.
bool IsPure(const KernelFacts& facts, uint32_t op) {
  switch (facts.opcode(op)) {
    case LoopOpcode::kLoad: return facts.IsSourceLoad(facts.op(op));
    case LoopOpcode::kIndexExpr: return !facts.DependsOnOps(facts.op(op).index());
    case LoopOpcode::kStore:
    case LoopOpcode::kReduce:
    case LoopOpcode::kScan:
    case LoopOpcode::kCheckIndex: return false;
    default: return true;
  }
}

// Adds the ops that `op` is made of, and itself; false where one is not pure, or they are too many. What does
// not change along the loop is of an earlier stage. `above`: ops that wait for this one.
bool AddOps(const KernelFacts& facts, uint32_t op, size_t above, std::vector<uint32_t>* ops) {
  if (!IsPure(facts, op)) return false;
  if (std::find(ops->begin(), ops->end(), op) != ops->end()) return true;
  if (ops->size() + above >= kFactorOpsMax) return false;
  for (const uint32_t arg : facts.op(op).args()) {
    if (!AddOps(facts, arg, above + 1, ops)) return false;
  }
  ops->push_back(op);
  return true;
}

// A factor with all of its ops, whether it is of elements as they lie or not.
std::optional<GemmFactor> FactorOf(const KernelFacts& facts, uint32_t value) {
  GemmFactor factor{.value = value};
  if (!AddOps(facts, value, 0, &factor.ops)) return std::nullopt;
  std::sort(factor.ops.begin(), factor.ops.end());
  return factor;
}

// The dtype that a factor's values have without rounding; unspecified: F16 and BF16 both.
v1::DType DTypeOf(const KernelFacts& facts, const GemmFactor& factor) {
  if (facts.opcode(factor.value) != LoopOpcode::kCast) return v1::F32;
  const v1::DType from = facts.op(facts.op(factor.value).args(0)).dtype();
  if (IsHalf(from)) return from;
  return HoldsIntegersOf(v1::BF16, from) ? v1::DTYPE_UNSPECIFIED : v1::F32;
}

// Of both.
v1::DType CommonDType(v1::DType a, v1::DType b) {
  if (a == v1::DTYPE_UNSPECIFIED && b == v1::DTYPE_UNSPECIFIED) return v1::BF16;
  if (a == v1::DTYPE_UNSPECIFIED) return b;
  return b == v1::DTYPE_UNSPECIFIED || a == b ? a : v1::F32;
}

bool Moves(const KernelFacts& facts, const std::vector<uint32_t>& ops, uint32_t variable) {
  return std::any_of(ops.begin(), ops.end(), [&](uint32_t op) {
    return HasPlace(facts.opcode(op)) && facts.CoefficientOf(facts.op(op).index(), variable) != 0;
  });
}

// Outer loops taken as one, and how often it runs.
struct Counted {
  std::vector<uint32_t> loops;
  int64_t extent = 1;
};
// Those along which `ops` move, or those along which they do not.
std::optional<Counted> LoopsOf(const KernelFacts& facts, const std::vector<uint32_t>& ops, bool moved) {
  Counted counted;
  for (uint32_t variable = 0; variable < static_cast<uint32_t>(facts.kernel().outer_size()); ++variable) {
    if (Moves(facts, ops, variable) != moved) continue;
    const auto extent = facts.ConstantExpr(facts.kernel().outer(static_cast<int>(variable)));
    if (!extent || *extent < 1 || *extent > kLoopMax / counted.extent) return std::nullopt;
    counted.extent *= *extent;
    counted.loops.push_back(variable);
  }
  return counted;
}

// Of a factor as it lies: between neighbours of its loops taken as one, and between terms.
struct Strides {
  int64_t loops = 0, terms = 0;
};
// Puts the loops in the order in which the elements lie. No value where they are not one.
std::optional<Strides> StridesOf(const KernelFacts& facts, uint32_t load, int64_t depth, Counted* counted) {
  const uint32_t index = facts.op(load).index();
  const auto terms = facts.CoefficientOf(index, static_cast<uint32_t>(facts.kernel().outer_size()));
  if (!terms) return std::nullopt;
  if (counted->loops.empty()) return Strides{depth, *terms};  // of one row any would do
  std::vector<std::pair<int64_t, uint32_t>> loops;
  for (const uint32_t loop : counted->loops) {
    const auto stride = facts.CoefficientOf(index, loop);
    if (!stride) return std::nullopt;
    loops.emplace_back(*stride, loop);
  }
  std::stable_sort(loops.begin(), loops.end(),
                   [](const auto& x, const auto& y) { return x.first > y.first; });
  const int64_t innermost = loops.back().first;
  int64_t extent = 1;
  for (size_t k = loops.size(); k-- > 0;) {
    if (loops[k].first != innermost * extent) return std::nullopt;
    extent *= *facts.ConstantExpr(facts.kernel().outer(static_cast<int>(loops[k].second)));
    counted->loops[k] = loops[k].second;
  }
  return Strides{innermost, *terms};
}

// The strides of a factor, which is taken as it lies where its elements are those of a load of `dtype`,
// widened where they are of 16 bits, and each line of them starts at 16 bytes where the first does; else it
// is made. `across`: its lines may lie along its loops, not along the terms.
Strides Place(const KernelFacts& facts, v1::DType dtype, bool across, int64_t depth, Counted* counted,
              GemmFactor* factor) {
  const Strides made = {depth, 1};
  const bool widened = facts.opcode(factor->value) == LoopOpcode::kCast;
  const uint32_t load = widened ? facts.op(factor->value).args(0) : factor->value;
  if (facts.opcode(load) != LoopOpcode::kLoad || facts.op(load).args_size() > 0) return made;
  if (facts.op(load).dtype() != dtype || widened == (dtype == v1::F32)) return made;
  Counted ordered = *counted;
  const std::optional<Strides> strides = StridesOf(facts, load, depth, &ordered);
  if (!strides) return made;
  const int64_t line = kAccessBytes / static_cast<int64_t>(ByteSize(dtype));
  const auto starts_aligned = [&](int64_t stride) { return stride >= 0 && stride % line == 0; };
  const bool along = strides->terms == 1 && starts_aligned(strides->loops);
  if (!along && !(across && strides->loops == 1 && starts_aligned(strides->terms))) return made;
  *counted = std::move(ordered);
  factor->load = load;
  factor->ops.clear();
  return *strides;
}

// 16 bits are for sums that are rounded to as many: the tensor cores add less exactly than F32.
bool IsRoundedToHalf(const KernelFacts& facts, size_t stage) {
  for (size_t k = 0; k < facts.stages().size(); ++k) {
    const auto& ops = facts.stages()[k].stage->ops();
    if (k != stage &&
        std::any_of(ops.begin(), ops.end(), [](const v1::LoopOp& op) { return IsHalf(op.dtype()); }))
      return true;
  }
  return false;
}

v1::DType MultipliedDType(const KernelFacts& facts, const GemmLoops& loops, int64_t depth) {
  const v1::DType dtype = CommonDType(DTypeOf(facts, loops.a), DTypeOf(facts, loops.b));
  const int64_t line = kAccessBytes / 2;
  return IsHalf(dtype) && (depth % line != 0 || !IsRoundedToHalf(facts, loops.stage)) ? v1::F32 : dtype;
}

void Describe(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride,
              v1::MatrixOperand* operand) {
  operand->set_rows(rows);
  operand->set_columns(columns);
  operand->set_row_stride(row_stride);
  operand->set_column_stride(column_stride);
}

// `loops` without the sizes; `b` is the factor of the columns. What neither moves along counts rows.
std::optional<GemmLoops> WithSizes(const KernelFacts& facts, GemmLoops loops) {
  std::optional<Counted> rows = LoopsOf(facts, loops.b.ops, false),
                         columns = LoopsOf(facts, loops.b.ops, true);
  const auto depth = facts.ConstantExpr(facts.stages()[loops.stage].stage->inner(0));
  if (!rows || !columns || !depth) return std::nullopt;
  for (const uint32_t loop : columns->loops) {
    if (Moves(facts, loops.a.ops, loop)) return std::nullopt;
  }
  const v1::DType dtype = MultipliedDType(facts, loops, *depth);
  loops.gemm.set_dtype(dtype);
  loops.gemm.set_batch(1);
  const Strides a = Place(facts, dtype, false, *depth, &*rows, &loops.a),
                b = Place(facts, dtype, true, *depth, &*columns, &loops.b);
  loops.rows = rows->loops;
  loops.columns = columns->loops;
  Describe(rows->extent, *depth, a.loops, a.terms, loops.gemm.mutable_a());
  Describe(*depth, columns->extent, b.terms, b.loops, loops.gemm.mutable_b());
  Describe(rows->extent, columns->extent, columns->extent, 1, loops.gemm.mutable_d());
  return loops;
}

// Additions in a row into one number. An instruction of the tensor cores adds a step's half as one.
int64_t AdditionsInARow(const SkinnyShape& shape) {
  return shape.steps_of_warp * (shape.gemm.tensor_cores ? 2 : shape.gemm.terms());
}

// A launch has as many blocks as its points fill: clusters are whole where tiles are.
absl::Status CheckSkinnyLoops(const v1::Gemm& gemm, const Machine& machine,
                              const v1::SkinnySchedule& schedule) {
  KILN_ASSIGN_OR_RETURN(const SkinnyShape shape, SkinnyShape::Of(gemm, schedule));
  if (shape.blocks > machine.gpu.cluster_blocks_max) {
    return RefuseThreads(absl::StrCat("a cluster of ", shape.blocks, " blocks, where ",
                                      machine.gpu.cluster_blocks_max, " are the most"));
  }
  if (shape.gemm.columns % shape.columns() != 0) {
    return RefuseThreads(absl::StrCat("tiles of ", shape.columns(), " of ", shape.gemm.columns, " columns"));
  }
  if (shape.iterations() > kPointsPerThreadMax)
    return RefuseThreads(absl::StrCat(shape.iterations(), " elements a thread of a gemm"));
  if (AdditionsInARow(shape) > kThreadAdditionsMax) {
    return RefuseThreads(absl::StrCat(AdditionsInARow(shape), " additions in a row in F32, of a gemm"));
  }
  return absl::OkStatus();
}

v1::ThreadSchedule ScheduleOf(const v1::SkinnySchedule& gemm) {
  v1::ThreadSchedule schedule;
  schedule.set_threads(kWarp * gemm.warps());
  schedule.set_lanes(1);
  schedule.set_aligned(v1::ALIGNED_STAGE);
  *schedule.mutable_gemm() = gemm;
  return schedule;
}

std::vector<v1::SkinnySchedule> SchedulesOf(const v1::Gemm& gemm, const Machine& machine) {
  std::vector<v1::SkinnySchedule> schedules =
      SkinnySchedules(gemm, machine, SIZE_MAX).value_or(std::vector<v1::SkinnySchedule>());
  std::erase_if(schedules, [&](const v1::SkinnySchedule& schedule) {
    return !CheckSkinnyLoops(gemm, machine, schedule).ok();
  });
  return schedules;
}

}  // namespace

std::optional<GemmLoops> GemmLoopsOf(const KernelFacts& facts) {
  // A block cannot take another turn: the launch's units are the points.
  const v1::KernelSchedule& schedule = facts.kernel().schedule();
  if (schedule.parallel_dims() != static_cast<uint32_t>(facts.kernel().outer_size()) || schedule.chunk() != 1)
    return std::nullopt;
  if (HasAccumulatingStore(facts)) return std::nullopt;
  const std::optional<size_t> stage = StageOfSums(facts);
  if (!stage) return std::nullopt;
  const StageFacts& info = facts.stages()[*stage];
  if (!info.has_reduce) return std::nullopt;
  const uint32_t sum = info.end_op() - 1;
  if (!facts.IsReduction(sum, v1::REDUCE_SUM) || facts.op(sum).dtype() != v1::F32) return std::nullopt;
  const uint32_t product = facts.op(sum).args(0);
  if (product < info.first_op || facts.opcode(product) != LoopOpcode::kMul) return std::nullopt;
  const auto first = FactorOf(facts, facts.op(product).args(0)),
             second = FactorOf(facts, facts.op(product).args(1));
  if (!first || !second) return std::nullopt;
  std::vector<uint32_t> all = {product, sum};
  for (const auto& factor : {first, second}) all.insert(all.end(), factor->ops.begin(), factor->ops.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  all.erase(all.begin(), std::lower_bound(all.begin(), all.end(), info.first_op));
  if (all.size() != static_cast<size_t>(info.stage->ops_size())) return std::nullopt;
  const auto loops = WithSizes(facts, {.stage = *stage, .a = *first, .b = *second, .sum = sum}),
             swapped = WithSizes(facts, {.stage = *stage, .a = *second, .b = *first, .sum = sum});
  if (!loops || !swapped) return loops ? loops : swapped;
  // Fewer rows than columns.
  return loops->gemm.d().rows() <= swapped->gemm.d().rows() ? loops : swapped;
}

uint32_t PointsOfGemmBlock(const KernelFacts& facts, const v1::ThreadSchedule& schedule) {
  const SkinnyShape shape = *SkinnyShape::Of(GemmLoopsOf(facts)->gemm, schedule.gemm());
  return static_cast<uint32_t>(shape.gemm.rows) * shape.columns() / shape.blocks;
}

std::vector<v1::ThreadSchedule> GemmThreadSchedules(const KernelFacts& facts, const Machine& machine) {
  std::vector<v1::ThreadSchedule> schedules;
  if (facts.kernel().schedule().members() > 0) return schedules;
  const std::optional<GemmLoops> loops = GemmLoopsOf(facts);
  if (!loops || !cost::PaysGemmTiles(machine, loops->gemm.a().columns())) return schedules;
  for (const GemmFactor* factor : {&loops->a, &loops->b}) {
    if (!std::all_of(factor->ops.begin(), factor->ops.end(),
                     [&](uint32_t op) { return cost::IsCheap(facts.opcode(op)); }))
      return schedules;
  }
  for (const v1::SkinnySchedule& schedule : SchedulesOf(loops->gemm, machine)) {
    if (schedules.size() < kOtherSchedulesMax) schedules.push_back(ScheduleOf(schedule));
  }
  return schedules;
}

std::optional<v1::ThreadSchedule> ChooseGemmThreads(const KernelFacts& facts, const Machine& machine) {
  std::vector<v1::ThreadSchedule> schedules = GemmThreadSchedules(facts, machine);
  if (schedules.empty()) return std::nullopt;
  return std::move(schedules[0]);
}

absl::Status CheckGemmThreads(const KernelFacts& facts, const Machine& machine,
                              const v1::ThreadSchedule& schedule) {
  if (facts.kernel().schedule().members() > 0) return RefuseThreads("a gemm that is a member of a launch");
  const std::optional<GemmLoops> loops = GemmLoopsOf(facts);
  if (!loops) return RefuseThreads("a gemm's, for a kernel that is none");
  absl::Status fits = CheckSkinnyLoops(loops->gemm, machine, schedule.gemm());
  if (!fits.ok()) return RefuseThreads(fits.message());
  if (SerializeDeterministic(schedule) == SerializeDeterministic(ScheduleOf(schedule.gemm())))
    return absl::OkStatus();
  return RefuseThreads("a gemm's, with more to it than its tiles say");
}

}  // namespace kiln
