// Kernels on an NVIDIA GPU through the driver, which is found when the first one is loaded.
//
// A kernel runs on the stream of its call's context; the arguments' buffers are device addresses. Launching
// is asynchronous: an error of the kernel itself shows at a later call, as with torch. Threads: immutable
// after loading; a launch needs the device's context to be current, as it is on every thread on which torch
// runs CUDA work. Errors: DATA_LOSS for bytes that are no image, UNIMPLEMENTED without a driver, INTERNAL
// with the driver's words for the rest.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/runtime/kernels.h"

namespace kiln::runtime {

absl::StatusOr<std::shared_ptr<const KernelRunner>> NewCudaKernel(absl::string_view image);

}  // namespace kiln::runtime
