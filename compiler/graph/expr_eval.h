// The one evaluator of symbolic integers: Python's semantics on int64, every overflow and every
// division by zero is "no value". Internal steps that another branch of `where`, `and` or `or`
// discards may have no value. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

using ExprValue = std::optional<int64_t>;

// Of any operator but constants and leaves. `args` has the operator's arity (checked by the caller).
ExprValue ApplyExprOp(v1::ExprOp op, absl::Span<const ExprValue> args);

// The side of an image, the length of a text.
inline constexpr int64_t kSymbolEstimate = 256;

// What a symbol is taken for when only its range is known: kSymbolEstimate, or what of its range is nearest.
// Never a hint: what is compiled depends on the graph alone.
int64_t EstimateOfSymbol(absl::Span<const v1::Symbol> symbols, int64_t symbol);

// True when an operator of the wire format may have so many arguments; leaves and constants: 0.
bool ExprArityIsValid(v1::ExprOp op, size_t args);

}  // namespace kiln
