#include <array>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/client_limits.h"
#include "client/runtime/call_frame.h"

namespace kiln::runtime {
namespace {

// Sets the numbers that change from call to call.
absl::Status ResolveNumbers(const CallSizes& sizes, const std::vector<Dim>& dims, CallValue& value) {
  if (value.kind == v1::Argument::kAsInt && !dims.empty()) {
    KILN_ASSIGN_OR_RETURN(value.number, sizes.Number(dims[0]));
    return absl::OkStatus();
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    KILN_ASSIGN_OR_RETURN(value.numbers[i], sizes.Number(dims[i]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CallFrame::Call(size_t index, size_t step) {
  const Program::CallStep& call = program_.steps_.calls[index];
  Program::CallState& state = (*scratch_)[index];
  if (state.in_memory != nullptr) {
    KILN_ASSIGN_OR_RETURN(const bool done, call.fixed ? CallFixed(call, state) : CallMeasured(call, state));
    if (done) return absl::OkStatus();
  }
  std::vector<CallValue>& values = state.values;
  KILN_RETURN_IF_ERROR(Fence());
  for (size_t i = 0; i < values.size(); ++i) {
    KILN_RETURN_IF_ERROR(Resolve(call.arguments[i], values[i]));
  }
  absl::InlinedVector<Tensor, 4> results(call.results.size(), nullptr);
  if (call.into) {
    for (size_t i = 0; i < results.size(); ++i) {
      KILN_ASSIGN_OR_RETURN(results[i], Get(call.results[i]));
    }
  }
  ++library_calls_;
  absl::Status status = host_.Call(call.target, {call.names, values}, absl::MakeSpan(results), call.into);
  for (Tensor& tensor : temporaries_) Drop(tensor);
  temporaries_.clear();
  if (call.into || !status.ok()) return status;
  if (!call.binds.empty()) {
    status = SetSizes(call, results);
    sizes_.Evaluate(step + 1);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (call.results[i] < 0 || !status.ok()) {
      Drop(results[i]);
    } else if (results[i] == nullptr) {
      status = StatusWrap(Contradiction(absl::StrCat("gave no result ", i), "a tensor"), call.target);
    } else {
      status = StatusWrap(Fill(call.results[i], results[i], &call, i), call.target);
    }
  }
  return status;
}

// Whether the call is done without a handle for any of its tensors, of fixed sizes.
absl::StatusOr<bool> CallFrame::CallFixed(const Program::CallStep& call, Program::CallState& state) {
  for (const Program::Operand& operand : call.operands) {
    KILN_ASSIGN_OR_RETURN(state.values[operand.argument].memory.data, DataOf(operand.buffer));
  }
  for (size_t i = 0; call.into && i < state.declared.size(); ++i) {
    KILN_ASSIGN_OR_RETURN(state.declared[i].data, DataOf(static_cast<uint32_t>(call.results[i])));
  }
  return CallInMemory(call, state);
}

// The same, of sizes of this call.
absl::StatusOr<bool> CallFrame::CallMeasured(const Program::CallStep& call, Program::CallState& state) {
  std::array<Extent, kMemoryCallOperandsMax> extents;
  size_t used = 0;
  for (const Program::Operand& operand : call.operands) {
    KILN_ASSIGN_OR_RETURN(state.values[operand.argument].memory, MemoryOf(operand.buffer, extents[used++]));
  }
  for (size_t i = 0; i < state.values.size(); ++i) {
    if (state.values[i].kind == v1::Argument::kAsTensor) continue;
    KILN_RETURN_IF_ERROR(ResolveNumbers(sizes_, call.arguments[i].dims, state.values[i]));
  }
  for (size_t i = 0; i < state.declared.size(); ++i) {
    if (call.results[i] < 0) continue;
    KILN_ASSIGN_OR_RETURN(state.declared[i], MemoryOf(call.results[i], extents[used++], call.into));
  }
  return CallInMemory(call, state);
}

// With all of the state set.
absl::StatusOr<bool> CallFrame::CallInMemory(const Program::CallStep& call, Program::CallState& state) {
  std::array<Tensor, kMemoryCallResultsMax> made = {};
  const size_t count = state.declared.size();
  const MemoryResults results = {call.into, state.declared, absl::MakeSpan(made).first(count)};
  if (!state.in_memory->Run({call.names, state.values}, results, call_)) return false;
  ++library_calls_;
  absl::Status status;
  for (size_t i = 0; i < count; ++i) {
    if (made[i] == nullptr) continue;
    if (call.results[i] < 0 || !status.ok()) {
      Drop(made[i]);
    } else {
      status = StatusWrap(Fill(call.results[i], made[i]), call.target);
    }
  }
  if (!status.ok()) return status;
  return true;
}

// Sets what changes from call to call; `value` has the rest already.
absl::Status CallFrame::Resolve(const Program::CallArgument& argument, CallValue& value) {
  if (value.kind == v1::Argument::kAsTensor) {
    KILN_ASSIGN_OR_RETURN(value.tensor, Get(argument.buffers[0]));
    return absl::OkStatus();
  }
  for (size_t i = 0; i < argument.buffers.size(); ++i) {
    if (argument.buffers[i] < 0) continue;
    KILN_ASSIGN_OR_RETURN(value.tensors[i], Get(argument.buffers[i]));
  }
  return ResolveNumbers(sizes_, argument.dims, value);
}

// What only a call's results tell.
absl::Status CallFrame::SetSizes(const Program::CallStep& call, absl::Span<const Tensor> results) {
  for (const v1::Call::Bind& bind : call.binds) {
    const Tensor result = results[bind.result()];
    if (result == nullptr)
      return StatusWrap(Contradiction(absl::StrCat("gave no result ", bind.result()), "a tensor"),
                        call.target);
    KILN_ASSIGN_OR_RETURN(absl::Span<const int64_t> sizes, host_.Sizes(result));
    if (bind.dim() >= sizes.size()) {
      return StatusWrap(Contradiction(absl::StrCat("gave sizes [", absl::StrJoin(sizes, ", "), "]"),
                                      absl::StrCat("a dimension ", bind.dim())),
                        call.target);
    }
    KILN_RETURN_IF_ERROR(sizes_.Set(bind.symbol(), sizes[bind.dim()]));
  }
  return absl::OkStatus();
}

}  // namespace kiln::runtime
