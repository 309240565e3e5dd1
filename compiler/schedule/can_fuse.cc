#include "compiler/schedule/can_fuse.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

struct AccessPair {
  const DraftAccess* a;
  const DraftAccess* b;
  int64_t bytes;
};

// Accesses of both drafts to common buffers, the most bytes first, stores before loads.
std::vector<AccessPair> CommonAccesses(LoopContext& context, const std::vector<DraftAccess>& a,
                                       const std::vector<DraftAccess>& b) {
  std::vector<AccessPair> pairs;
  for (const DraftAccess& x : a) {
    if (context.HasIndirect(x.index)) continue;
    for (const DraftAccess& y : b) {
      if (x.buffer != y.buffer || context.HasIndirect(y.index)) continue;
      pairs.push_back({&x, &y, context.EstimateBytes(x.buffer)});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const AccessPair& p, const AccessPair& q) {
    if (p.bytes != q.bytes) return p.bytes > q.bytes;
    return p.a->store > q.a->store;
  });
  return pairs;
}

// The one location of `x` and `y` at one point of the loops they share; an earlier store must have
// happened by then, and a load must not see a later one.
bool SamePoint(LoopContext& context, const DraftAccess& x, const DraftAccess& y) {
  if (x.buffer != y.buffer || x.accumulate || y.accumulate) return false;
  if (context.HasIndirect(x.index) || context.HasIndirect(y.index)) return false;
  if (!context.Equal(x.index, y.index)) return false;
  if (x.store) return x.cls == kOuterClass ? !y.store || y.cls == kOuterClass : x.cls == y.cls;
  return x.cls == kOuterClass && y.cls == kOuterClass;
}

bool Legal(LoopContext& context, const std::vector<DraftAccess>& a, const std::vector<DraftAccess>& b) {
  for (const DraftAccess& x : a) {
    for (const DraftAccess& y : b) {
      if (!x.store && !y.store) continue;
      if (context.MemoryOf(x.buffer) != context.MemoryOf(y.buffer)) continue;
      if (!SamePoint(context, x, y)) return false;
    }
  }
  return true;
}

bool KeepsParallelism(LoopContext& context, const Draft& a, const Draft& b, const Draft& merged) {
  int64_t points = context.EstimateProduct(merged.outer);
  int64_t before = std::max(context.EstimateProduct(a.outer), context.EstimateProduct(b.outer));
  if (before <= points) return true;
  int64_t inner = 1;
  for (const DraftClass& cls : merged.classes) inner = std::max(inner, context.EstimateProduct(cls.vars));
  return !cost::PaysParallelism(context.machine(), points, inner);
}

struct Layout {
  ExprId loop = 0;  // 0: of no matter
  int64_t bytes = 0;
};

// The loop along which most of the bytes of `accesses` are contiguous, where they are enough to matter.
Layout LayoutOf(LoopContext& context, const Draft& merged, const std::vector<DraftAccess>& accesses) {
  std::vector<LoopVar> vars = merged.outer;
  for (const DraftClass& cls : merged.classes) vars.insert(vars.end(), cls.vars.begin(), cls.vars.end());
  Layout best = {0, cost::LayoutBytesMin(context.machine())};
  for (const LoopVar& var : vars) {
    int64_t bytes = 0;
    for (const DraftAccess& access : accesses) {
      auto factor = context.Coefficient(access.index, var.leaf);
      if (factor && context.pool().AsConst(*factor) == 1) bytes += context.EstimateBytes(access.buffer);
    }
    if (bytes > best.bytes) best = {var.leaf, bytes};
  }
  return best;
}

// Row reductions of one layout and of its transpose would gather in every stage of a common kernel. A number
// a row beside the row itself is no layout of its own, however many rows there are.
bool LayoutsAgree(LoopContext& context, const Draft& merged, const std::vector<DraftAccess>& a,
                  const std::vector<DraftAccess>& b) {
  if (merged.classes.empty()) return true;
  const Layout first = LayoutOf(context, merged, a);
  const Layout second = LayoutOf(context, merged, b);
  if (first.loop == 0 || second.loop == 0 || first.loop == second.loop) return true;
  return cost::PaysGathering(std::min(first.bytes, second.bytes), std::max(first.bytes, second.bytes));
}

bool WithinLimits(const Draft& merged, const std::vector<DraftAccess>& accesses, const FusionLimits& limits,
                  bool vertical) {
  absl::flat_hash_set<BufferId> buffers;
  for (const DraftAccess& access : accesses) buffers.insert(access.buffer);
  size_t loops = 0;
  for (const DraftClass& cls : merged.classes) loops = std::max(loops, cls.vars.size());
  return merged.nodes.size() <= limits.nodes && merged.ops.size() <= limits.ops &&
         buffers.size() <= (vertical ? limits.buffers_vertical : limits.buffers) &&
         merged.outer.size() + loops <= kKernelLoopsMax;
}

