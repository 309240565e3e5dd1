#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/runtime/call_frame.h"
#include "client/runtime/span.h"

namespace kiln::runtime {
namespace {

absl::Status WrongInput(size_t input, absl::Span<const int64_t> sizes) {
  return absl::FailedPreconditionError(
      absl::StrCat("input ", input, " has sizes [", absl::StrJoin(sizes, ", "), "], not those compiled for"));
}

bool IsExpanded(const CallSizes::Extent& extent) {
  for (size_t d = 0; d < extent.sizes.size(); ++d) {
    if (extent.sizes[d] > 1 && extent.strides[d] == 0) return true;
  }
  return false;
}

// Elements that share memory are written once, from the first of them. By way of a dense tensor, since a
// view of `from` would not show what it is the conjugate or the negative of.
absl::Status CopyExpanded(Host& host, Tensor to, Tensor from, v1::DType dtype,
                          const CallSizes::Extent& extent) {
  std::vector<int64_t> dense_strides(extent.sizes.size()), sizes(extent.sizes.begin(), extent.sizes.end());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= extent.sizes[d]) {
    dense_strides[d] = stride;
    if (extent.strides[d] == 0) sizes[d] = std::min<int64_t>(sizes[d], 1);
  }
  std::array<Tensor, 3> made = {};  // dense, one of each element there, one of each element of `to`
  absl::Status status = [&]() -> absl::Status {
    KILN_ASSIGN_OR_RETURN(made[0], host.Empty(dtype, extent.sizes, dense_strides));
    KILN_RETURN_IF_ERROR(host.Copy(made[0], from));
    KILN_ASSIGN_OR_RETURN(made[1], host.View(made[0], sizes, dense_strides, 0));
    KILN_ASSIGN_OR_RETURN(made[2], host.View(to, sizes, extent.strides, 0));
    return host.Copy(made[2], made[1]);
  }();
  for (Tensor tensor : made) {
    if (tensor != nullptr) host.Release(tensor);
  }
  return status;
}

}  // namespace

absl::Status CallFrame::Bind(absl::Span<const Value> inputs) {
  // Take over every reference first, so that an error leaks none.
  if (inputs.size() != program_.inputs_.size()) {
    for (const Value& value : inputs) kept_.push_back(value.tensor);
    return absl::FailedPreconditionError(
        absl::StrCat("the program takes ", program_.inputs_.size(), " inputs, not ", inputs.size()));
  }
  int64_t bad_input = -1;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const uint32_t buffer = program_.inputs_[i].buffer;
    if (buffer != UINT32_MAX) {
      slots_[buffer].tensor = inputs[i].tensor;
    } else if (inputs[i].tensor != nullptr) {
      kept_.push_back(inputs[i].tensor);
    }
    if (program_.inputs_[i].is_tensor == (inputs[i].tensor == nullptr)) {
      bad_input = static_cast<int64_t>(i);
    }
  }
  if (bad_input >= 0) {
    return absl::FailedPreconditionError(absl::StrCat("input ", bad_input, " is of the wrong kind"));
  }
  KILN_ASSIGN_OR_RETURN(call_, host_.Begin());
  call_.tuned = program_.tuned_.gemms.get();
  call_.tuned_convolutions = program_.tuned_.convolutions.get();
  sizes_.Start();
  for (const Program::Binding& binding : program_.symbols_.bindings) {
    const Value& value = inputs[binding.input];
    int64_t& symbol = sizes_.symbol(binding.symbol);
    if (binding.source == v1::SymbolBinding::INPUT_VALUE) {
      symbol = value.number;
      continue;
    }
    const bool size = binding.source == v1::SymbolBinding::INPUT_SIZE;
    KILN_ASSIGN_OR_RETURN(absl::Span<const int64_t> dims,
                          size ? host_.Sizes(value.tensor) : host_.Strides(value.tensor));
    if (binding.dim >= dims.size()) return WrongInput(binding.input, dims);
    symbol = dims[binding.dim];
  }
  for (const Program::Binding& binding : program_.symbols_.bindings)
    KILN_RETURN_IF_ERROR(sizes_.Set(binding.symbol, sizes_.symbol(binding.symbol)));
  sizes_.Evaluate(0);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].tensor != nullptr) KILN_RETURN_IF_ERROR(CheckInput(i, inputs[i].tensor));
  }
  return absl::OkStatus();
}

// Kernels trust sizes and strides, so each input is compared with what was compiled for.
absl::Status CallFrame::CheckInput(size_t index, Tensor tensor) {
  const Program::Input& input = program_.inputs_[index];
  Extent extent;
  KILN_RETURN_IF_ERROR(sizes_.Measure(input.shape, extent));
  KILN_ASSIGN_OR_RETURN(absl::Span<const int64_t> sizes, host_.Sizes(tensor));
  if (!SameSizes(sizes, extent.sizes)) return WrongInput(index, sizes);
  KILN_ASSIGN_OR_RETURN(v1::DType dtype, host_.Type(tensor));
  // Dynamo traces a number that Python draws in each call as F32, and passes it as F64.
  const bool drawn = sizes.empty() && dtype == v1::F64 && input.dtype == v1::F32;
  if (dtype != input.dtype && !drawn) {
    return absl::FailedPreconditionError(
        absl::StrCat("input ", index, " has another dtype than compiled for"));
  }
  if (input.buffer == UINT32_MAX) return absl::OkStatus();
  Slot& slot = slots_[input.buffer];
  KILN_ASSIGN_OR_RETURN(absl::Span<const int64_t> strides, host_.Strides(tensor));
  if (drawn || !SameStrides(extent.sizes, strides, extent.strides) || !host_.IsPlain(tensor)) {
    KILN_ASSIGN_OR_RETURN(Tensor copy, CopyOf(tensor, input.dtype, extent));
    slot.caller = slot.tensor;
    kept_.push_back(slot.caller);
    slot.tensor = copy;
    if (input.written) {
      KILN_ASSIGN_OR_RETURN(Tensor shared, host_.Share(copy));
      input_copies_.push_back({slot.caller, shared});
    }
  }
  KILN_RETURN_IF_ERROR(SetData(slot));
  if (slot.data == nullptr && SpanElements(extent.sizes, extent.strides) > 0)
    return absl::FailedPreconditionError(
        absl::StrCat("input ", index, " has no memory: its storage is empty"));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> CallFrame::CopyOf(Tensor tensor, v1::DType dtype, const Extent& extent) {
  program_.counts_->stride_copies.fetch_add(1, std::memory_order_relaxed);
  KILN_ASSIGN_OR_RETURN(Tensor copy, host_.Empty(dtype, extent.sizes, extent.strides));
  absl::Status status = Fence();
  if (status.ok()) {
    status = IsExpanded(extent) ? CopyExpanded(host_, copy, tensor, dtype, extent) : host_.Copy(copy, tensor);
  }
  if (!status.ok()) {
    host_.Release(copy);
    return status;
  }
  return copy;
}

// What the steps stored to copies of inputs belongs into the inputs. Not reached when a step fails.
absl::Status CallFrame::CopyBack() {
  for (const InputCopy& written : input_copies_) {
    program_.counts_->stride_copies.fetch_add(1, std::memory_order_relaxed);
    KILN_RETURN_IF_ERROR(host_.Copy(written.input, written.copy));
  }
  return absl::OkStatus();
}

}  // namespace kiln::runtime
