// What a lowering works with: the values so far, the LoopGraph that grows, and the building blocks
// (pointwise bodies, reductions, scans, views, realisation). Internal to compiler/lower.
//
// When a virtual value gets a buffer:
//  - something needs memory: a library call, a graph output, a reduction or scan result;
//  - several consumers would repeat it: 4 loads or more, more than 30 ops, a heavy function, or 2 loads
//    for 4 consumers;
//  - its body has grown past 8 loads or 100 ops.
//
// Threads: one. Errors: `Fail` keeps the first; the driver looks after every node.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "compiler/lower/loop_recorder.h"
#include "compiler/lower/lowered_tensor.h"
#include "compiler/lower/lowering.h"
#include "compiler/lower/random_seed.h"
#include "compiler/lower/value_facts.h"

namespace kiln {

using Index = absl::Span<const ExprId>;
// The element at an index, in the compute type of the result.
using PointFn = absl::FunctionRef<LoopOpId(LoopRecorder&, Index)>;
// The element at (outer index, inner index) of a reduction.
using InnerFn = absl::FunctionRef<LoopOpId(LoopRecorder&, Index outer, Index inner)>;

class LoweringContext {
 public:
  // All outlive it.
  LoweringContext(const Graph& graph, const ValueFacts& facts, const LowerOptions& options);

  // ---- driver
  absl::Status Run();
  LoopGraph Take() { return std::move(out_); }

  // ---- state
  const Graph& graph() const { return graph_; }
  const ValueFacts& facts() const { return facts_; }
  const LowerOptions& options() const { return options_; }
  ExprPool& exprs() { return out_.exprs; }
  LoopGraph& out() { return out_; }
  RandomSeed& seed() { return seed_; }
  ExprId Const(int64_t value) { return out_.exprs.Const(value); }
  absl::Status status() const { return status_; }
  void Fail(const absl::Status& status);
  void Invalid(absl::string_view what) { Fail(absl::InvalidArgumentError(what)); }

  // ---- values
  const LoweredTensor& value(ValueId id) const { return values_[id]; }
  bool IsDefined(ValueId id) const {
    return id < values_.size() && values_[id].dtype != v1::DTYPE_UNSPECIFIED;
  }
  LoweredTensor& MutableValue(ValueId id) { return values_[id]; }
  void SetResult(const GraphNode& node, LoweredTensor tensor, size_t result = 0);
  const TensorType& ResultType(const GraphNode& node, size_t result = 0);
  // The value fills memory that the program allocated for it, and its next consumer is its last.
  bool MayOverwrite(ValueId id) const { return own_memory_[id] && facts_.uses[id] == 1; }
  // Whether the value fills a buffer of its own, which no other value looks at.
  void SetOwnsMemory(ValueId id, bool owns) { own_memory_[id] = owns; }
  // Whether a call's result has the size that the symbol is.
  bool IsBound(uint32_t symbol) const { return bound_.contains(symbol); }
  void Bind(uint32_t symbol) { bound_.insert(symbol); }

  // ---- building
  LoweredTensor Pointwise(const TensorType& type, PointFn fn);
  LoopOpId Load(LoopRecorder& ops, const LoweredTensor& tensor, Index index);
  // Loads with right-aligned broadcasting from `index` over a tensor of sizes `sizes`.
  LoopOpId LoadBroadcast(LoopRecorder& ops, const LoweredTensor& tensor, Index index,
                         const std::vector<ExprId>& sizes);
  // An ordered nest: `body` records ops and stores for every (outer, inner) point.
  void EmitOrdered(const std::vector<ExprId>& outer_sizes, const std::vector<ExprId>& inner_sizes,
                   absl::FunctionRef<void(LoopRecorder&, Index outer, Index inner)> body);
  // Pointwise stores of `fn` into an existing view.
  void EmitStores(const BufferView& target, PointFn fn);
  // Stores of `value`, which reduces over the inner index.
  void EmitReduced(const BufferView& target, const std::vector<ExprId>& inner_sizes, InnerFn value);