// Does the sum of a gemm depend on what the other stores, which would be computed again for each of its
// terms?
bool FeedsSum(LoopContext& context, const Draft& gemm, const Draft& other) {
  absl::flat_hash_set<LoopOpId> needed;
  for (const DraftOp& op : gemm.ops) {
    if (op.data.op == LoopOpcode::kReduce) needed.insert(op.data.args.begin(), op.data.args.end());
  }
  for (size_t k = gemm.ops.size(); k-- > 0;) {
    const DraftOp& op = gemm.ops[k];
    if (!needed.contains(op.id)) continue;
    std::vector<LoopOpId> more;
    AppendDependencies(context, op.data, &more);
    needed.insert(more.begin(), more.end());
    if (op.data.op != LoopOpcode::kLoad) continue;
    for (const DraftOp& store : other.ops) {
      if (store.data.op == LoopOpcode::kStore && store.data.buffer == op.data.buffer) return true;
    }
  }
  return false;
}

// Beside a gemm there is only what runs once at each of its points, after it or whatever it does.
bool KeepsGemm(LoopContext& context, const Draft& a, const Draft& b) {
  if (!a.gemm && !b.gemm) return true;
  if (a.gemm && b.gemm) return false;
  const Draft &gemm = a.gemm ? a : b, &other = a.gemm ? b : a;
  const bool once_a_point = std::all_of(other.ops.begin(), other.ops.end(), [](const DraftOp& op) {
    return op.cls == kOuterClass && op.data.op != LoopOpcode::kReduce &&
           (op.data.op != LoopOpcode::kStore || op.data.mode == v1::STORE_PLAIN);
  });
  return once_a_point && gemm.classes.size() == 1 && !FeedsSum(context, gemm, other);
}

Draft Append(AlignedPair pair) {
  Draft merged = std::move(pair.first);
  // The second of the pair may have been the one that grew classes.
  if (pair.second.classes.size() > merged.classes.size()) merged.classes = std::move(pair.second.classes);
  for (DraftOp& op : pair.second.ops) merged.ops.push_back(std::move(op));
  merged.nodes.insert(merged.nodes.end(), pair.second.nodes.begin(), pair.second.nodes.end());
  merged.gemm = merged.gemm || pair.second.gemm;
  std::sort(merged.nodes.begin(), merged.nodes.end());
  return merged;
}

}  // namespace

std::optional<FusedDraft> TryFuse(LoopContext& context, const Draft& a, const Draft& b,
                                  const FusionLimits& limits, absl::FunctionRef<bool(BufferId)> vanishes) {
  if (a.nodes.size() + b.nodes.size() > limits.nodes || a.ops.size() + b.ops.size() > limits.ops) {
    return std::nullopt;
  }
  std::vector<DraftAccess> a_accesses = Accesses(a);
  std::vector<DraftAccess> b_accesses = Accesses(b);
  int attempts = 0;
  for (const AccessPair& lead : CommonAccesses(context, a_accesses, b_accesses)) {
    if (++attempts > kFusionAlignAttemptsMax) break;
    auto pair = AlignDrafts(context, a, *lead.a, b, *lead.b);
    if (!pair || !KeepsGemm(context, pair->first, pair->second)) continue;
    std::vector<DraftAccess> first = Accesses(pair->first);
    std::vector<DraftAccess> second = Accesses(pair->second);
    if (!Legal(context, first, second)) continue;
    FusedDraft fused;
    absl::flat_hash_set<BufferId> counted;
    for (const DraftAccess& x : first) {
      for (const DraftAccess& y : second) {
        if (x.buffer != y.buffer || counted.contains(x.buffer) || !context.Equal(x.index, y.index)) continue;
        counted.insert(x.buffer);
        int64_t bytes = context.EstimateBytes(x.buffer);
        bool forwarded = x.store && !y.store;
        fused.vertical = fused.vertical || forwarded;
        fused.saved_bytes += forwarded && vanishes(x.buffer) ? 2 * bytes : bytes;
      }
    }
    if (counted.empty()) continue;
    fused.draft = Append(std::move(*pair));
    // What follows a gemm reads its points in any order, and never its loop.
    if (!fused.draft.gemm && !LayoutsAgree(context, fused.draft, first, second)) continue;
    std::vector<DraftAccess> all = Accesses(fused.draft);
    if (!WithinLimits(fused.draft, all, limits, fused.vertical)) continue;
    if (!KeepsParallelism(context, a, b, fused.draft)) continue;
    return fused;
  }
  return std::nullopt;
}

std::optional<FusedDraft> JoinIndependent(LoopContext& context, const Draft& a, const Draft& b,
                                          const FusionLimits& limits) {
  if (!a.outer.empty() || !b.outer.empty() || !a.classes.empty() || !b.classes.empty()) return std::nullopt;
  for (const DraftAccess& x : Accesses(a)) {
    for (const DraftAccess& y : Accesses(b)) {
      if ((x.store || y.store) && context.MemoryOf(x.buffer) == context.MemoryOf(y.buffer))
        return std::nullopt;
    }
  }
  FusedDraft fused;
  fused.draft = Append({a, b});
  if (!WithinLimits(fused.draft, Accesses(fused.draft), limits, true)) return std::nullopt;
  return fused;
}

}  // namespace kiln
