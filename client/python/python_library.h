// Library calls that no typed shim serves: `torch.ops` called from the runtime, through one Python
// function `callback(target, arguments)` that gives a tensor, None, or a sequence of those.
//
// Threads: takes Python's lock itself. Errors: a pending Python exception, marked in the status.
#pragma once

#include "client/python/python_util.h"
#include "client/runtime/host.h"

namespace kiln::python {

// The conversions of torch._C._aoti, and the callback. Set once, with Python's lock held.
struct TorchFunctions {
  PyObject* to_handles = nullptr;    // unsafe_alloc_void_ptrs_from_tensors
  PyObject* from_handles = nullptr;  // alloc_tensors_by_stealing_from_void_ptrs
  PyObject* callback = nullptr;
};
extern TorchFunctions torch_functions;

// New references of the runtime's to the tensors of a list; false with an exception set.
bool HandlesOf(PyObject* tensor_list, std::vector<runtime::Tensor>& handles);
// A list of tensors that takes the handles over; nullptr with an exception set.
PyObject* TensorsOf(absl::Span<const runtime::Tensor> handles);

absl::Status CallLibrary(const std::string& target, const runtime::CallArguments& arguments,
                         absl::Span<runtime::Tensor> results);

// The process's host; UNIMPLEMENTED when this torch lacks a function. Made at first use.
absl::StatusOr<runtime::Host*> TorchHost(v1::DeviceType device);

}  // namespace kiln::python
