// Kernels that both lists of schedules' rules are asked about. Threads: pure functions.
#pragma once

#include <cstdint>

#include "compiler/ir/kernel_builder.h"

namespace kiln::testing {

// Whose index is an expression of 2^14 terms.
inline v1::Kernel KernelOfManyTerms() {
  KernelBuilder m;
  const uint32_t n = m.Const(8);
  m.Outer(n);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, n), out = m.Buffer(v1::F32, v1::WRITE, n);
  uint32_t index = m.Var(0);
  for (int k = 0; k < 14; ++k) index = m.Expr(v1::EXPR_MIN, {index, index});
  m.BeginStage({});
  m.Store(out, m.Var(0), m.Load(in, index));
  m.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
  return m.Build();
}

}  // namespace kiln::testing
