// The state of one call of a program: its inputs, memory, and what is launched and called in order. Its sizes
// are CallSizes.
//
//   CallFrame frame(program);
//   frame.Bind(inputs) → Execute() → CopyBack() → Finish(outputs)    each once; after an error none
//
// call_frame_inputs.cc binds and checks what the caller gave, call_frame_calls.cc makes library calls,
// call_frame.cc does the rest. What runs for each operand of each step is here, to be inlined.
//
// Ownership: it takes over the references in `inputs` at once, and releases at its end what is not in
// `outputs`. The program outlives it. Threads: one. Errors: Program::Run's.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/runtime/arena.h"
#include "client/runtime/arena_plan.h"
#include "client/runtime/call_sizes.h"
#include "client/runtime/capture_dependencies.h"
#include "client/runtime/host.h"
#include "client/runtime/launch.h"
#include "client/runtime/memory_range.h"
#include "client/runtime/program.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {

class CallFrame {
 public:
  explicit CallFrame(const Program& program);
  ~CallFrame();
  CallFrame(const CallFrame&) = delete;
  CallFrame& operator=(const CallFrame&) = delete;

  absl::Status Bind(absl::Span<const Value> inputs);
  absl::Status Execute();
  // Copies what the steps stored to copies of inputs back to the inputs. Not reached when a step fails.
  absl::Status CopyBack();
  absl::Status Finish(std::vector<Value>& outputs);

 private:
  using Dims = CallSizes::Dims;
  using Extent = CallSizes::Extent;

  struct Slot {
    Tensor tensor = nullptr;
    void* data = nullptr;       // of the first element; outlives `tensor` when the storage was taken over
    Tensor caller = nullptr;    // the input that `tensor` is a copy of; borrowed from kept_
    bool other_layout = false;  // `tensor` owns the storage, but has another buffer's sizes and strides
  };

  // A copy that is to be copied back. Its reference outlives the program's last use of the buffer.
  struct InputCopy {
    Tensor input;  // borrowed from kept_
    Tensor copy;
  };

  // A call's memory for all buffers that have a place in it, made at once.
  struct Block {
    Tensor tensor = nullptr;
    char* data = nullptr;
    std::shared_ptr<const Arena> places;  // none where each buffer has a tensor of its own
  };

  // ---- memory
  void Drop(Tensor& tensor) {
    if (tensor != nullptr) host_.Release(tensor);
    tensor = nullptr;
  }

  absl::Status SetData(Slot& slot) {
    KILN_ASSIGN_OR_RETURN(slot.data, host_.Data(slot.tensor));
    return absl::OkStatus();
  }

  absl::StatusOr<void*> DataOf(uint32_t index) const {
    const Program::Place& place = program_.where_[index];
    if (place.fixed) return static_cast<void*>(static_cast<char*>(slots_[place.root].data) + place.bytes);
    const Program::Buffer& buffer = program_.buffers_[index];
    KILN_ASSIGN_OR_RETURN(void* base, DataOf(buffer.base));
    KILN_ASSIGN_OR_RETURN(int64_t offset, sizes_.Number(buffer.offset));
    // The offset counts in the view's elements.
    return static_cast<void*>(static_cast<char*>(base) + offset * buffer.element);
  }

  // Without an address where the buffer is yet to be made.
  absl::StatusOr<TensorMemory> MemoryOf(uint32_t index, Extent& extent, bool exists = true) const {
    const Program::Buffer& buffer = program_.buffers_[index];
    KILN_RETURN_IF_ERROR(sizes_.Measure(buffer.shape, extent));
    TensorMemory memory{nullptr, buffer.dtype, extent.sizes, extent.strides};
    if (exists) {
      KILN_ASSIGN_OR_RETURN(memory.data, DataOf(index));
    }
    return memory;
  }

  // Whether no tensor at hand has the buffer's own sizes and strides.
  bool NeedsView(uint32_t index) const {
    return program_.buffers_[index].kind == v1::ProgramBuffer::VIEW || slots_[index].other_layout ||
           slots_[index].tensor == nullptr;
  }

