// Buffers in the traced layout, for operators that read memory by strides and storage offset (as_strided):
// inputs, and values that are materialised in their declared layout, so that views of them are windows on one
// buffer.
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

  // The buffer's first element is at offset `start` of the traced storage.
  void SetStart(BufferId buffer, ExprId start) { starts_[buffer] = start; }
  // The view's offset in the traced storage, and in a buffer of the program's own, which begins one.
  ExprId OffsetOf(const BufferView& view) const;
  // Materialises the whole tensor in its declared layout.
  void Pin(LoweredTensor& tensor, const TensorType& type);
  // A library call's result aliases its argument, at the same offset if it is the only result.
  void Share(BufferId made, const BufferView& argument, bool is_only_result);

  // The window of as_strided, whose arguments these are, on `self`'s buffer, which must have the traced
  // layout.
  absl::StatusOr<BufferView> Window(const NodeArguments& args, const LoweredTensor& self);
  // The whole of a buffer whose place in the traced storage is known, in memory of its own.
  BufferView Copy(BufferId buffer);

 private:
  LoopGraph& out_;
  LoweringChecks& checks_;
  Materializer& memory_;
  // The offset of the buffer's first element in the traced storage.
  absl::flat_hash_map<BufferId, ExprId> starts_;
};

}  // namespace kiln
