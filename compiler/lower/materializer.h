// Tensors in memory: a virtual one gets a buffer and the loops that fill it, one in another layout than
// required is copied.
//
// When a virtual value is materialized:
//  - something needs memory: a library call, a graph output, a reduction or scan result;
//  - several consumers would repeat a body that costs more than a load, or its body has grown too large:
//    the driver asks cost::PaysStoring (target/cost_model.h) after each node;
//  - an operator reads it more than once: cost::PaysStoringBeforeLoop.
//
// Ownership: borrows loop graph, checks and loops. Threads: one. Errors: those of the checks.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "compiler/lower/loop_graph.h"
#include "compiler/lower/loop_writer.h"
#include "compiler/lower/lowered_tensor.h"
#include "compiler/lower/lowering_checks.h"

namespace kiln {

class Materializer {
 public:
  Materializer(LoopGraph& out, LoweringChecks& checks, LoopWriter& loops)
      : out_(out), checks_(checks), loops_(loops) {}

  enum class Layout { kPreferred, kContiguous };
  // Gives the tensor a buffer unless it has one.
  const BufferView& Materialize(LoweredTensor& tensor, Layout layout = Layout::kPreferred);
  // For an operator that reads the tensor more than once.
  void MaterializeIfExpensive(LoweredTensor& tensor);
  // In a buffer of rows of `row_length`: the tensor's own and their padding, which is not filled. A tensor
  // that has a buffer stays there.
  void MaterializeWithRowPadding(LoweredTensor& tensor, int64_t row_length);
  // Whether the tensor is in a buffer of padded rows that has the size and layout of `whole`.
  bool HasRowPadding(const LoweredTensor& tensor, const BufferView& whole) const;

  // A copy in a buffer of its own with exactly these strides (zero strides allowed). Fails where others
  // are known to put two elements in one place.
  BufferView CopyTo(const LoweredTensor& tensor, const std::vector<ExprId>& strides);
  // The same, `offset` elements behind the beginning of a buffer that holds nothing else.
  BufferView CopyTo(const LoweredTensor& tensor, const std::vector<ExprId>& strides, ExprId offset);
  // The tensor in memory with exactly these dense strides: its own buffer where it has them, else a copy.
  BufferView InLayout(LoweredTensor& tensor, const std::vector<ExprId>& strides);

 private:
  void Fill(const BufferView& view, const LoweredTensor& tensor);
  // Zero strides share an element, which is stored once.
  std::vector<ExprId> StoredSizes(std::vector<ExprId> sizes, const std::vector<ExprId>& strides) const;
  // The tensor where `stored`, of those sizes, has its elements.
  BufferView Filled(BufferView stored, const LoweredTensor& tensor);

  LoopGraph& out_;
  LoweringChecks& checks_;
  LoopWriter& loops_;
  absl::flat_hash_set<BufferId> row_padded_;  // whose rows end in padding that nobody has filled yet
};

}  // namespace kiln
