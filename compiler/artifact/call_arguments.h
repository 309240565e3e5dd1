// Arguments of a library call as they travel. Threads: pure function.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "compiler/graph/expr_proto.h"
#include "compiler/graph/graph.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

// `buffer(i)`: the program buffer of the call's tensor at position i. INTERNAL for a value that does
// not exist.
absl::Status WriteArgument(const Argument& argument, ExprWriter& exprs,
                           absl::FunctionRef<absl::StatusOr<uint32_t>(ValueId)> buffer, v1::Argument* out);

}  // namespace kiln
