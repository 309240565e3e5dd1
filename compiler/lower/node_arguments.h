// The arguments of a node that is lowered, by their names in the schema. An argument that is absent or None
// is its default, where the reader takes one.
//
// Ownership: borrows context and node, and is made where it is needed. Threads: one. Errors: of an argument
// that is missing or another than is asked for, the context's; the reader then gives the default, or what is
// safe to pass on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "compiler/graph/graph.h"
#include "compiler/lower/lowered_tensor.h"

namespace kiln {

class LoweringContext;

class NodeArguments {
 public:
  NodeArguments(LoweringContext& context, const GraphNode& node) : context_(context), node_(node) {}

  bool Has(absl::string_view name) const { return node_.Find(name) != nullptr; }
  const LoweredTensor& Tensor(absl::string_view name) const;
  ValueId TensorValue(absl::string_view name) const;  // kNoValue when absent
  std::vector<ValueId> TensorList(absl::string_view name) const;
  int64_t Int(absl::string_view name, int64_t otherwise) const;  // a symbolic one is UNIMPLEMENTED
  ExprId Expr(absl::string_view name, ExprId otherwise) const;
  bool Bool(absl::string_view name, bool otherwise) const;
  double Float(absl::string_view name, double otherwise) const;
  std::string String(absl::string_view name, absl::string_view otherwise) const;
  std::vector<ExprId> ExprList(absl::string_view name) const;  // empty when absent
  std::vector<int64_t> IntList(absl::string_view name) const;
  // A dimension of a tensor of `rank`, wrapped and in range (0 when the rank is 0).
  size_t Dim(absl::string_view name, size_t rank, int64_t otherwise) const;
  // Several, ascending; all when there are none.
  std::vector<size_t> Dims(absl::string_view name, size_t rank) const;
  size_t WrapDim(int64_t dim, size_t rank) const;

 private:
  LoweringContext& context_;
  const GraphNode& node_;
};

}  // namespace kiln
