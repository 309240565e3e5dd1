// Is a kernel well formed? Everything that kernel.proto and ops.def say: positions, arities, dtypes,
// what an op may use from where, buffers' access, loops, schedule, limits. A verified kernel can be
// emitted or interpreted without further checks; whether every index stays in its buffer's span is
// the interpreter's to find out.
//
// Threads: pure function. Errors: INVALID_ARGUMENT naming the op or part. Limits: support/compiler_limits.h;
// linear in the message's size.
#pragma once

#include "absl/status/status.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

absl::Status VerifyKernel(const v1::Kernel& kernel);

}  // namespace kiln
