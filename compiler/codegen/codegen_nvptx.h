// The NVIDIA back-end: loop kernels to PTX, and to machine code where kiln was built with an assembler. Needs
// no GPU and no CUDA installation.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "compiler/codegen/codegen_backend.h"

namespace kiln {

// Features: exactly one "sm_NN" or "sm_NNa"; ptx_version as 80 for 8.0,
// 0 for the first that knows the architecture. UNIMPLEMENTED for a target it does not know.
absl::StatusOr<std::unique_ptr<CodegenBackend>> NewNvptxBackend(const v1::Target& target);

}  // namespace kiln
