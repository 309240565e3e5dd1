// The operators that RunPasses leaves for lowering, in the forms that lowering may rely on.
//
// Everything here is plain ATen but for the functions of kiln's own, whose accuracy a decomposition chooses
// (ir/ops.def). What is neither here nor decomposed stays as the caller wrote it and
// becomes a library call. Conventions of core nodes:
//  - any tensor slot of a pointwise operator may hold a scalar (FloatArg, IntArg with any symbolic
//    expression, BoolArg); at least one slot is a tensor. Operands of different dtypes promote as
//    in ATen; the computation is in the promoted type (F32 for F16 and BF16), the result has the
//    dtype of the result value;
//  - `dim` lists are explicit, non-negative, without repetition and never empty unless rank 0;
//    sizes of view, expand and full are explicit, without -1;
//  - `alpha` does not appear; `.Scalar` overloads have become `.Tensor` ones.
#pragma once

#include "absl/container/flat_hash_map.h"
#include "compiler/graph/operator_name.h"
#include "compiler/ir/ops.h"

namespace kiln {

enum class CoreClass {
  kNone,       // not core: lowering decides between its own table and a library call
  kPointwise,  // one value a point
  kReduction,
  kScan,
  kView,   // pure index maps, no arithmetic
  kIndex,  // data-dependent addresses
  kCreation,
  kRandom,
  kCopy,      // clone, cat, pad, flip, *_scatter: moves elements
  kMutation,  // copy_ on an input, at the end of a graph
};

CoreClass CoreClassOf(const OperatorName& target);

// The operators of one argument that are one loop operator each, of the same name, by target: a row of
// ops.def makes `aten.NAME.default` one of them.
const absl::flat_hash_map<OperatorName, LoopOpcode>& UnaryOperators();

}  // namespace kiln
