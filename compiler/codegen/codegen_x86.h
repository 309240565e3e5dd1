// The x86 back-end: loop kernels → LLVM IR → flat images.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "compiler/codegen/codegen_backend.h"

namespace kiln {

// UNIMPLEMENTED for a target without avx2, fma and f16c.
absl::StatusOr<std::unique_ptr<CodegenBackend>> NewX86Backend(const v1::Target& target);

}  // namespace kiln
