// The sizes of one call: what its symbols are, and what the program's expressions come to.
//
// Symbols are bound when the call begins, some are set by its steps; expressions are evaluated stage by stage
// (ExprProgram). What is asked for each operand of each step is here, to be inlined.
//
// Ownership: the program outlives it. Threads: one.
// Errors: FAILED_PRECONDITION for a size that overflows or divides by zero, and a symbol out of its range.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/runtime/expr_program.h"
#include "client/runtime/program.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {

class CallSizes {
 public:
  using Dims = absl::InlinedVector<int64_t, 6>;

  // Sizes and strides of a shape now; points into the shape or into the two scratch vectors.
  struct Extent {
    absl::Span<const int64_t> sizes;
    absl::Span<const int64_t> strides;
    Dims size_values;
    Dims stride_values;
  };

  explicit CallSizes(const Program& program) : symbols_(program.symbols_) {}

  // To be called first.
  void Start() { symbols_.exprs.Start(values_); }
  int64_t& symbol(uint32_t symbol) { return values_.symbols[symbol]; }
  // The compiler relies on an unbacked symbol's range, which nobody but the call can check.
  absl::Status Set(uint32_t symbol, int64_t value) {
    values_.symbols[symbol] = value;
    const Program::Range& range = symbols_.ranges[symbol];
    return range.min <= value && value <= range.max ? absl::OkStatus() : OutOfRange(value, range);
  }
  // Evaluates the expressions of one stage, once its symbol is set.
  void Evaluate(uint32_t stage) { symbols_.exprs.Evaluate(stage, values_); }

  const ExprFrame& values() const { return values_; }

  absl::StatusOr<int64_t> Number(const Dim& dim) const {
    if (dim.expr < 0) return dim.value;
    const ExprValue& value = values_.exprs[dim.expr];
    if (!value.valid) return absl::FailedPreconditionError("a size overflows or divides by zero");
    return value.value;
  }

  absl::Status Numbers(const std::vector<Dim>& dims, Dims& numbers) const {
    numbers.clear();
    for (const Dim& dim : dims) {
      KILN_ASSIGN_OR_RETURN(int64_t number, Number(dim));
      numbers.push_back(number);
    }
    return absl::OkStatus();
  }

  absl::Status Measure(const Program::Shape& shape, Extent& extent) const {
    if (shape.fixed) {
      extent.sizes = shape.fixed_sizes;
      extent.strides = shape.fixed_strides;
      return absl::OkStatus();
    }
    KILN_RETURN_IF_ERROR(Numbers(shape.sizes, extent.size_values));
    KILN_RETURN_IF_ERROR(Numbers(shape.strides, extent.stride_values));
    extent.sizes = extent.size_values;
    extent.strides = extent.stride_values;
    return absl::OkStatus();
  }

 private:
  static absl::Status OutOfRange(int64_t value, const Program::Range& range);

  const Program::Symbols& symbols_;
  ExprFrame values_;
};

}  // namespace kiln::runtime
