// Symbolic integers: sizes, strides, loop indices and guards.
//
// An `ExprPool` owns hash-consed expression nodes; an `ExprId` names one and is meaningless in any
// other pool. Equal ids are equal expressions. Constructors simplify as they build (constant
// folding, sorted sums of products, FloorDiv/Mod rules that use ranges), so structural equality is
// usually semantic equality. Semantics are Python's: floor division, modulo with the divisor's
// sign; booleans are 0 and 1. Simplifying never changes a defined value, but may define one that
// was not: a divisor that cannot be negative is taken to be positive, and a variable or indirect
// exists only where its extent is positive.
//
// Normal form: a sum's arguments are its terms, higher degree first, the constant last; a term is a
// product whose first argument is its constant coefficient if that is not 1. Orders depend on
// contents only, never on the history of the pool.
//
// expr_leaves.h has what an expression depends on and substitution, expr_proofs.h what holds for all values.
//
// Threads: a pool is not thread safe; a pool that nobody changes may be read from many threads.
// Errors: evaluation reports overflow and division by zero as OUT_OF_RANGE; a guard whose
// evaluation fails is false (see guards.h).
// Limits: support/compiler_limits.h `kExprNodesMax`, `kAllExprArgsMax`; building beyond it makes `status()`
// not OK.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

using ExprId = uint32_t;

// Inclusive bounds of what an expression can evaluate to; saturating.
struct ExprRange {
  int64_t min = INT64_MIN;
  int64_t max = INT64_MAX;
  bool IsPoint() const { return min == max; }
};

struct ExprNode {
  v1::ExprOp op;
  int64_t value = 0;  // EXPR_CONST, EXPR_SYMBOL, EXPR_VAR, EXPR_INDIRECT
  absl::InlinedVector<ExprId, 2> args;
};

class ExprPool {
 public:
  ExprPool();

  ExprId Const(int64_t value);
  // A graph symbol with its declared range (graph sizes: [0 or 2, …]).
  ExprId Symbol(uint32_t symbol, ExprRange range);
  // A loop variable in [0, extent). Variable numbers are the caller's; one number, one extent.
  ExprId Var(uint32_t var, ExprId extent);
  // The value of loop op `op`, known to lie in [0, extent) because a check precedes it.
  ExprId Indirect(uint32_t op, ExprId extent);

  ExprId Add(ExprId a, ExprId b);
  ExprId Sub(ExprId a, ExprId b);
  ExprId Neg(ExprId a);
  ExprId Mul(ExprId a, ExprId b);
  ExprId FloorDiv(ExprId a, ExprId b);
  ExprId CeilDiv(ExprId a, ExprId b);
  ExprId Mod(ExprId a, ExprId b);
  ExprId Min(ExprId a, ExprId b);
  ExprId Max(ExprId a, ExprId b);
  ExprId Pow(ExprId a, ExprId b);
  ExprId Where(ExprId condition, ExprId a, ExprId b);
  ExprId Eq(ExprId a, ExprId b);
  ExprId Ne(ExprId a, ExprId b);
  ExprId Lt(ExprId a, ExprId b);
  ExprId Le(ExprId a, ExprId b);
  ExprId And(ExprId a, ExprId b);
  ExprId Or(ExprId a, ExprId b);
  ExprId Not(ExprId a);
  ExprId Sum(absl::Span<const ExprId> terms);
  ExprId Product(absl::Span<const ExprId> factors);  // 1 when empty: numel
  // Any of these by its operator. `args` has the operator's arity (expr_eval.h).
  ExprId Apply(v1::ExprOp op, absl::Span<const ExprId> args);

  const ExprNode& node(ExprId id) const { return nodes_[id]; }
  size_t size() const { return nodes_.size(); }
  ExprRange Range(ExprId id) const { return ranges_[id]; }
  // Its value is known to be one of 64 bits, whatever its leaves are, so that wrapping arithmetic gives it
  // too.
  bool FitsInt64(ExprId id) const { return ranges_[id].min > INT64_MIN && ranges_[id].max < INT64_MAX; }
  // Of a variable or indirect; nullopt for everything else.
  std::optional<ExprId> Extent(ExprId leaf) const;
  // Equal for equal expressions in any pool of any process.
  uint64_t ContentHash(ExprId id) const { return hashes_[id]; }
  std::optional<int64_t> AsConst(ExprId id) const;

  // Evaluates with the value of every leaf.
  absl::StatusOr<int64_t> Evaluate(ExprId id, absl::FunctionRef<int64_t(const ExprNode& leaf)> value) const;

  std::string ToString(ExprId id) const;  // "4*s0 + (v1 // 8)"
  absl::Status status() const { return status_; }

 private:
  friend class ExprAlgebra;  // sums, products and divisions: expr_algebra.h

  ExprId Intern(v1::ExprOp op, int64_t value, absl::Span<const ExprId> args, ExprRange range,
                std::optional<ExprId> extent = std::nullopt);
  ExprId Leaf(v1::ExprOp op, int64_t value, ExprId extent);

  std::vector<ExprNode> nodes_;
  std::vector<ExprRange> ranges_;
  std::vector<uint64_t> hashes_;
  absl::flat_hash_map<uint64_t, absl::InlinedVector<ExprId, 1>> index_;
  absl::flat_hash_map<ExprId, ExprId> extents_;                      // of variables and indirects
  absl::flat_hash_map<std::pair<uint64_t, int>, ExprId> divisions_;  // results of FloorDiv and Mod
  absl::flat_hash_map<ExprId, int64_t> upper_bounds_;                // what expr_bounds.cc proved
  absl::flat_hash_set<ExprId> opaque_;  // sums and products too large for the normal form
  size_t total_args_ = 0;
  int depth_ = 0;  // of division rules applied inside one another
  absl::Status status_;
};

}  // namespace kiln
