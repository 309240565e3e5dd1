#include "compiler/schedule/stage_plan.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr int64_t kNeverAgain = 1000;  // more than any limit

}  // namespace

absl::StatusOr<StagePlan> StagePlan::Make(LoopContext& context, const Draft& draft,
                                          absl::FunctionRef<bool(BufferId)> escapes) {
  StagePlan plan(context, draft);
  plan.FindDependencies();
  plan.FindLevels();
  plan.FindForwards(escapes);
  plan.DelayStores();
  KILN_RETURN_IF_ERROR(plan.Collect(escapes));
  KILN_RETURN_IF_ERROR(plan.CheckOverwrites());
  return plan;
}

void StagePlan::FindDependencies() {
  const std::vector<DraftOp>& ops = draft_->ops;
  std::vector<LoopOpId> ids;
  for (uint32_t i = 0; i < ops.size(); ++i) {
    position_[ops[i].id] = i;
    ids.clear();
    AppendDependencies(*context_, ops[i].data, &ids);
    std::vector<uint32_t> positions;
    for (LoopOpId id : ids) positions.push_back(position_.at(id));
    LoopOpcode op = ops[i].data.op;
    clonable_.push_back(op == LoopOpcode::kConstant || (op == LoopOpcode::kIndexExpr && positions.empty()));
    dependencies_.push_back(std::move(positions));
    if (op == LoopOpcode::kLoad || op == LoopOpcode::kStore) {
      memory_accesses_[context_->MemoryOf(ops[i].data.buffer)].push_back(i);
    }
  }
}

void StagePlan::FindLevels() {
  const std::vector<DraftOp>& ops = draft_->ops;
  levels_.assign(ops.size(), 0);
  int highest = 0;
  for (uint32_t i = 0; i < ops.size(); ++i) {
    int level = 0;
    for (uint32_t d : dependencies_[i]) level = std::max(level, levels_[d] + (IsReduce(d) ? 1 : 0));
    bool store = ops[i].data.op == LoopOpcode::kStore;
    if (store || ops[i].data.op == LoopOpcode::kLoad) {
      for (uint32_t j : memory_accesses_[context_->MemoryOf(ops[i].data.buffer)]) {
        if (j >= i) break;
        bool earlier_store = ops[j].data.op == LoopOpcode::kStore;
        if (!store && !earlier_store) continue;
        bool same_stage = ops[j].cls == ops[i].cls || ops[j].cls == kOuterClass;
        level = std::max(level, levels_[j] + (same_stage ? 0 : 1));
        // The overwritten value may be wanted by everything so far.
        if (store && !earlier_store && ops[j].cls != kOuterClass) {
          level = std::max(level, highest + (same_stage ? 0 : 1));
        }
      }
    }
    levels_[i] = level;
    highest = std::max(highest, level);
  }
}

bool StagePlan::IsOverwritten(uint32_t load) const {
  for (uint32_t j : memory_accesses_.at(context_->MemoryOf(draft_->ops[load].data.buffer))) {
    if (j > load && draft_->ops[j].data.op == LoopOpcode::kStore) return true;
  }
  return false;
}

StagePlan::Cost StagePlan::CostOf(uint32_t op) {
  if (cost_known_[op]) return costs_[op];
  const DraftOp& data = draft_->ops[op];
  Cost cost;
  if (data.cls == kOuterClass || IsReduce(op)) {
    // Kept in a register.
  } else if (data.data.op == LoopOpcode::kLoad) {
    cost = forwards_[op].possible && forwards_[op].recompute
               ? CostOf(position_.at(draft_->ops[forwards_[op].store].data.args[0]))
               : Cost{0, IsOverwritten(op) ? kNeverAgain : 1};
    for (uint32_t d : dependencies_[op]) {
      Cost arg = CostOf(d);
      cost.ops += arg.ops;
      cost.loads += arg.loads;
    }
  } else {
    cost.ops = cost::OperatorCost(data.data.op);
    for (uint32_t d : dependencies_[op]) {
      Cost arg = CostOf(d);
      cost.ops = std::min(cost.ops + arg.ops, kNeverAgain);
      cost.loads = std::min(cost.loads + arg.loads, kNeverAgain);
    }
  }
  cost_known_[op] = 1;
  costs_[op] = cost;
  return cost;
}

void StagePlan::FindForwards(absl::FunctionRef<bool(BufferId)> escapes) {
  const std::vector<DraftOp>& ops = draft_->ops;
  forwards_.resize(ops.size());
  costs_.resize(ops.size());
  cost_known_.assign(ops.size(), 0);
  for (uint32_t i = 0; i < ops.size(); ++i) {
    if (ops[i].data.op != LoopOpcode::kLoad) continue;
    const LoopOpData& load = ops[i].data;
    Forward& forward = forwards_[i];
    for (uint32_t j : memory_accesses_[context_->MemoryOf(load.buffer)]) {
      if (j >= i) break;
      if (ops[j].data.op == LoopOpcode::kStore) forward.store = j;
    }
    if (forward.store < 0) continue;
    const DraftOp& store = ops[forward.store];
    const LoopOpData& stored = store.data;
    forward.possible = stored.buffer == load.buffer && stored.mode == v1::STORE_PLAIN &&
                       stored.args.size() == 1 && stored.dtype == load.dtype &&
                       context_->Equal(stored.index, load.index) && !context_->HasIndirect(load.index) &&
                       (store.cls == kOuterClass || store.cls == ops[i].cls) &&
                       (load.args.empty() || !ir::IsHalf(load.dtype));
    if (!forward.possible) continue;
    uint32_t value = position_.at(stored.args[0]);
    if (store.cls == kOuterClass || ops[value].cls == kOuterClass || IsReduce(value)) {
      forward.recompute = true;
      continue;
    }
    const Cost again = CostOf(value);
    const cost::Reuse reuse = {.on_gpu = context_->HasThreads(load.buffer),
                               .stored = escapes(load.buffer),
                               .bytes = context_->EstimateBytes(load.buffer)};
    forward.recompute = cost::PaysRematerialising(context_->machine(), reuse, again.ops, again.loads);
  }
}

