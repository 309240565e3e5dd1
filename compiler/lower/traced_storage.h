// Memory that lies as traced, for what reads it by strides and storage offset: inputs, and values that get
// memory as declared as soon as they are computed, so that views of them are windows on one buffer.
//
// Ownership: borrows loop graph, checks and materializer. Threads: one. Errors: those of the checks, and what
// `Window` returns.
#pragma once

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "compiler/graph/graph.h"
#include "compiler/lower/loop_graph.h"
#include "compiler/lower/lowered_tensor.h"
#include "compiler/lower/lowering_checks.h"
#include "compiler/lower/materializer.h"
#include "compiler/lower/node_arguments.h"

namespace kiln {

class TracedStorage {
 public:
  TracedStorage(LoopGraph& out, LoweringChecks& checks, Materializer& memory)
      : out_(out), checks_(checks), memory_(memory) {}

  // The buffer's first element lies at `start` of the traced storage.
  void SetStart(BufferId buffer, ExprId start) { starts_[buffer] = start; }
  // Gives the tensor memory as its type is declared, of which it is all.
  void Pin(LoweredTensor& tensor, const TensorType& type);
  // A library call's result lies in its argument's memory, and begins where that does if it is the only one.
  void Share(BufferId made, const BufferView& argument, bool is_only_result);

  // What as_strided, whose arguments these are, sees of the memory that `self` lies in, which has to lie as
  // traced.
  absl::StatusOr<BufferView> Window(const NodeArguments& args, const LoweredTensor& self);
  // The whole of a buffer whose place in the traced storage is known, in memory of its own.
  BufferView Copy(BufferId buffer);

 private:
  LoopGraph& out_;
  LoweringChecks& checks_;
  Materializer& memory_;
  // Where in the traced storage the buffer's first element lies.
  absl::flat_hash_map<BufferId, ExprId> starts_;
};

}  // namespace kiln
