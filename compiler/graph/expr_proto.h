// Expressions between an ExprPool and the pools of messages.
// Threads: one thread an object. Errors: reading reports INVALID_ARGUMENT for anything malformed.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compiler/graph/expr.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

// Appends expressions to a message's pool: arguments before users, each once. A sum or product of
// more than kExprArgsMax arguments becomes a tree. The bytes depend on the order of `Write` calls
// and on contents only. Leaves keep their numbers; to rename, `Substitute` first.
class ExprWriter {
 public:
  // Both must outlive the writer; nobody else may append to `to` meanwhile.
  ExprWriter(const ExprPool& pool, google::protobuf::RepeatedPtrField<v1::ExprNode>* to)
      : pool_(pool), to_(*to) {}

  uint32_t Write(ExprId id);       // position in the message's pool
  v1::SymInt WriteInt(ExprId id);  // a literal where it is constant

 private:
  uint32_t Append(const ExprNode& node, absl::Span<const uint32_t> args);

  const ExprPool& pool_;
  google::protobuf::RepeatedPtrField<v1::ExprNode>& to_;
  absl::flat_hash_map<ExprId, uint32_t> written_;
};

// Reads a message's pool. `leaf` gives the expression of a symbol, variable or indirect, or nothing
// when there is none of that number. The result is by position.
absl::StatusOr<std::vector<ExprId>> ReadExprs(
    const google::protobuf::RepeatedPtrField<v1::ExprNode>& from, ExprPool* pool,
    absl::FunctionRef<std::optional<ExprId>(v1::ExprOp op, int64_t number)> leaf);

// The declared range of a graph symbol; of a tensor's size no more than a tensor has elements.
ExprRange SymbolRange(const v1::Symbol& symbol);

}  // namespace kiln