// On a GPU what a point stores once waits for its last stage, unless it is read from memory before: threads
// that share a point leave it to one of them, at the end.
void StagePlan::DelayStores() {
  const std::vector<DraftOp>& ops = draft_->ops;
  const int last = levels_.empty() ? 0 : *std::max_element(levels_.begin(), levels_.end());
  for (uint32_t i = 0; i < ops.size(); ++i) {
    const LoopOpData& store = ops[i].data;
    if (store.op != LoopOpcode::kStore || ops[i].cls != kOuterClass || store.mode != v1::STORE_PLAIN)
      continue;
    if (!context_->HasThreads(store.buffer)) continue;
    const std::vector<uint32_t>& accesses = memory_accesses_.at(context_->MemoryOf(store.buffer));
    const bool unread = std::all_of(accesses.begin(), accesses.end(), [&](uint32_t j) {
      return j <= i || (ops[j].data.op == LoopOpcode::kLoad && forwards_[j].possible &&
                        forwards_[j].recompute && forwards_[j].store == static_cast<int64_t>(i));
    });
    if (unread) levels_[i] = last;
  }
}

int64_t StagePlan::ForwardedValue(uint32_t load, int level) const {
  const Forward& forward = forwards_[load];
  if (!forward.possible) return -1;
  if (!forward.recompute && levels_[forward.store] != level) return -1;
  return position_.at(draft_->ops[forward.store].data.args[0]);
}

void StagePlan::Demand(uint32_t op, StageKey from) {
  StageKey key = from;
  if (!clonable_[op] || draft_->ops[op].cls != kOuterClass) {
    bool home =
        draft_->ops[op].cls == kOuterClass || IsReduce(op) || draft_->ops[op].data.op == LoopOpcode::kStore;
    key = home ? HomeOf(op) : StageKey{from.level, draft_->ops[op].cls};
  }
  if (demanded_.insert({op, {key.level, key.cls}}).second) work_.push_back({op, key});
}

absl::Status StagePlan::Collect(absl::FunctionRef<bool(BufferId)> escapes) {
  const std::vector<DraftOp>& ops = draft_->ops;
  for (uint32_t i = 0; i < ops.size(); ++i) {
    if (ops[i].data.op == LoopOpcode::kStore && escapes(ops[i].data.buffer)) Demand(i, {});
  }
  std::map<StageKey, std::vector<uint32_t>> stages;
  Plan(stages);
  // An index is checked though no load takes it, as where an element of something expanded is asked for.
  std::vector<bool> planned(ops.size(), false);
  for (const auto& [key, list] : stages) {
    for (uint32_t op : list) planned[op] = true;
  }
  for (uint32_t i = 0; i < ops.size(); ++i) {
    if (ops[i].data.op == LoopOpcode::kCheckIndex && !planned[i]) Demand(i, HomeOf(i));
  }
  Plan(stages);
  for (auto& [key, list] : stages) {
    std::sort(list.begin(), list.end());
    stages_.push_back({key, std::move(list)});
  }
  return absl::OkStatus();
}

// Puts what is demanded into its stages, and all that it needs.
void StagePlan::Plan(std::map<StageKey, std::vector<uint32_t>>& stages) {
  const std::vector<DraftOp>& ops = draft_->ops;
  while (!work_.empty()) {
    auto [op, key] = work_.back();
    work_.pop_back();
    stages[key].push_back(op);
    bool load = ops[op].data.op == LoopOpcode::kLoad;
    int64_t value = load ? ForwardedValue(op, key.level) : -1;
    if (value >= 0) {
      Demand(static_cast<uint32_t>(value), key);
      for (LoopOpId mask : ops[op].data.args) Demand(position_.at(mask), key);
      continue;
    }
    for (uint32_t d : dependencies_[op]) Demand(d, key);
    if (!load) continue;
    for (uint32_t j : memory_accesses_[context_->MemoryOf(ops[op].data.buffer)]) {
      if (j < op && ops[j].data.op == LoopOpcode::kStore) Demand(j, {});
    }
  }
}

absl::Status StagePlan::CheckOverwrites() const {
  const std::vector<DraftOp>& ops = draft_->ops;
  for (const PlannedStage& stage : stages_) {
    for (uint32_t op : stage.ops) {
      if (ops[op].data.op != LoopOpcode::kLoad || ForwardedValue(op, stage.key.level) >= 0) continue;
      for (uint32_t j : memory_accesses_.at(context_->MemoryOf(ops[op].data.buffer))) {
        if (j <= op || ops[j].data.op != LoopOpcode::kStore) continue;
        StageKey store = HomeOf(j);
        if (demanded_.contains({j, {store.level, store.cls}}) && store < stage.key) {
          return absl::InternalError(
              absl::StrCat("a kernel reads buffer ", ops[op].data.buffer, " after overwriting it"));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln
