// What every part of the scheduler needs at hand: the expression pool, the machine, fresh loop variables and
// op ids, and remembered facts about index expressions.
//
// Threads: one. Errors: none; an unknown fact is "no value". Sizes that are not constants are judged by
// fixed estimates, never by hints, so that schedules depend on the graph alone.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/lower/loop_graph.h"
#include "compiler/target/machine.h"

namespace kiln {

class LoopContext {
 public:
  explicit LoopContext(LoopGraph& graph, const Machine& machine = {});

  ExprPool& pool() { return graph_.exprs; }
  LoopGraph& graph() { return graph_; }
  const Machine& machine() const { return machine_; }

  LoopVar NewVar(ExprId extent);
  LoopOpId NewOps(uint32_t count) { return std::exchange(next_op_, next_op_ + count); }

  // Factor of the variable `leaf` in `index`: 0 where it does not occur, nullopt where the index is not
  // affine in it (or its factor varies with other loops).
  std::optional<ExprId> Coefficient(ExprId index, ExprId leaf);
  // Ids equal, or provably so.
  bool Equal(ExprId a, ExprId b);
  bool IsOne(ExprId id);
  // Contains a loop variable or the value of an op.
  bool HasLoopLeaf(ExprId id);
  bool HasIndirect(ExprId id);
  // All leaves, remembered.
  const std::vector<ExprId>& Leaves(ExprId id);
  // A likely value; variables count as 0.
  int64_t Estimate(ExprId id);
  int64_t EstimateProduct(const std::vector<LoopVar>& vars);
  int64_t EstimateBytes(BufferId buffer);
  // Which inputs may share memory: equal numbers mean the same storage may be meant.
  uint32_t MemoryOf(BufferId buffer) const { return memory_[buffer]; }
  // The buffer is in a GPU's memory: kernels that store there have threads for their points.
  bool HasThreads(BufferId buffer) const;

 private:
  LoopGraph& graph_;
  const Machine machine_;
  uint32_t next_var_ = 0;
  LoopOpId next_op_ = 0;
  std::vector<uint32_t> memory_;
  absl::flat_hash_map<std::pair<ExprId, ExprId>, std::optional<ExprId>> coefficients_;
  absl::flat_hash_map<std::pair<ExprId, ExprId>, bool> equal_;
  absl::flat_hash_map<ExprId, std::vector<ExprId>> leaves_;
  absl::flat_hash_map<ExprId, int64_t> estimates_;
};

}  // namespace kiln
