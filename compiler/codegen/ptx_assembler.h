// NVIDIA's assembler inside the process: PTX becomes the machine code of one architecture, without a GPU and
// without starting a program, so that a worker may do it in its sandbox. It is the CUDA Toolkit's
// nvPTXCompiler, linked statically where the build finds it (CMakeLists.txt says where it looks).
//
// Threads: any. Errors: UNIMPLEMENTED where kiln was built without it and for an architecture that it does
// not know, INVALID_ARGUMENT with the assembler's own words for PTX that it refuses.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace kiln {

// Whether this build has the assembler.
bool HasPtxAssembler();

// The cubin. `architecture`: that of the PTX's .target, such as "sm_90a". Tens of milliseconds a kernel.
absl::StatusOr<std::string> AssemblePtx(const std::string& ptx, const std::string& architecture);

}  // namespace kiln
