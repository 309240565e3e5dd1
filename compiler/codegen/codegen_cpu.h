// The back-end of CPUs: loop kernels → LLVM IR → flat images. What instruction sets have of their own is in
// target_operations.h.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "compiler/codegen/codegen_backend.h"

namespace kiln {

// UNIMPLEMENTED for a target that VectorTarget does not know.
absl::StatusOr<std::unique_ptr<CodegenBackend>> NewCpuBackend(const v1::Target& target);

}  // namespace kiln
