// What the lowering of a node works with: the graph and what is known of it, the values so far, and what
// writes the LoopGraph that grows. Operators build with the parts, and with the functions of operands.h,
// reduction_loops.h, view_maps.h and library_call.h; the driver is lowering.cc. Internal to compiler/lower.
//
// Ownership: borrows graph and facts, owns the loop graph until `Take`; the parts refer to one another.
// Threads: one. Errors: `status()`, the first that any part has met; the driver looks after every node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "compiler/graph/graph.h"
#include "compiler/lower/loop_graph.h"
#include "compiler/lower/loop_writer.h"
#include "compiler/lower/lowered_tensor.h"
#include "compiler/lower/lowering.h"
#include "compiler/lower/lowering_checks.h"
#include "compiler/lower/materializer.h"
#include "compiler/lower/random_seed.h"
#include "compiler/lower/traced_storage.h"
#include "compiler/lower/value_facts.h"

namespace kiln {

class LoweringContext {
 public:
  LoweringContext(const Graph& graph, const ValueFacts& facts, const LowerOptions& options);
  LoweringContext(const LoweringContext&) = delete;
  LoweringContext& operator=(const LoweringContext&) = delete;

  const Graph& graph() const { return graph_; }
  const ValueFacts& facts() const { return facts_; }
  const LowerOptions& options() const { return options_; }
  const Machine& machine() const { return options_.machine; }
  absl::Status status() const { return checks_.status(); }

  // ---- what grows
  LoopGraph& out() { return out_; }
  LoopGraph Take() { return std::move(out_); }
  ExprPool& exprs() { return out_.exprs; }
  ExprId Const(int64_t value) { return out_.exprs.Const(value); }

  // ---- parts
  LoweringChecks& checks() { return checks_; }
  LoopWriter& loops() { return loops_; }
  Materializer& memory() { return memory_; }
  TracedStorage& storage() { return storage_; }
  RandomSeed& seed() { return seed_; }

  // ---- values
  bool IsDefined(ValueId id) const {
    return id < values_.size() && values_[id].dtype != v1::DTYPE_UNSPECIFIED;
  }
  const LoweredTensor& value(ValueId id) const { return values_[id]; }
  LoweredTensor& MutableValue(ValueId id) { return values_[id]; }
  // The value fills memory that the program allocated for it, and its next consumer is its last.
  bool MayOverwrite(ValueId id) const { return own_memory_[id] && facts_.uses[id] == 1; }
  void SetOwnsMemory(ValueId id, bool owns) { own_memory_[id] = owns; }
  // Whether a call's result has the size that the symbol is.
  bool IsBound(uint32_t symbol) const { return bound_.contains(symbol); }
  void Bind(uint32_t symbol) { bound_.insert(symbol); }

  // ---- results of the node that is lowered
  // Fails where there is none.
  const TensorType& ResultType(const GraphNode& node, size_t result = 0);
  // Fails when it is declared of another rank or dtype; does nothing where there is none.
  void SetResult(const GraphNode& node, LoweredTensor tensor, size_t result = 0);

 private:
  const Graph& graph_;
  const ValueFacts& facts_;
  const LowerOptions options_;
  LoopGraph out_;
  LoweringChecks checks_;
  LoopWriter loops_;
  Materializer memory_;
  TracedStorage storage_;
  RandomSeed seed_;
  std::vector<LoweredTensor> values_;
  std::vector<bool> own_memory_;
  absl::flat_hash_set<uint32_t> bound_;
};

}  // namespace kiln
