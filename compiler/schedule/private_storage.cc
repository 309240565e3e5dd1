#include "compiler/schedule/private_storage.h"

#include <map>
#include <tuple>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"

namespace kiln {
namespace {

// When an op runs: its stage and its place there.
struct Moment {
  StageKey stage;
  uint32_t op = 0;
  friend bool operator<(const Moment& a, const Moment& b) {
    return std::tie(a.stage, a.op) < std::tie(b.stage, b.op);
  }
};

struct Uses {
  std::vector<Moment> loads;
  std::vector<Moment> stores;
};

class Finder {
 public:
  Finder(LoopContext& context, const Draft& draft, absl::FunctionRef<bool(BufferId)> escapes)
      : context_(context), draft_(draft), escapes_(escapes) {}

  absl::flat_hash_map<BufferId, BufferId> Run(const StagePlan& plan) {
    FindUses(plan);
    absl::flat_hash_map<BufferId, BufferId> found;
    for (const auto& [scratch, uses] : uses_) {
      if (!IsScratch(scratch, uses)) continue;
      for (const auto& [result, result_uses] : uses_) {
        if (taken_.contains(result) || !Fits(uses, result, result_uses)) continue;
        found[scratch] = result;
        taken_.insert(result);
        break;
      }
    }
    return found;
  }

 private:
  const LoopOpData& DataOf(const Moment& use) const { return draft_.ops[use.op].data; }

  void FindUses(const StagePlan& plan) {
    for (const PlannedStage& stage : plan.stages()) {
      for (uint32_t op : stage.ops) {
        const LoopOpData& data = draft_.ops[op].data;
        const bool load = data.op == LoopOpcode::kLoad;
        if (load && plan.ForwardedValue(op, stage.key.level) >= 0) continue;
        if (load) uses_[data.buffer].loads.push_back({stage.key, op});
        if (data.op == LoopOpcode::kStore) uses_[data.buffer].stores.push_back({stage.key, op});
      }
    }
  }

  // Threads of a point may write in another order than they read.
  bool IsOwn(BufferId buffer) const {
    return context_.graph().buffers[buffer].kind != LoopBuffer::Kind::kInput && !context_.HasThreads(buffer);
  }

  // One store, to a place of its own for each point of the loops.
  bool IsWrittenOnce(const Uses& uses) {
    if (uses.stores.size() != 1) return false;
    const int cls = draft_.ops[uses.stores[0].op].cls;
    const LoopOpData& store = DataOf(uses.stores[0]);
    if (cls == kOuterClass || store.mode != v1::STORE_PLAIN || store.args.size() != 1) return false;
    const std::vector<ExprId>& leaves = context_.Leaves(store.index);
    const auto moves = [&](const LoopVar& var) { return absl::c_linear_search(leaves, var.leaf); };
    return !context_.HasIndirect(store.index) && absl::c_all_of(draft_.outer, moves) &&
           absl::c_all_of(draft_.classes[cls].vars, moves);
  }

  // Each point of the loops reads only what it wrote itself.
  bool IsScratch(BufferId buffer, const Uses& uses) {
    if (escapes_(buffer) || !IsOwn(buffer) || uses.loads.empty() || !IsWrittenOnce(uses)) return false;
    const Moment& store = uses.stores[0];
    return absl::c_all_of(uses.loads,
                          [&](const Moment& load) { return store < load && SamePlaces(load, store); });
  }

  bool SamePlaces(const Moment& a, const Moment& b) {
    return draft_.ops[a.op].cls == draft_.ops[b.op].cls && DataOf(a).dtype == DataOf(b).dtype &&
           context_.Equal(DataOf(a).index, DataOf(b).index);
  }

  // Nobody reads the result before it is written, nor the scratch afterwards.
  bool Fits(const Uses& scratch, BufferId buffer, const Uses& result) {
    if (!escapes_(buffer) || !IsOwn(buffer) || !IsWrittenOnce(result)) return false;
    const Moment& store = result.stores[0];
    return SamePlaces(scratch.stores[0], store) &&
           absl::c_all_of(scratch.loads, [&](const Moment& load) { return load < store; }) &&
           absl::c_all_of(result.loads, [&](const Moment& load) { return store < load; });
  }

  LoopContext& context_;
  const Draft& draft_;
  absl::FunctionRef<bool(BufferId)> escapes_;
  std::map<BufferId, Uses> uses_;  // ordered: the same draft gives the same kernel
  absl::flat_hash_set<BufferId> taken_;
};

}  // namespace

absl::flat_hash_map<BufferId, BufferId> ScratchInResults(LoopContext& context, const Draft& draft,
                                                         const StagePlan& plan,
                                                         absl::FunctionRef<bool(BufferId)> escapes) {
  return Finder(context, draft, escapes).Run(plan);
}

}  // namespace kiln
