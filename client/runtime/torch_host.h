// The host interface inside a torch process: ATen's C shim, resolved at run time from the libtorch
// that the process has loaded already. Built without torch.
//
// Library calls go to a typed shim where there is one (mm, addmm, bmm, convolution and its
// backward, attention, nonzero and what takes masks), otherwise to `callback`, which runs the overload in
// Python. A shim that fails is run again by the callback, so that the user sees torch's own error; so is what
// a tensor refuses to tell ("Tensor.data_ptr", "Tensor.size", "Tensor.stride").
//
// Threads: as Host. One per process; never destroyed while a program exists.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "client/runtime/host.h"

namespace kiln::runtime {

// Runs `target` with borrowed arguments. Results as in Host::Call without `into`.
using LibraryCallback = std::function<absl::Status(const std::string& target, const CallArguments& arguments,
                                                   absl::Span<Tensor> results)>;

// Memory and typed calls of one kind of device. UNIMPLEMENTED when no libtorch is loaded, or one without a
// function that is needed.
absl::StatusOr<std::unique_ptr<Host>> NewTorchHost(v1::DeviceType device, LibraryCallback callback);

}  // namespace kiln::runtime
