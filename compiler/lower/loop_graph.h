// The output of lowering and the input of scheduling: loop nodes with explicit, hash-consed bodies, library
// calls, and the buffers between them.
//
// One LoopNode computes one buffer (or mutates one). All index expressions of a LoopGraph live in one
// ExprPool; loop variables are numbered uniquely over the whole LoopGraph (ExprPool::Var), so a body
// can be substituted into another without renaming. Program order of `nodes` is a valid execution
// order; dependencies follow from it by buffer: read after write, write after read, write after write; from
// one call that draws to the next; and by symbol: what uses an unbacked one comes behind the node that sets
// it and behind the checks that it is in.
//
// Ownership: value semantics. Threads: none shared. Errors: lower/verify_loop_graph.h checks a LoopGraph.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "compiler/graph/expr.h"
#include "compiler/graph/graph.h"
#include "compiler/ir/ops.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

using BufferId = uint32_t;
using LoopOpId = uint32_t;

// Elements of storage. Tensors are strided windows on it.
struct LoopBuffer {
  enum class Kind { kInput, kOwned };
  Kind kind = Kind::kOwned;
  v1::DType dtype = v1::F32;
  v1::DeviceType device = v1::CPU;
  // kInput: the graph input. Element 0 is the tensor's first element (its offset applied).
  uint32_t input = 0;
  std::vector<ExprId> sizes;  // of the tensor that the buffer was made for
  std::vector<ExprId> strides;
  ExprId span = 0;      // elements reachable: every index is in [0, span)
  int64_t shares = -1;  // a library call's view: the buffer that it aliases
};

// A strided window on a buffer: how library calls, graph outputs and free views see memory.
struct BufferView {
  BufferId buffer = 0;
  v1::DType dtype = v1::F32;  // differs from the buffer's only for view.dtype of equal width
  std::vector<ExprId> sizes;
  std::vector<ExprId> strides;
  ExprId offset = 0;
};

struct LoopOpData {
  LoopOpcode op;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  absl::InlinedVector<LoopOpId, 3> args;
  BufferId buffer = 0;
  ExprId index = 0;  // load, store, index_expr, check_index
  uint64_t bits = 0;
  uint32_t mode = 0;
};

// An SSA list of ops; equal pure ops are one. EXPR_INDIRECT leaves of index expressions name ops of
// the same body.
class LoopBody {
 public:
  LoopOpId Add(LoopOpData op);  // interns everything but stores
  const LoopOpData& op(LoopOpId id) const { return ops_[id]; }
  size_t size() const { return ops_.size(); }

 private:
  std::vector<LoopOpData> ops_;
  absl::flat_hash_map<size_t, absl::InlinedVector<LoopOpId, 1>> index_;
};

struct LoopVar {
  uint32_t var = 0;  // ExprPool::Var number
  ExprId leaf = 0;   // the EXPR_VAR itself
  ExprId extent = 0;
};

// `for outer…: [for inner…:] ops`. Ops that depend on inner variables belong to the inner loops;
// reduce ops end them; what uses a reduce op runs once per outer point. Every node ends in stores.
struct LoopNode {
  std::vector<LoopVar> outer;
  std::vector<LoopVar> inner;  // empty: pointwise
  LoopBody body;
  // The inner loops must run in order (scan, accumulating store): never reordered or vectorised.
  bool ordered = false;
  // A gemm of few rows: its kernel has no other loop, so that a GPU's blocks may share it by tiles.
  bool gemm = false;
  std::vector<uint32_t> origins;       // imported nodes this came from
  std::vector<std::string> operators;  // their ATen names
};

// A symbol is the size of a call's result `result` (by position) along `dim`.
struct SizeBind {
  uint32_t symbol = 0;
  uint32_t result = 0;
  uint32_t dim = 0;
};

// A library call. Tensor arguments are views; `args` holds the schema's arguments with TensorArg /
// TensorListArg values being positions in `tensors`.
struct CallNode {
  std::string target;
  std::vector<std::pair<std::string, Argument>> args;
  std::vector<BufferView> tensors;
  std::vector<int64_t> results;  // BufferId, or -1 where unused or undefined
  std::vector<SizeBind> binds;   // not of a call into its results
  bool into_results = false;
  bool own_results = false;  // otherwise: each is made in memory of its own, which nothing else looks at
  bool mutates_arguments = false;
  bool draws =
      false;  // from the caller's generator: never before an earlier such call, never after a later one
  std::string reason;  // "gemm", "convolution", "attention", "closed list: topk"
  uint32_t origin = 0;
};

// Draws one int64 seed per count from the host's generator into a buffer.
struct SeedsNode {
  BufferId buffer = 0;
  uint32_t count = 0;
};

// An unbacked symbol is `number`, or the first element of `item` where there is none.
struct LetNode {
  uint32_t symbol = 0;
  std::optional<ExprId> number;
  BufferView item;
};

// A call in which `condition` is 0 fails, with the message.
struct ConditionNode {
  ExprId condition = 0;
  std::string message;
};

struct LoopGraphNode {
  enum class Kind { kLoops, kCall, kSeeds, kLet, kCheck };
  Kind kind = Kind::kLoops;
  LoopNode loops;
  CallNode call;
  SeedsNode seeds;
  LetNode let;
  ConditionNode check;
};

struct LoopGraphOutput {
  enum class Kind { kView, kSymInt, kNone };
  Kind kind = Kind::kNone;
  BufferView view;
  ExprId sym_int = 0;
  ValueId seen_as = kNoValue;  // by the caller: results that are seen as one value are one tensor
};

struct LoopGraph {
  ExprPool exprs;
  std::vector<v1::Symbol> symbols;
  std::vector<GraphInput> inputs;
  std::vector<TensorType> input_types;  // by input; undefined for integers
  std::vector<LoopBuffer> buffers;
  std::vector<LoopGraphNode> nodes;
  std::vector<LoopGraphOutput> outputs;
  std::vector<ExprId> given;   // Graph::guards
  std::vector<ExprId> guards;  // what lowering assumed beyond them
  std::vector<ExprId>
      checks;  // the same over unbacked symbols, which nobody can promise; PlaceChecks empties it

  // A new buffer of the program's own, for a tensor of these sizes and strides.
  BufferId AddBuffer(v1::DType dtype, v1::DeviceType device, const std::vector<ExprId>& sizes,
                     const std::vector<ExprId>& strides);
  BufferView Whole(BufferId buffer);          // the tensor that it was made for
  BufferId StorageOf(BufferId buffer) const;  // the buffer that it shares memory with in the end
  // The buffer's elements are of another dtype: loops see through that, tensors of the host don't.
  bool Reinterprets(const BufferView& view) const { return buffers[view.buffer].dtype != view.dtype; }
  // Makes `condition` a guard, or a check, unless it always holds or is given. False: it never holds.
  bool Require(ExprId condition);
  // Adds the unbacked symbols in it, also those in the extents of its variables.
  void AddUnbacked(ExprId id, std::vector<uint32_t>* symbols) const;
  // Makes nodes of `checks`, each behind those that set its symbols.
  void PlaceChecks();
  std::string ToString() const;
};

std::string ExprsText(const ExprPool& exprs, const std::vector<ExprId>& ids);  // "[s0, 4]"

}  // namespace kiln