  // ---- memory
  enum class Layout { kPreferred, kContiguous };
  // Gives the tensor a buffer unless it has one.
  const BufferView& Realise(LoweredTensor& tensor, Layout layout = Layout::kPreferred);
  const BufferView& RealiseValue(ValueId id, Layout layout = Layout::kPreferred);
  // Does the tensor lie in a buffer of rows that end in room, which all of `whole` fills?
  bool HasRoom(const LoweredTensor& tensor, const BufferView& whole);
  // For an operator that reads its argument more than once.
  void MaterializeIfExpensive(ValueId id);
  // A copy in a buffer of its own with exactly these strides (zero strides allowed). Fails where others
  // are known to put two elements in one place.
  BufferView CopyTo(const LoweredTensor& tensor, const std::vector<ExprId>& strides);
  // What as_strided sees of the memory that `self` lies in, which has to lie as traced.
  absl::StatusOr<BufferView> StorageWindow(const GraphNode& node, const LoweredTensor& self);
  // The whole of a buffer whose place in the traced storage is known, in memory of its own.
  BufferView CopyStorage(BufferId buffer);
  // The tensor in memory with exactly these strides, which leave no gap: its own memory if it lies so, or a
  // copy.
  BufferView InLayout(LoweredTensor& tensor, const std::vector<ExprId>& strides);
  // A library call's result lies in its argument's memory.
  void ShareStorage(const GraphNode& node, const BufferView& argument, BufferId made);
  // Fails when two sizes that must agree are known to differ; a guard where that is not known.
  void CheckSize(ExprId have, ExprId want);
  void CheckSizes(const std::vector<ExprId>& have, const std::vector<ExprId>& want);
  bool Require(ExprId condition) { return out_.Require(condition); }
  // Declared sizes make the loops: fails in `ops` where an index is known to leave its dimension, and
  // guards where that is not known. An index that an open mask compares is the operator's own affair.
  void CheckIndex(LoopRecorder& ops, Index index, const std::vector<ExprId>& sizes);
  bool ReadsBuffer(const LoweredTensor& tensor, BufferId buffer) const;

 private:
  struct Domain {
    std::vector<LoopVar> loops;  // sizes other than 1
    std::vector<ExprId> index;   // by dimension
  };
  LoopVar NewVar(ExprId extent);
  Domain NewDomain(const std::vector<ExprId>& sizes);
  ExprId CanonicalVar(size_t dim, ExprId extent);
  void SortByStride(const std::vector<ExprId>& strides, const std::vector<ExprId>& index,
                    std::vector<LoopVar>& loops);
  LoweredTensor FinishVirtual(const TensorType& type, LoopRecorder& ops, LoopOpId result,
                              std::vector<ExprId> vars);
  void EmitLoops(LoopRecorder& ops, std::vector<LoopVar> outer, std::vector<LoopVar> inner, bool ordered);
  bool HasDivision(ExprId expr);
  bool IsOne(ExprId size) { return size == one_; }
  void RealiseWithRoom(ValueId id);
  void RealiseReused(const GraphNode& node);
  // Gives results that have to lie as declared memory that does.
  void PinResults(const GraphNode& node);
  absl::Status BindInputs();
  absl::Status BindOutputs();
  BufferView OutputView(const GraphOutput& output);
  absl::Status LowerNode(const GraphNode& node);
  absl::Status ProducerError(ValueId value, const absl::Status& status) const;
  absl::Status NodeError(const GraphNode& node, const absl::Status& status) const;

  const Graph& graph_;
  const ValueFacts& facts_;
  const LowerOptions options_;
  LoopGraph out_;
  RandomSeed seed_{out_};
  absl::Status status_;
  std::vector<LoweredTensor> values_;
  std::vector<bool> own_memory_;
  absl::flat_hash_set<uint32_t> bound_;  // symbols that are sizes of calls' results
  absl::flat_hash_map<BufferId, ExprId>
      starts_;                                // where in the traced storage the buffer's first element lies
  absl::flat_hash_set<BufferId> row_padded_;  // whose rows end in room, which nobody has filled yet
  uint32_t node_index_ = 0;
  uint32_t next_var_ = 0;
  ExprId one_ = 0;
  absl::flat_hash_map<std::pair<size_t, ExprId>, ExprId> canonical_vars_;
  absl::flat_hash_map<ExprId, bool> has_division_;
};

// The index of a broadcast operand: right-aligned, 0 along its dimensions of size 1. Fails in `ops`.
std::vector<ExprId> BroadcastIndex(LoopRecorder& ops, const std::vector<ExprId>& operand_sizes, Index index,
                                   const std::vector<ExprId>& sizes);

}  // namespace kiln
