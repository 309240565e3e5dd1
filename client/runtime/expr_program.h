// The symbolic sizes of a program, made ready for fast evaluation.
//
// Constants are folded when the program is loaded; what is left is evaluated in pool order into a
// frame of values. Each expression has a *stage*: 0 when it depends only on what the inputs bind,
// otherwise one more than the position of the last step that sets a symbol it uses.
//
// Threads: immutable after Load. Errors: INVALID_ARGUMENT for a pool that is not well formed.
// Overflow and division by zero make a value invalid; only its use is an error, so that a guarded
// division (where(b != 0, a // b, 0)) is legal.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln::runtime {

// A literal, or a position in the expression frame.
struct Dim {
  int64_t value = 0;
  int32_t expr = -1;
};

struct ExprValue {
  int64_t value = 0;
  bool valid = true;
};

// Values of one call: symbols first set by the prologue or by Let steps, expressions after them.
struct ExprFrame {
  std::vector<int64_t> symbols;
  std::vector<ExprValue> exprs;
};

class ExprProgram {
 public:
  static absl::StatusOr<ExprProgram> Load(const v1::Program& program);

  // A literal where the expression folds to one. INVALID_ARGUMENT when out of bounds.
  absl::StatusOr<Dim> Resolve(const v1::SymInt& value) const;
  absl::StatusOr<Dim> ResolveExpr(uint32_t expr) const;

  // Whether a call knows the value when it begins: no step sets a symbol it uses.
  bool KnownAtStart(const Dim& dim) const { return dim.expr < 0 || stage_[dim.expr] == 0; }
  // The symbols that the values depend on, in ascending order.
  std::vector<uint32_t> SymbolsOf(absl::Span<const Dim> dims) const;

  bool constant() const { return stages_.empty(); }
  void Start(ExprFrame& frame) const;
  // Evaluates the expressions of one stage; call it once the stage's symbol is set.
  void Evaluate(uint32_t stage, ExprFrame& frame) const;
  bool HasStage(uint32_t stage) const;

 private:
  struct Node {
    v1::ExprOp op;
    int64_t value;
    absl::InlinedVector<uint32_t, 2> args;
  };
  static ExprValue Apply(const Node& node, const ExprFrame& frame);

  std::vector<Node> nodes_;
  std::vector<ExprValue> start_;  // folded values
  std::vector<bool> folded_;
  std::vector<uint32_t> stage_;                // by expression
  std::vector<std::vector<uint32_t>> stages_;  // expressions by stage, in pool order
  size_t symbols_ = 0;
};

}  // namespace kiln::runtime
