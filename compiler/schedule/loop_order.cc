#include "compiler/schedule/loop_order.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "compiler/graph/expr_leaves.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr int64_t kColumnChunkMax = 128;  // columns that walk down rows side by side
constexpr int64_t kColumnUnitsMin = 4;    // fewer columns a unit rather than fewer units

class LoopChooser {
 public:
  LoopChooser(LoopContext& context, Draft& draft, const LoopFacts& facts)
      : context_(context), draft_(draft), facts_(facts) {}

  v1::KernelSchedule Run() {
    draft_.outer = Ordered(draft_.outer, kOuterClass);
    for (size_t k = 0; k < draft_.classes.size(); ++k) {
      if (!draft_.classes[k].ordered)
        draft_.classes[k].vars = Ordered(draft_.classes[k].vars, static_cast<int>(k));
    }
    Merge(&draft_.outer);
    for (DraftClass& cls : draft_.classes) Merge(&cls.vars);
    v1::KernelSchedule schedule;
    schedule.set_vector_dim(ChooseVector());
    ChooseUnits(&schedule);
    return schedule;
  }

 private:
  int64_t lanes() const { return context_.machine().cpu.vector_lanes; }
  ExprId Index(const DraftAccess& access) const { return draft_.ops[access.position].data.index; }

  // Stride of an access along a loop; nullopt where it is no fixed number.
  std::optional<int64_t> Stride(const DraftAccess& access, const LoopVar& var) {
    auto factor = context_.Coefficient(Index(access), var.leaf);
    if (!factor) return std::nullopt;
    return context_.Estimate(*factor);
  }

  int64_t Weight(const DraftAccess& access) {
    return cost::AccessWeight(std::max<int64_t>(context_.EstimateBytes(access.buffer), 1), access.store);
  }

  // Does loop `a` belong outside of `b`? By vote of the accesses that depend on both.
  bool Outside(const LoopVar& a, const LoopVar& b, int cls) {
    double vote = 0;
    for (const DraftAccess& access : facts_.accesses) {
      if (cls != kOuterClass && access.cls != cls) continue;
      auto sa = Stride(access, a);
      auto sb = Stride(access, b);
      if (!sa || !sb || *sa == 0 || *sb == 0 || *sa == *sb) continue;
      vote += (std::abs(*sa) > std::abs(*sb) ? 1.0 : -1.0) * static_cast<double>(Weight(access));
    }
    return vote > 0;
  }

  // A stable insertion sort: the relation need not be transitive.
  std::vector<LoopVar> Ordered(const std::vector<LoopVar>& vars, int cls) {
    std::vector<LoopVar> result;
    for (const LoopVar& var : vars) {
      size_t at = result.size();
      while (at > 0 && Outside(var, result[at - 1], cls)) --at;
      result.insert(result.begin() + at, var);
    }
    return result;
  }

  bool TryMerge(const LoopVar& a, const LoopVar& b, LoopVar* merged) {
    ExprPool& pool = context_.pool();
    ExprId zero = pool.Const(0);
    LoopVar joint = context_.NewVar(pool.Mul(a.extent, b.extent));
    ExprId expanded = pool.Add(pool.Mul(a.leaf, b.extent), b.leaf);
    LeafMap replaced;
    for (uint32_t position : facts_.indexed) {
      ExprId index = draft_.ops[position].data.index;
      if (replaced.contains(index)) continue;
      ExprId narrowed = Substitute(pool, index, [&](ExprId leaf) {
        return leaf == a.leaf ? zero : leaf == b.leaf ? joint.leaf : leaf;
      });
      ExprId restored =
          Substitute(pool, narrowed, [&](ExprId leaf) { return leaf == joint.leaf ? expanded : leaf; });
      if (restored != index) return false;
      replaced[index] = narrowed;
    }
    for (uint32_t position : facts_.indexed) {
      ExprId& index = draft_.ops[position].data.index;
      index = replaced.at(index);
    }
    *merged = joint;
    return true;
  }

  void Merge(std::vector<LoopVar>* vars) {
    for (size_t i = vars->size(); i >= 2; --i) {
      LoopVar merged;
      if (!TryMerge((*vars)[i - 2], (*vars)[i - 1], &merged)) continue;
      (*vars)[i - 2] = merged;
      vars->erase(vars->begin() + (i - 1));
      if (i - 1 < vars->size()) ++i;  // the new loop may merge with the one inside of it
    }
  }

  // Merit of running lanes along `var`: of all accesses, weighted by how often they run.
  double LaneMerit(const LoopVar& var, int cls) {
    if (!cost::PaysLanes(context_.Estimate(var.extent))) return -1e30;
    double merit = 0;
    for (const DraftAccess& access : facts_.accesses) {
      if (cls != kOuterClass && access.cls != cls) continue;
      double times = access.cls == kOuterClass
                         ? 1.0
                         : static_cast<double>(context_.EstimateProduct(draft_.classes[access.cls].vars));
      merit += cost::LaneMerit(Stride(access, var), access.store) * times;
    }
    return merit;
  }

  bool HasOp(LoopOpcode op) const {
    return std::any_of(draft_.ops.begin(), draft_.ops.end(),
                       [&](const DraftOp& o) { return o.data.op == op; });
  }

  // Lanes of one vector must not accumulate into one location.
  bool LanesMayCollide(const LoopVar& var) {
    for (const DraftAccess& access : facts_.accesses) {
      if (!access.accumulate) continue;
      auto stride = Stride(access, var);
      if (!stride || *stride == 0) return true;
    }
    return false;
  }

  v1::VectorDim ChooseVector() {
    double outer = -1e30;
    if (!draft_.outer.empty() && !LanesMayCollide(draft_.outer.back())) {
      outer = LaneMerit(draft_.outer.back(), kOuterClass);
    }
    double inner = -1e30;
    bool scan = HasOp(LoopOpcode::kScan);
    for (size_t k = 0; k < draft_.classes.size(); ++k) {
      const DraftClass& cls = draft_.classes[k];
      if (cls.vars.empty()) continue;
      if (scan || LanesMayCollide(cls.vars.back())) {
        inner = -1e30;
        break;
      }
      double merit = LaneMerit(cls.vars.back(), static_cast<int>(k));
      inner = inner == -1e30 ? merit : merit == -1e30 ? inner : inner + merit;
    }
    if (outer == -1e30 && inner == -1e30) return v1::VECTOR_NONE;
    return inner >= outer ? v1::VECTOR_INNER_LAST : v1::VECTOR_OUTER_LAST;
  }

  int64_t ColumnChunk(const LoopVar& columns) {
    int64_t chunk = kColumnChunkMax;
    int64_t extent = context_.Estimate(columns.extent);
    while (chunk > lanes() && extent / chunk < kColumnUnitsMin) chunk /= 2;
    return chunk;
  }

  // Does an access run along the loop before the last, against the others?
  bool IsTransposed() {
    size_t n = draft_.outer.size();
    if (n < 2) return false;
    for (const DraftAccess& access : facts_.accesses) {
      auto last = Stride(access, draft_.outer[n - 1]);
      auto before = Stride(access, draft_.outer[n - 2]);
      if (last && before && *last > 1 && *before == 1) return true;
    }
    return false;
  }

  bool HasThreads() {
    return std::any_of(facts_.accesses.begin(), facts_.accesses.end(),
                       [&](const DraftAccess& access) { return context_.HasThreads(access.buffer); });
  }

  // Rows of a strip, where a sum down the columns has an element for each strip; see split_columns.h.
  uint32_t StripRows(const LoopVar& rows) {
    for (const DraftAccess& access : facts_.accesses) {
      if (!access.accumulate) continue;
      if (const int64_t divisor = DivisorOf(Index(access), rows.leaf)) return static_cast<uint32_t>(divisor);
    }
    return 1;
  }

  // n where `leaf // n` is part of the expression; 0 where nothing like it is.
  int64_t DivisorOf(ExprId id, ExprId leaf) {
    const ExprNode& node = context_.pool().node(id);
    if (node.op == v1::EXPR_FLOORDIV && node.args[0] == leaf) {
      const int64_t divisor = context_.pool().AsConst(node.args[1]).value_or(0);
      return divisor <= std::numeric_limits<int32_t>::max() ? divisor : 0;
    }
    for (ExprId arg : node.args) {
      if (const int64_t divisor = DivisorOf(arg, leaf)) return divisor;
    }
    return 0;
  }

  void ChooseUnits(v1::KernelSchedule* schedule) {
    const std::vector<LoopVar>& outer = draft_.outer;
    schedule->set_chunk(1);
    if (outer.empty()) {
      schedule->set_parallel_dims(0);
      return;
    }
    if (HasThreads()) {  // every point is a unit: a GPU's rules share points out among threads
      schedule->set_parallel_dims(static_cast<uint32_t>(outer.size()));
      if (outer.size() == 1) schedule->set_chunk(StripRows(outer[0]));
      return;
    }
    int64_t point = 1;  // work of one point of the loops up to the current one
    for (const DraftClass& cls : draft_.classes) point = std::max(point, context_.EstimateProduct(cls.vars));
    for (size_t i = 1; i < outer.size(); ++i)
      point *= std::max<int64_t>(context_.Estimate(outer[i].extent), 1);
    size_t dims = 1;
    bool tiled = schedule->vector_dim() == v1::VECTOR_OUTER_LAST && draft_.classes.empty() && IsTransposed();
    size_t dims_max = tiled ? outer.size() - 1 : outer.size();
    const int64_t work = cost::UnitIterations(context_.machine());
    while (dims < dims_max && point > work) {
      point /= std::max<int64_t>(context_.Estimate(outer[dims].extent), 1);
      ++dims;
    }
    int64_t chunk = std::max<int64_t>(work / std::max<int64_t>(point, 1), 1);
    if (dims == outer.size() && schedule->vector_dim() == v1::VECTOR_OUTER_LAST) {
      chunk = std::max(chunk, draft_.classes.empty() ? lanes() : ColumnChunk(outer.back()));
      chunk = (chunk + lanes() - 1) / lanes() * lanes();
    }
    // Rows of a transposed access share cache lines: a unit takes whole lines of F32.
    const int64_t rows = context_.machine().cpu.cache_line_bytes / 4;
    if (tiled && dims + 1 == outer.size()) chunk = (chunk + rows - 1) / rows * rows;
    schedule->set_parallel_dims(static_cast<uint32_t>(dims));
    schedule->set_chunk(static_cast<uint32_t>(chunk));
  }

  LoopContext& context_;
  Draft& draft_;
  const LoopFacts& facts_;
};

}  // namespace

v1::KernelSchedule ChooseLoops(LoopContext& context, Draft& draft, const LoopFacts& facts) {
  return LoopChooser(context, draft, facts).Run();
}

ExprId CountUnits(LoopContext& context, const std::vector<LoopVar>& outer,
                  const v1::KernelSchedule& schedule) {
  ExprPool& pool = context.pool();
  ExprId units = pool.Const(1);
  for (uint32_t i = 0; i < schedule.parallel_dims(); ++i) {
    bool last = i + 1 == schedule.parallel_dims();
    units =
        pool.Mul(units, last ? pool.CeilDiv(outer[i].extent, pool.Const(schedule.chunk())) : outer[i].extent);
  }
  return units;
}

}  // namespace kiln
