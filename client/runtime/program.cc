#include "client/runtime/program.h"

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "client/runtime/call_frame.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {

absl::Status Program::Run(absl::Span<const Value> inputs, std::vector<Value>& outputs) const {
  counts_->calls.fetch_add(1, std::memory_order_relaxed);
  CallFrame frame(*this);
  KILN_RETURN_IF_ERROR(frame.Bind(inputs));
  KILN_RETURN_IF_ERROR(frame.Execute());
  KILN_RETURN_IF_ERROR(frame.CopyBack());
  absl::Status status = frame.Finish(outputs);
  if (!status.ok()) {
    for (const Value& value : outputs) {
      if (value.tensor != nullptr) host_->Release(value.tensor);
    }
    outputs.clear();
  }
  return status;
}

std::unique_ptr<Program::Scratch> Program::TakeScratch() const {
  if (Scratch* spare = spare_.exchange(nullptr, std::memory_order_acquire)) {
    return std::unique_ptr<Scratch>(spare);
  }
  auto scratch = std::make_unique<Scratch>();
  for (const CallStep& call : steps_.calls) scratch->push_back(StateOf(call));
  return scratch;
}

// Of a call whose sizes are fixed with all but addresses.
Program::CallState Program::StateOf(const CallStep& call) const {
  CallState state;
  state.values = call.values;
  if (!call.in_memory) return state;
  state.in_memory = host_->NewMemoryCall(call.target, call.fixed);
  state.declared.resize(call.results.size());
  if (!call.fixed) return state;
  const auto memory = [&](const Buffer& buffer) {
    return TensorMemory{nullptr, buffer.dtype, buffer.shape.fixed_sizes, buffer.shape.fixed_strides};
  };
  for (const Operand& operand : call.operands)
    state.values[operand.argument].memory = memory(buffers_[operand.buffer]);
  for (size_t i = 0; i < call.results.size(); ++i) {
    if (call.results[i] >= 0) state.declared[i] = memory(buffers_[call.results[i]]);
  }
  return state;
}

void Program::GiveScratch(std::unique_ptr<Scratch> scratch) const {
  delete spare_.exchange(scratch.release(), std::memory_order_acq_rel);
}

}  // namespace kiln::runtime
