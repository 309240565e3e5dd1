// Which ops of a draft run in which stage of the kernel, and which values go through memory.
//
// Stages are (level, class) pairs. A level is how many reductions must have ended before; a stage of
// outer ops precedes the classes of its level. Pure inner ops are computed again in every stage that
// wants them, down to their loads. A load of what the same kernel stored takes the stored value where
// that is at hand or cheaper than memory; otherwise it reads back (the same outer point wrote it, so no
// other thread is concerned). Stores that nobody wants any more vanish.
//
// Threads: one. Errors: INTERNAL when a draft would read a location after overwriting it.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "compiler/schedule/draft.h"

namespace kiln {

struct StageKey {
  int level = 0;
  int cls = kOuterClass;
  friend bool operator==(const StageKey& a, const StageKey& b) {
    return a.level == b.level && a.cls == b.cls;
  }
  friend bool operator<(const StageKey& a, const StageKey& b) {
    return a.level != b.level ? a.level < b.level : a.cls < b.cls;
  }
};

struct PlannedStage {
  StageKey key;
  std::vector<uint32_t> ops;  // positions in Draft::ops, ascending
};

class StagePlan {
 public:
  // `escapes(buffer)`: somebody outside of the draft sees the buffer.
  static absl::StatusOr<StagePlan> Make(LoopContext& context, const Draft& draft,
                                        absl::FunctionRef<bool(BufferId)> escapes);

  const std::vector<PlannedStage>& stages() const { return stages_; }
  uint32_t position(LoopOpId id) const { return position_.at(id); }
  // Position of the op whose value stands for the load at `load` in a stage of `level`; -1: it loads.
  int64_t ForwardedValue(uint32_t load, int level) const;
  // Constants and such, rematerialised in each stage; never in a stage of their own.
  bool IsClonable(uint32_t op) const { return clonable_[op]; }
  // Where an outer op's (or a reduction's) value is made.
  StageKey HomeOf(uint32_t op) const { return {levels_[op], draft_->ops[op].cls}; }

 private:
  struct Forward {
    int64_t store = -1;
    bool possible = false;
    bool recompute = false;  // also in later stages than the store's
  };

  StagePlan(LoopContext& context, const Draft& draft) : context_(&context), draft_(&draft) {}
  void FindDependencies();
  void FindLevels();
  void FindForwards(absl::FunctionRef<bool(BufferId)> escapes);
  void DelayStores();
  void Demand(uint32_t op, StageKey from);
  absl::Status Collect(absl::FunctionRef<bool(BufferId)> escapes);
  void Plan(std::map<StageKey, std::vector<uint32_t>>& stages);
  absl::Status CheckOverwrites() const;
  struct Cost {
    int64_t ops = 0;
    int64_t loads = 0;
  };
  // By a later store of the same kernel: then its value can't be had in every later stage.
  bool IsOverwritten(uint32_t load) const;
  Cost CostOf(uint32_t op);
  bool IsReduce(uint32_t op) const { return draft_->ops[op].data.op == LoopOpcode::kReduce; }

  LoopContext* context_;
  const Draft* draft_;
  absl::flat_hash_map<LoopOpId, uint32_t> position_;
  std::vector<std::vector<uint32_t>> dependencies_;
  std::vector<int> levels_;
  std::vector<char> clonable_;
  std::vector<Forward> forwards_;
  std::vector<Cost> costs_;
  std::vector<char> cost_known_;
  absl::flat_hash_map<uint32_t, std::vector<uint32_t>> memory_accesses_;  // by memory, ascending
  absl::flat_hash_set<std::pair<uint32_t, std::pair<int, int>>> demanded_;
  std::vector<std::pair<uint32_t, StageKey>> work_;
  std::vector<PlannedStage> stages_;
};

}  // namespace kiln
