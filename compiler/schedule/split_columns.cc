#include "compiler/schedule/split_columns.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/schedule/loop_context.h"
#include "compiler/support/divisor.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr int64_t kBlockRowsMax = 64;
constexpr int64_t kStripColumnsUnit = 8;  // 16 bytes of the narrowest elements that are summed

using LeafMap = absl::flat_hash_map<ExprId, ExprId>;

bool HasIndexExpr(LoopOpcode op) {
  return op == LoopOpcode::kLoad || op == LoopOpcode::kStore || op == LoopOpcode::kIndexExpr ||
         op == LoopOpcode::kCheckIndex;
}

// Loops of a split: an inner loop stays, moves out, or is cut into blocks.
struct BlockPlan {
  std::vector<LoopVar> blocks;  // new outer loops, outermost first
  std::vector<LoopVar> rows;    // inner loops of the first pass
  LeafMap replacement;          // of the node's inner loops
  // Where the number of rows is not known: those behind the last whole block, one more of their own.
  std::vector<LoopVar> rest;
  LeafMap rest_replacement;
};

// A sum down the columns of rows that another node reduces: node `beside`.
struct StripPlan {
  size_t beside = 0;
  int64_t rows = 0;  // of a strip
  int64_t strips = 0;
  int64_t columns = 0;
  LoopOpId sum = 0;
  BufferId partial = 0;
};

class Splitter {
 public:
  Splitter(LoopGraph& graph, const Machine& machine) : graph_(graph), context_(graph, machine) {}

  int Run() {
    std::vector<LoopGraphNode> nodes;
    int split = 0;
    std::vector<std::optional<StripPlan>> strips = PlanAllStrips();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      LoopGraphNode& node = graph_.nodes[n];
      if (strips[n]) {
        AddZeros(n, &strips, &nodes);
        SplitIntoStrips(node.loops, *strips[n], &nodes);
        ++split;
        continue;
      }
      std::optional<LoopOpId> sum =
          node.kind == LoopGraphNode::Kind::kLoops ? FindSum(node.loops) : std::nullopt;
      std::optional<BlockPlan> plan = sum ? PlanBlocks(node.loops) : std::nullopt;
      if (!plan) {
        nodes.push_back(std::move(node));
        continue;
      }
      Split(node.loops, *sum, *plan, &nodes);
      ++split;
    }
    graph_.nodes = std::move(nodes);
    return split;
  }

 private:
  // The one reduction of a node that sums contiguous columns of enough data.
  std::optional<LoopOpId> FindSum(const LoopNode& node) {
    if (node.ordered || node.gemm || node.outer.empty() || node.inner.empty()) return std::nullopt;
    std::optional<LoopOpId> sum;
    int stores = 0;
    bool enough = false;
    for (LoopOpId id = 0; id < node.body.size(); ++id) {
      const LoopOpData& op = node.body.op(id);
      if (HasIndexExpr(op.op) && context_.HasIndirect(op.index)) return std::nullopt;
      if (op.op == LoopOpcode::kScan || op.op == LoopOpcode::kCheckIndex) return std::nullopt;
      if (op.op == LoopOpcode::kStore && (++stores > 1 || op.mode != v1::STORE_PLAIN)) return std::nullopt;
      if (op.op == LoopOpcode::kReduce) {
        if (sum || op.mode != v1::REDUCE_SUM || op.dtype != v1::F32) return std::nullopt;
        sum = id;
      }
      if (op.op != LoopOpcode::kLoad) continue;
      const bool on_gpu = context_.HasThreads(op.buffer);
      if (IsColumnAccess(node, op.index, on_gpu)) {
        const int64_t bytes = std::min(context_.EstimateBytes(op.buffer), BytesOfPoints(node, op.dtype));
        enough = enough || cost::PaysSplitColumns(context_.machine(), on_gpu, bytes,
                                                  context_.EstimateProduct(node.inner));
      }
    }
    return enough ? sum : std::nullopt;
  }

  // The bytes of one element for each point of the loops; INT64_MAX where that is not known.
  int64_t BytesOfPoints(const LoopNode& node, v1::DType dtype) {
    int64_t bytes = ByteSize(dtype);
    for (const auto* vars : {&node.outer, &node.inner}) {
      for (const LoopVar& var : *vars) {
        const std::optional<int64_t> extent = context_.pool().AsConst(var.extent);
        if (!extent || __builtin_mul_overflow(bytes, *extent, &bytes)) return INT64_MAX;
      }
    }
    return bytes;
  }

  bool IsColumnAccess(const LoopNode& node, ExprId index, bool on_gpu) {
    auto along = context_.Coefficient(index, node.outer.back().leaf);
    auto down = context_.Coefficient(index, node.inner.back().leaf);
    if (!along || !down) return false;
    return context_.pool().AsConst(*along) == 1 &&
           context_.pool().AsConst(*down).value_or(0) >= cost::ColumnStrideMin(on_gpu);
  }

  // Takes inner loops from the last one outwards until a block is full.
  std::optional<BlockPlan> PlanBlocks(const LoopNode& node) {
    ExprPool& pool = context_.pool();
    const bool on_gpu = context_.HasThreads(StoreOf(node)->buffer);
    // On a GPU threads of a block share an unknown number of rows (column_threads.h).
    if (!on_gpu && node.inner.size() == 1 && !pool.AsConst(node.inner[0].extent)) {
      return PlanBlocksAndRest(node.inner[0]);
    }
    BlockPlan plan;
    int64_t rows = 1;
    int64_t blocks = 1;
    for (size_t k = node.inner.size(); k-- > 0;) {
      const LoopVar& var = node.inner[k];
      std::optional<int64_t> extent = pool.AsConst(var.extent);
      if (!extent || *extent < 1) return std::nullopt;
      int64_t block = DivisorUpTo(*extent, kBlockRowsMax / rows);
      ExprId value = pool.Const(0);
      if (block < *extent) {
        LoopVar outside = context_.NewVar(pool.Const(*extent / block));
        plan.blocks.insert(plan.blocks.begin(), outside);
        blocks *= *extent / block;
        value = pool.Mul(outside.leaf, pool.Const(block));
      }
      if (block > 1) {
        LoopVar inside = context_.NewVar(pool.Const(block));
        plan.rows.insert(plan.rows.begin(), inside);
        rows *= block;
        value = pool.Add(value, inside.leaf);
      }
      plan.replacement[var.leaf] = value;
    }
    if (!cost::PaysColumnBlocks(rows, blocks)) return std::nullopt;
    return plan;
  }

  std::optional<BlockPlan> PlanBlocksAndRest(const LoopVar& var) {
    ExprPool& pool = context_.pool();
    const ExprId size = pool.Const(kBlockRowsMax);
    const LoopVar outside = context_.NewVar(pool.FloorDiv(var.extent, size));
    if (!cost::PaysColumnBlocks(kBlockRowsMax, context_.Estimate(outside.extent))) return std::nullopt;
    const LoopVar inside = context_.NewVar(size), behind = context_.NewVar(pool.Mod(var.extent, size));
    BlockPlan plan;
    plan.blocks = {outside};
    plan.rows = {inside};
    plan.replacement[var.leaf] = pool.Add(pool.Mul(outside.leaf, size), inside.leaf);
    plan.rest = {behind};
    plan.rest_replacement[var.leaf] = pool.Add(pool.Mul(outside.extent, size), behind.leaf);
    return plan;
  }

  static const LoopOpData* StoreOf(const LoopNode& node) {
    for (LoopOpId id = 0; id < node.body.size(); ++id) {
      if (node.body.op(id).op == LoopOpcode::kStore) return &node.body.op(id);
    }
    return nullptr;
  }

  // Does `rows` reduce, row by row, a buffer that `sum` reads the same elements of at the same row and
  // column?
  bool ReducesTheSameRows(const LoopNode& rows, const LoopNode& sum) {
    if (rows.ordered || rows.outer.size() != sum.inner.size() || rows.inner.size() != 1) return false;
    LeafMap renamed = {{sum.outer[0].leaf, rows.inner[0].leaf}};
    if (!context_.Equal(rows.inner[0].extent, sum.outer[0].extent)) return false;
    for (size_t k = 0; k < sum.inner.size(); ++k) {
      if (!context_.Equal(rows.outer[k].extent, sum.inner[k].extent)) return false;
      renamed[sum.inner[k].leaf] = rows.outer[k].leaf;
    }
    bool reduces = false;
    absl::flat_hash_map<BufferId, ExprId> read;
    for (LoopOpId id = 0; id < rows.body.size(); ++id) {
      const LoopOpData& op = rows.body.op(id);
      reduces = reduces || op.op == LoopOpcode::kReduce;
      if (op.op == LoopOpcode::kLoad && op.args.empty()) read[op.buffer] = op.index;
    }
    for (LoopOpId id = 0; reduces && id < sum.body.size(); ++id) {
      const LoopOpData& op = sum.body.op(id);
      if (op.op != LoopOpcode::kLoad || !IsColumnAccess(sum, op.index, /*on_gpu=*/true)) continue;
      const auto found = read.find(op.buffer);
      if (found != read.end() && context_.Equal(found->second, Renamed(op.index, renamed))) return true;
    }
    return false;
  }

  std::optional<StripPlan> PlanStrips(const LoopNode& node) {
    const LoopOpData* store = StoreOf(node);
    if (store == nullptr || !context_.HasThreads(store->buffer)) return std::nullopt;
    const std::optional<LoopOpId> sum = FindSum(node);
    if (!sum || node.outer.size() != 1) return std::nullopt;
    int64_t rows = 1;
    for (const LoopVar& var : node.inner) {
      const std::optional<int64_t> extent = context_.pool().AsConst(var.extent);
      if (!extent || *extent < 1 || __builtin_mul_overflow(rows, *extent, &rows)) return std::nullopt;
    }
    StripPlan plan;
    plan.sum = *sum;
    plan.columns = context_.pool().AsConst(node.outer[0].extent).value_or(0);
    plan.rows = cost::RowsOfStrip(context_.machine(), rows);
    plan.strips = (rows + plan.rows - 1) / plan.rows;
    if (plan.columns % kStripColumnsUnit != 0 ||
        !cost::PaysStrips(context_.machine(), plan.columns, plan.strips)) {
      return std::nullopt;
    }
    for (plan.beside = 0; plan.beside < graph_.nodes.size(); ++plan.beside) {
      const LoopGraphNode& other = graph_.nodes[plan.beside];
      if (other.kind == LoopGraphNode::Kind::kLoops && ReducesTheSameRows(other.loops, node)) return plan;
    }
    return std::nullopt;
  }

  std::vector<std::optional<StripPlan>> PlanAllStrips() {
    std::vector<std::optional<StripPlan>> plans;
    for (const LoopGraphNode& node : graph_.nodes) {
      plans.push_back(node.kind == LoopGraphNode::Kind::kLoops ? PlanStrips(node.loops) : std::nullopt);
    }
    return plans;
  }

  // One node of zeros for all sums beside one reduction, before the first of them.
  void AddZeros(size_t n, std::vector<std::optional<StripPlan>>* plans, std::vector<LoopGraphNode>* nodes) {
    const StripPlan first = *(*plans)[n];
    if (first.partial != 0) return;
    ExprPool& pool = context_.pool();
    LoopGraphNode zeros;
    zeros.loops.outer = {context_.NewVar(pool.Const(first.strips * first.columns))};
    LoopOpData zero;
    zero.op = LoopOpcode::kConstant;
    zero.dtype = v1::F32;
    const LoopOpId value = zeros.loops.body.Add(zero);
    for (size_t k = n; k < plans->size(); ++k) {
      std::optional<StripPlan>& plan = (*plans)[k];
      if (!plan || plan->beside != first.beside) continue;
      const LoopNode& node = graph_.nodes[k].loops;
      plan->partial = PartialBuffer(node, {pool.Const(plan->strips), pool.Const(plan->columns)});
      zeros.loops.body.Add(StoreTo(plan->partial, zeros.loops.outer[0].leaf, value));
      zeros.loops.origins.insert(zeros.loops.origins.end(), node.origins.begin(), node.origins.end());
    }
    zeros.loops.operators = graph_.nodes[n].loops.operators;
    nodes->push_back(std::move(zeros));
  }

  // Rows with their columns inside, as `beside` has them, so that both become one kernel: row by row a
  // strip's sums grow in place.
  void SplitIntoStrips(const LoopNode& node, const StripPlan& plan, std::vector<LoopGraphNode>* nodes) {
    ExprPool& pool = context_.pool();
    LoopGraphNode first;
    LeafMap renamed;
    first.loops.outer = Renewed(node.inner, &renamed);
    first.loops.inner = {context_.NewVar(node.outer[0].extent)};
    renamed[node.outer[0].leaf] = first.loops.inner[0].leaf;
    first.loops.origins = node.origins;
    first.loops.operators = node.operators;
    Copies copies;
    const LoopOpId value =
        Copy(node.body, node.body.op(plan.sum).args[0], renamed, &first.loops.body, &copies);
    const ExprId strip = pool.FloorDiv(RowMajor(first.loops.outer), pool.Const(plan.rows));
    LoopOpData store = StoreTo(
        plan.partial, pool.Add(pool.Mul(strip, pool.Const(plan.columns)), first.loops.inner[0].leaf), value);
    store.mode = v1::STORE_ACCUMULATE;
    first.loops.body.Add(std::move(store));
    nodes->push_back(std::move(first));
    AddSecondPass(node, plan.sum, {pool.Const(plan.strips)}, plan.partial, nodes);
  }

  // Copies what `roots` need of `from` into `to`; ids of copies by original id.
  using Copies = absl::flat_hash_map<LoopOpId, LoopOpId>;
  LoopOpId Copy(const LoopBody& from, LoopOpId id, const LeafMap& vars, LoopBody* to, Copies* copies) {
    if (auto it = copies->find(id); it != copies->end()) return it->second;
    LoopOpData op = from.op(id);
    for (LoopOpId& arg : op.args) arg = Copy(from, arg, vars, to, copies);
    if (HasIndexExpr(op.op)) op.index = Renamed(op.index, vars);
    LoopOpId copy = to->Add(std::move(op));
    (*copies)[id] = copy;
    return copy;
  }

  // Loops of the same extents, and what their leaves were.
  std::vector<LoopVar> Renewed(const std::vector<LoopVar>& vars, LeafMap* renamed) {
    std::vector<LoopVar> renewed;
    for (const LoopVar& var : vars) {
      renewed.push_back(context_.NewVar(var.extent));
      (*renamed)[var.leaf] = renewed.back().leaf;
    }
    return renewed;
  }

  ExprId Renamed(ExprId index, const LeafMap& vars) {
    return Substitute(context_.pool(), index, [&](ExprId leaf) {
      auto it = vars.find(leaf);
      return it == vars.end() ? leaf : it->second;
    });
  }

  ExprId RowMajor(const std::vector<LoopVar>& vars) {
    ExprPool& pool = context_.pool();
    ExprId index = pool.Const(0);
    for (const LoopVar& var : vars) index = pool.Add(pool.Mul(index, var.extent), var.leaf);
    return index;
  }

  BufferId PartialBuffer(const LoopNode& node, std::vector<ExprId> sizes) {
    LoopBuffer buffer;
    buffer.dtype = v1::F32;
    buffer.device = graph_.buffers[StoreOf(node)->buffer].device;
    buffer.sizes = std::move(sizes);
    buffer.strides = ContiguousStrides(context_.pool(), buffer.sizes);
    buffer.span = context_.pool().Product(buffer.sizes);
    graph_.buffers.push_back(std::move(buffer));
    return static_cast<BufferId>(graph_.buffers.size() - 1);
  }

  void Split(const LoopNode& node, LoopOpId sum, const BlockPlan& plan, std::vector<LoopGraphNode>* nodes) {
    ExprPool& pool = context_.pool();
    std::vector<LoopVar> outer = plan.blocks;
    if (!plan.rest.empty()) outer[0].extent = pool.Add(outer[0].extent, pool.Const(1));
    std::vector<ExprId> blocks;
    for (const LoopVar& var : outer) blocks.push_back(var.extent);
    outer.insert(outer.end(), node.outer.begin(), node.outer.end());
    std::vector<ExprId> sizes;
    for (const LoopVar& var : outer) sizes.push_back(var.extent);
    const BufferId partial = PartialBuffer(node, sizes);

    std::vector<LoopVar> first = plan.blocks;
    first.insert(first.end(), node.outer.begin(), node.outer.end());
    AddPartialSums(node, sum, std::move(first), plan.rows, plan.replacement, partial, RowMajor(outer), nodes);
    if (!plan.rest.empty()) {
      LeafMap renamed = plan.rest_replacement;
      const std::vector<LoopVar> columns = Renewed(node.outer, &renamed);
      std::vector<LoopVar> place = {{.leaf = plan.blocks[0].extent, .extent = outer[0].extent}};
      place.insert(place.end(), columns.begin(), columns.end());
      AddPartialSums(node, sum, columns, plan.rest, renamed, partial, RowMajor(place), nodes);
    }
    AddSecondPass(node, sum, blocks, partial, nodes);
  }

  // A pass over some of the rows, with the loops that `replacement` brings in.
  void AddPartialSums(const LoopNode& node, LoopOpId sum, std::vector<LoopVar> outer,
                      std::vector<LoopVar> inner, const LeafMap& replacement, BufferId partial, ExprId place,
                      std::vector<LoopGraphNode>* nodes) {
    LoopGraphNode pass;
    pass.loops.outer = std::move(outer);
    pass.loops.inner = std::move(inner);
    pass.loops.origins = node.origins;
    pass.loops.operators = node.operators;
    Copies copies;
    const LoopOpId summed = Copy(node.body, sum, replacement, &pass.loops.body, &copies);
    pass.loops.body.Add(StoreTo(partial, place, summed));
    nodes->push_back(std::move(pass));
  }

  // It has loops of its own, one over all blocks of these `extents`: threads of a GPU share the longest.
  void AddSecondPass(const LoopNode& node, LoopOpId sum, const std::vector<ExprId>& extents, BufferId partial,
                     std::vector<LoopGraphNode>* nodes) {
    LoopGraphNode second;
    LeafMap renamed;
    const std::vector<LoopVar> blocks = {context_.NewVar(context_.pool().Product(extents))};
    second.loops.outer = Renewed(node.outer, &renamed);
    second.loops.inner = blocks;
    second.loops.origins = node.origins;
    second.loops.operators = node.operators;
    std::vector<LoopVar> all = blocks;
    all.insert(all.end(), second.loops.outer.begin(), second.loops.outer.end());
    LoopOpData load;
    load.op = LoopOpcode::kLoad;
    load.dtype = v1::F32;
    load.buffer = partial;
    load.index = RowMajor(all);
    LoopOpData reduce;
    reduce.op = LoopOpcode::kReduce;
    reduce.dtype = v1::F32;
    reduce.mode = v1::REDUCE_SUM;
    reduce.args.push_back(second.loops.body.Add(std::move(load)));
    Copies copies;
    copies[sum] = second.loops.body.Add(std::move(reduce));
    for (LoopOpId id = 0; id < node.body.size(); ++id) {
      if (node.body.op(id).op == LoopOpcode::kStore)
        Copy(node.body, id, renamed, &second.loops.body, &copies);
    }
    nodes->push_back(std::move(second));
  }

  static LoopOpData StoreTo(BufferId buffer, ExprId index, LoopOpId value) {
    LoopOpData store;
    store.op = LoopOpcode::kStore;
    store.dtype = v1::F32;
    store.buffer = buffer;
    store.index = index;
    store.args.push_back(value);
    return store;
  }

  LoopGraph& graph_;
  LoopContext context_;
};

}  // namespace

int SplitColumnSums(LoopGraph& graph, const Machine& machine) { return Splitter(graph, machine).Run(); }

}  // namespace kiln
