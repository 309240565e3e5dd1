// The `ops` that lowerings run against: every helper appends one operator to a LoopBody and gives its
// id, after folding what is cheap to see (constants, x*1, casts to the same type).
//
// Values are in *compute types*: a body computes F16 and BF16 in F32. `Load` widens, `Store` rounds.
// `RoundTo` rounds a value that a graph names, wherever it is used (LoopWriter::Pointwise).
//
// Ownership: the recorder owns the body until `TakeBody`. Threads: one. Errors: the first misuse
// (arguments of different types, an index of the wrong rank) makes `status()` INVALID_ARGUMENT and
// later results meaningless but safe to pass on.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/lower/loop_graph.h"

namespace kiln {

// F32 for F16 and BF16, else the type itself.
v1::DType ComputeType(v1::DType dtype);

class LoopRecorder {
 public:
  explicit LoopRecorder(ExprPool& exprs) : exprs_(exprs) {}

  // ---- leaves
  LoopOpId Constant(double value, v1::DType dtype);  // rounded to `dtype`, integers truncate
  LoopOpId ConstantInt(int64_t value, v1::DType dtype = v1::I64);
  LoopOpId True() { return ConstantInt(1, v1::BOOL); }
  LoopOpId IndexExpr(ExprId value);  // I64

  // ---- memory; `dtype` is the buffer's
  LoopOpId Load(BufferId buffer, v1::DType dtype, ExprId index);
  void Store(BufferId buffer, v1::DType dtype, ExprId index, LoopOpId value,
             v1::StoreMode mode = v1::STORE_PLAIN);
  // An index that a value gives, checked against `size` at run time; below zero it counts from the end where
  // `mode` says so.
  ExprId CheckedIndex(LoopOpId value, ExprId size, v1::IndexMode mode = v1::INDEX_FROM_START);
  // While a mask is open, loads, stores and checks happen only where it holds; loads give 0 elsewhere.
  void OpenMask(LoopOpId mask);
  void CloseMask();
  // What the open masks come to; nullopt: none is open.
  std::optional<LoopOpId> mask() const {
    return masks_.empty() ? std::nullopt : std::optional<LoopOpId>(masks_.back());
  }

  // ---- values
  LoopOpId Cast(LoopOpId value, v1::DType dtype);  // to a compute type
  // To `dtype` and back to its compute type; nothing where `value` is known to be exact in it.
  LoopOpId RoundTo(LoopOpId value, v1::DType dtype);
  LoopOpId Bitcast(LoopOpId value, v1::DType dtype);
  LoopOpId Unary(LoopOpcode op, LoopOpId a);
  LoopOpId Binary(LoopOpcode op, LoopOpId a, LoopOpId b);
  LoopOpId Compare(LoopOpcode op, LoopOpId a, LoopOpId b);
  LoopOpId Where(LoopOpId condition, LoopOpId a, LoopOpId b);
  LoopOpId And(LoopOpId a, LoopOpId b);
  LoopOpId Or(LoopOpId a, LoopOpId b);
  LoopOpId Not(LoopOpId a);
  LoopOpId Add(LoopOpId a, LoopOpId b) { return Binary(LoopOpcode::kAdd, a, b); }
  LoopOpId Sub(LoopOpId a, LoopOpId b) { return Binary(LoopOpcode::kSub, a, b); }
  LoopOpId Mul(LoopOpId a, LoopOpId b) { return Binary(LoopOpcode::kMul, a, b); }
  LoopOpId Div(LoopOpId a, LoopOpId b) { return Binary(LoopOpcode::kDiv, a, b); }
  LoopOpId Reduce(v1::ReduceKind kind, LoopOpId value);
  LoopOpId Scan(v1::ReduceKind kind, LoopOpId value);
  LoopOpId RandBits(LoopOpId seed, LoopOpId flat_index, LoopOpId op_number);

  // Copies `ops` up to `result` with `vars[i]` replaced by `index[i]`; the copy of `result`.
  LoopOpId Inline(absl::Span<const LoopOpData> ops, LoopOpId result, absl::Span<const ExprId> vars,
                  absl::Span<const ExprId> index);

  v1::DType dtype(LoopOpId id) const { return body_.op(id).dtype; }
  const LoopBody& body() const { return body_; }
  LoopBody TakeBody() { return std::move(body_); }
  ExprPool& exprs() { return exprs_; }

  // Graph nodes whose work this body holds; sorted and unique after `TakeOrigins`.
  void AddOrigin(uint32_t node) { origins_.push_back(node); }
  void AddOrigins(absl::Span<const uint32_t> nodes) {
    origins_.insert(origins_.end(), nodes.begin(), nodes.end());
  }
  std::vector<uint32_t> TakeOrigins();

  absl::Status status() const { return status_; }
  LoopOpId Fail(absl::string_view what);  // the id of some op

 private:
  LoopOpId Make(LoopOpcode op, v1::DType dtype, absl::Span<const LoopOpId> args, uint32_t mode = 0);
  // An F32 value as F16 or BF16, as a store takes it.
  LoopOpId Narrow(LoopOpId value, v1::DType dtype);

  ExprPool& exprs_;
  LoopBody body_;
  std::vector<LoopOpId> masks_;  // each includes those before it
  std::vector<uint32_t> origins_;
  absl::Status status_;
};

// a < b, a == b as a BOOL; folds where the ranges decide.
LoopOpId IndexLess(LoopRecorder& ops, ExprId a, ExprId b);
LoopOpId IndexEqual(LoopRecorder& ops, ExprId a, ExprId b);

}  // namespace kiln
