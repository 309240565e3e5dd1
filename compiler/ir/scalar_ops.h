// One loop op on one value: the numerics of ops.def, in plain C++.
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "compiler/ir/ops.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// A value of a loop op: `f` for F32, F16 and BF16 (already rounded), `d` for F64, `i` for integers
// (sign- or zero-extended) and BOOL (0 or 1).
union Scalar {
  int64_t i;
  double d;
  float f;
};

Scalar LoadScalar(v1::DType dtype, const void* base, int64_t index);
void StoreScalar(v1::DType dtype, void* base, int64_t index, Scalar value);
Scalar AddScalars(v1::DType dtype, Scalar a, Scalar b);  // also of F16 and BF16, rounded

Scalar ConstantScalar(v1::DType dtype, uint64_t bits);
Scalar CastScalar(v1::DType from, v1::DType to, Scalar value);
Scalar BitcastScalar(v1::DType from, v1::DType to, Scalar value);
int64_t WrapInteger(v1::DType dtype, int64_t value);

// Arithmetic, functions, comparison, logic and bits. False: an integer division by zero.
// `dtype` is the arguments'; `args` has the operator's arity.
bool ApplyScalarOp(LoopOpcode op, v1::DType dtype, const Scalar* args, Scalar* result);

// Philox4x32-10, see ops.def.
int64_t RandomBits(int64_t seed, int64_t flat, int64_t number);

}  // namespace kiln
