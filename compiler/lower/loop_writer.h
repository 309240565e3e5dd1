// Values as bodies, and the loops that store them, in a loop graph that grows.
//
// A virtual value's body is in canonical variables: one for each dimension and extent, so that equal
// bodies are equal. Loops have variables of their own.
//
// Ownership: borrows graph, loop graph and checks. Threads: one. Errors: those of the checks; a loop that is
// written after one is left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "compiler/graph/graph.h"
#include "compiler/lower/loop_graph.h"
#include "compiler/lower/loop_recorder.h"
#include "compiler/lower/lowered_tensor.h"
#include "compiler/lower/lowering_checks.h"

namespace kiln {

using Index = absl::Span<const ExprId>;
// The element at an index, in the compute type of the result.
using PointFn = absl::FunctionRef<LoopOpId(LoopRecorder&, Index)>;
// The element at (outer index, inner index) of a reduction.
using InnerFn = absl::FunctionRef<LoopOpId(LoopRecorder&, Index outer, Index inner)>;

class LoopWriter {
 public:
  // `round_values`: LowerOptions::round_values.
  LoopWriter(const Graph& graph, LoopGraph& out, LoweringChecks& checks, bool round_values);

  // The node of the graph whose work is written from here on.
  void SetNode(uint32_t index) { node_ = index; }

  // ---- values
  // A virtual one: `fn`, rounded to the type.
  LoweredTensor Pointwise(const TensorType& type, PointFn fn);
  LoopOpId Load(LoopRecorder& ops, const LoweredTensor& tensor, Index index);
  // Loads with right-aligned broadcasting from `index` over a tensor of sizes `sizes`.
  LoopOpId LoadBroadcast(LoopRecorder& ops, const LoweredTensor& tensor, Index index,
                         const std::vector<ExprId>& sizes);

  // ---- loops
  // Pointwise stores of `fn` into an existing view.
  void EmitStores(const BufferView& target, PointFn fn);
  // Stores of `value`, which reduces over the inner index. `gemm`: LoopNode::gemm.
  void EmitReduced(const BufferView& target, const std::vector<ExprId>& inner_sizes, InnerFn value,
                   bool gemm = false);
  // An ordered nest: `body` records ops and stores for every (outer, inner) point.
  void EmitOrdered(const std::vector<ExprId>& outer_sizes, const std::vector<ExprId>& inner_sizes,
                   absl::FunctionRef<void(LoopRecorder&, Index outer, Index inner)> body);

 private:
  struct Domain {
    std::vector<LoopVar> loops;  // sizes other than 1
    std::vector<ExprId> index;   // by dimension
  };
  LoopVar NewVar(ExprId extent);
  ExprId CanonicalVar(size_t dim, ExprId extent);
  Domain NewDomain(const std::vector<ExprId>& sizes);
  void SortByStride(const std::vector<ExprId>& strides, const std::vector<ExprId>& index,
                    std::vector<LoopVar>& loops);
  LoweredTensor FinishVirtual(const TensorType& type, LoopRecorder& ops, LoopOpId result,
                              std::vector<ExprId> vars);
  struct Inner {
    bool ordered = false, gemm = false;  // as LoopNode's
  };
  void EmitLoops(LoopRecorder& ops, std::vector<LoopVar> outer, std::vector<LoopVar> inner, Inner kind);
  bool HasDivision(ExprId expr);

  const Graph& graph_;
  LoopGraph& out_;
  LoweringChecks& checks_;
  const bool round_values_;
  const ExprId one_;
  uint32_t node_ = 0;
  uint32_t next_var_ = 0;
  absl::flat_hash_map<std::pair<size_t, ExprId>, ExprId> canonical_vars_;
  absl::flat_hash_map<ExprId, bool> has_division_;
};

// The index of a broadcast operand: right-aligned, 0 along its dimensions of size 1. Fails in `ops`.
std::vector<ExprId> BroadcastIndex(LoopRecorder& ops, const std::vector<ExprId>& operand_sizes, Index index,
                                   const std::vector<ExprId>& sizes);

}  // namespace kiln