  // A borrowed reference, valid until the running call ends.
  absl::StatusOr<Tensor> Get(uint32_t index) {
    if (!NeedsView(index)) return slots_[index].tensor;
    KILN_ASSIGN_OR_RETURN(Tensor view, NewView(index));
    temporaries_.push_back(view);
    return view;
  }

  // ---- what is recorded
  // Where the call is recorded, all that follows depends on all before it; else nothing happens.
  absl::Status Fence() { return order_ == nullptr ? absl::OkStatus() : order_->Fence(); }

  // ---- call_frame_inputs.cc
  absl::Status CheckInput(size_t index, Tensor tensor);
  absl::StatusOr<Tensor> CopyOf(Tensor tensor, v1::DType dtype, const Extent& extent);

  // ---- call_frame_calls.cc
  absl::Status Call(size_t index, size_t step);
  absl::StatusOr<bool> CallFixed(const Program::CallStep& call, Program::CallState& state);
  absl::StatusOr<bool> CallMeasured(const Program::CallStep& call, Program::CallState& state);
  absl::StatusOr<bool> CallInMemory(const Program::CallStep& call, Program::CallState& state);
  absl::Status Resolve(const Program::CallArgument& argument, CallValue& value);
  absl::Status SetSizes(const Program::CallStep& call, absl::Span<const Tensor> results);

  // ---- call_frame.cc
  absl::Status MakeArena();
  int64_t OffsetInArena(uint32_t buffer) const;
  struct StepRunner;
  absl::Status Alloc(const Program::AllocStep& step);
  void TakeOver(Slot& from, bool other_layout, Slot& to);
  absl::Status Fill(uint32_t index, Tensor tensor, const Program::CallStep* call = nullptr,
                    size_t result = 0);
  absl::StatusOr<Tensor> NewView(uint32_t index) const;
  std::vector<MemoryRange> Touched(const Program::Step& step);
  void AddRanges(const Program::LaunchStep& launch, std::vector<MemoryRange>& ranges) const;
  void AddRange(int64_t index, bool written, std::vector<MemoryRange>& ranges) const;
  absl::Status Launch(const Program::LaunchStep& launch);
  absl::Status Launch(uint32_t kernel, absl::Span<LaunchMember> members, int64_t bytes);
  absl::Status LaunchGroup(const Program::GroupStep& group);
  absl::Status SetMember(const Program::LaunchStep& launch, void** buffers, const int64_t* symbols,
                         LaunchMember& member) const;
  absl::StatusOr<int64_t> OperandBytes(const Program::LaunchStep& launch) const;
  absl::StatusOr<int64_t> ValueOf(const Program::LetStep& step);

  const Program& program_;
  Host& host_;
  CallSizes sizes_;
  std::vector<Slot> slots_;
  std::vector<Tensor> kept_;             // released when the call ends
  std::vector<InputCopy> input_copies_;  // of inputs that the program writes, in the order of the inputs
  Block arena_;
  std::vector<Tensor> temporaries_;  // views made for the running call
  std::unique_ptr<Program::Scratch> scratch_;
  CallContext call_;
  std::unique_ptr<Capture> capture_;  // of a call that is recorded
  std::unique_ptr<CaptureDependencies> order_;
  uint64_t launches_ = 0;
  uint64_t library_calls_ = 0;
};

inline bool SameSizes(absl::Span<const int64_t> a, absl::Span<const int64_t> b) { return a == b; }

// But for dimensions of one element, and of a tensor without any.
inline bool SameStrides(absl::Span<const int64_t> sizes, absl::Span<const int64_t> a,
                        absl::Span<const int64_t> b) {
  bool same = true;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return true;
    if (sizes[d] > 1 && a[d] != b[d]) same = false;
  }
  return same;
}

// A library call's result is not what the graph was compiled for.
absl::Status Contradiction(absl::string_view gave, absl::string_view declared);

}  // namespace kiln::runtime
