// A convolution as a library call has it, its arguments read by name.
//
// Pure function. Errors: none. No value for a call without images and weights of one dtype, for one that is
// transposed, and where an argument is missing. A bias is not looked at.
#pragma once

#include <optional>

#include "client/runtime/host.h"
#include "compiler/library/fixed_convolution.h"

namespace kiln::runtime {

// It borrows the sizes and strides of the call's operands.
std::optional<FixedConvolution> ReadConvolution(const CallArguments& call);

}  // namespace kiln::runtime
