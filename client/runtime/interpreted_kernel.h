// A kernel run by the reference interpreter, for finding one that is wrong (KILN_DEBUG_INTERPRET).
// Errors: DATA_LOSS when the loop IR does not parse or is not valid.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/runtime/kernels.h"

namespace kiln::runtime {

absl::StatusOr<std::shared_ptr<const KernelRunner>> NewInterpretedKernel(const std::string& loop_ir);

}  // namespace kiln::runtime
