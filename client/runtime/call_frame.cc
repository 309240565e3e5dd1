#include "client/runtime/call_frame.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/runtime/span.h"
#include "client/runtime/step_times.h"
#include "compiler/graph/dtypes.h"
#include "compiler/ir/scalar_ops.h"
#include "compiler/support/compiler_limits.h"

namespace kiln::runtime {

// Runs step `index` of the program.
struct CallFrame::StepRunner {
  CallFrame& frame;
  const size_t index;

  // What puts work on the stream.
  static bool Records(const Program::Step& step) {
    return std::holds_alternative<Program::LaunchAt>(step) ||
           std::holds_alternative<Program::GroupStep>(step) ||
           std::holds_alternative<Program::CallAt>(step) || std::holds_alternative<Program::SeedsStep>(step);
  }

  absl::Status operator()(const Program::AllocStep& step) { return frame.Alloc(step); }
  absl::Status operator()(const Program::FreeStep& step) {
    frame.Drop(frame.slots_[step.buffer].tensor);
    return absl::OkStatus();
  }
  absl::Status operator()(const Program::ViewStep&) { return absl::OkStatus(); }
  absl::Status operator()(const Program::SeedsStep& step) {
    KILN_RETURN_IF_ERROR(frame.Fence());
    KILN_ASSIGN_OR_RETURN(const Tensor seeds, frame.host_.Seeds(step.count));
    return frame.Fill(step.buffer, seeds);
  }
  absl::Status operator()(const Program::LetStep& step) {
    KILN_ASSIGN_OR_RETURN(const int64_t value, frame.ValueOf(step));
    KILN_RETURN_IF_ERROR(frame.sizes_.Set(step.symbol, value));
    frame.sizes_.Evaluate(index + 1);
    return absl::OkStatus();
  }
  absl::Status operator()(const Program::CheckStep& step) {
    KILN_ASSIGN_OR_RETURN(const int64_t holds, frame.sizes_.Number(step.condition));
    return holds != 0 ? absl::OkStatus() : absl::FailedPreconditionError(step.message);
  }
  absl::Status operator()(const Program::LaunchAt& step) {
    return frame.Launch(frame.program_.steps_.launches[step.index]);
  }
  absl::Status operator()(const Program::GroupStep& step) { return frame.LaunchGroup(step); }
  absl::Status operator()(const Program::CallAt& step) { return frame.Call(step.index, index); }
};

absl::Status Contradiction(absl::string_view gave, absl::string_view declared) {
  absl::Status status = absl::InternalError(absl::StrCat(gave, " where ", declared, " was declared"));
  status.SetPayload(kContradictionPayload, absl::Cord());
  return status;
}

CallFrame::CallFrame(const Program& program)
    : program_(program), host_(*program.host_), sizes_(program), slots_(program.buffers_.size()) {
  if (!program.steps_.calls.empty()) scratch_ = program.TakeScratch();
}

CallFrame::~CallFrame() {
  order_.reset();  // before any memory is freed
  for (Slot& slot : slots_) Drop(slot.tensor);
  for (Tensor& tensor : kept_) Drop(tensor);
  for (InputCopy& written : input_copies_) Drop(written.copy);
  for (Tensor& tensor : temporaries_) Drop(tensor);
  for (CallContext::Kept& kept : call_.scratch) Drop(kept.tensor);
  Drop(arena_.tensor);  // after all that are in it
  if (scratch_ != nullptr) program_.GiveScratch(std::move(scratch_));
  program_.counts_->launches.fetch_add(launches_, std::memory_order_relaxed);
  program_.counts_->library_calls.fetch_add(library_calls_, std::memory_order_relaxed);
}

absl::Status CallFrame::Execute() {
  KILN_RETURN_IF_ERROR(MakeArena());
  if (call_.recorded && (capture_ = host_.NewCapture(call_)) != nullptr) {
    order_ = std::make_unique<CaptureDependencies>(*capture_);
    call_.order = order_.get();
  }
  StepTimes* const times = StepTimes::On() ? program_.times_.get() : nullptr;
  for (size_t i = 0; i < program_.steps_.order.size(); ++i) {
    const Program::Step& step = program_.steps_.order[i];
    const StepTimer timer(times, i);
    const bool recorded = order_ != nullptr && StepRunner::Records(step);
    if (recorded) KILN_RETURN_IF_ERROR(order_->Begin(Touched(step)));
    KILN_RETURN_IF_ERROR(std::visit(StepRunner{*this, i}, step));
    if (recorded) KILN_RETURN_IF_ERROR(order_->End());
    // The time of a step is its work's, not that of launching it.
    if (times != nullptr && !call_.recorded) KILN_RETURN_IF_ERROR(host_.Wait(call_));
  }
  return Fence();
}

absl::Status CallFrame::MakeArena() {
  if (program_.arena_plan_.empty()) return absl::OkStatus();
  // Temporaries of one place would wait for each other in the graph, and allocations are made once.
  if (call_.recorded) return absl::OkStatus();
  arena_.places = program_.arena_plan_.For(sizes_.values());
  if (arena_.places == nullptr) return absl::OkStatus();
  const int64_t size = arena_.places->bytes, stride = 1;
  KILN_ASSIGN_OR_RETURN(arena_.tensor, host_.Empty(v1::U8, {&size, 1}, {&stride, 1}));
  KILN_ASSIGN_OR_RETURN(void* data, host_.Data(arena_.tensor));
  arena_.data = static_cast<char*>(data);
  return absl::OkStatus();
}

int64_t CallFrame::OffsetInArena(uint32_t buffer) const {
  const int32_t place = program_.where_[buffer].arena;
  return place < 0 || arena_.places == nullptr ? Arena::kApart : arena_.places->offsets[place];
}

absl::Status CallFrame::Alloc(const Program::AllocStep& step) {
  Slot& slot = slots_[step.buffer];
  if (const int64_t offset = OffsetInArena(step.buffer); offset != Arena::kApart) {
    if (step.reuse >= 0) Drop(slots_[step.reuse].tensor);  // of the same place
    slot.data = arena_.data + offset;
    return absl::OkStatus();
  }
  if (step.moves) {
    TakeOver(slots_[step.reuse], false, slot);
    return absl::OkStatus();
  }
  const Program::Buffer& buffer = program_.buffers_[step.buffer];
  Extent extent;
  KILN_RETURN_IF_ERROR(sizes_.Measure(buffer.shape, extent));
  if (step.reuse >= 0) {
    const Program::Buffer& old = program_.buffers_[step.reuse];
    Slot& taken = slots_[step.reuse];
    Extent before;
    KILN_RETURN_IF_ERROR(sizes_.Measure(old.shape, before));
    if (old.dtype == buffer.dtype &&
        SpanElements(extent.sizes, extent.strides) <= SpanElements(before.sizes, before.strides)) {
      TakeOver(taken, true, slot);
      return absl::OkStatus();
    }
    // Another element type: give it storage of its own; the old one is read by the next step.
    kept_.push_back(std::exchange(taken.tensor, nullptr));
  }
  KILN_ASSIGN_OR_RETURN(slot.tensor, host_.Empty(buffer.dtype, extent.sizes, extent.strides));
  return SetData(slot);
}

// A handle is expensive to make, and kernels need none: one of the new layout is made where it is asked
// for.
void CallFrame::TakeOver(Slot& from, bool other_layout, Slot& to) {
  to = {std::exchange(from.tensor, nullptr), from.data, nullptr, from.other_layout || other_layout};
}

// Stores a reference of our own as buffer `index`, in the declared layout, and beside a GPU there: but what
// `call` gives to stay on the CPU, where no kernel reads it.
absl::Status CallFrame::Fill(uint32_t index, Tensor tensor, const Program::CallStep* call, size_t result) {
  const Program::Buffer& buffer = program_.buffers_[index];
  Slot& slot = slots_[index];
  slot.tensor = tensor;
  Extent extent;
  KILN_RETURN_IF_ERROR(sizes_.Measure(buffer.shape, extent));
  KILN_ASSIGN_OR_RETURN(absl::Span<const int64_t> sizes, host_.Sizes(tensor));
  if (!SameSizes(sizes, extent.sizes)) {
    return Contradiction(absl::StrCat("gave sizes [", absl::StrJoin(sizes, ", "), "]"),
                         absl::StrCat("[", absl::StrJoin(extent.sizes, ", "), "]"));
  }
  KILN_ASSIGN_OR_RETURN(v1::DType dtype, host_.Type(tensor));
  if (dtype != buffer.dtype) {
    return Contradiction(absl::StrCat("gave ", v1::DType_Name(dtype)), v1::DType_Name(buffer.dtype));
  }
  KILN_ASSIGN_OR_RETURN(const Host::Place place, host_.PlaceOf(tensor));
  if (place == Host::Place::kElsewhere) return Contradiction("gave a tensor on another device", "one here");
  KILN_ASSIGN_OR_RETURN(absl::Span<const int64_t> strides, host_.Strides(tensor));
  const bool moves = place == Host::Place::kOnCpu &&
                     (call == nullptr || buffer.in_kernels || !host_.StaysOnCpu(call->target, result));
  if (moves || !SameStrides(extent.sizes, strides, extent.strides)) {
    KILN_ASSIGN_OR_RETURN(Tensor copy, CopyOf(tensor, buffer.dtype, extent));
    Drop(slot.tensor);
    slot.tensor = copy;
  }
  KILN_RETURN_IF_ERROR(SetData(slot));
  if (slot.data == nullptr && SpanElements(extent.sizes, extent.strides) > 0)
    return Contradiction("gave a tensor without memory", "one with");
  return absl::OkStatus();
}

// A new reference to a view, over the storage of its root.
absl::StatusOr<Tensor> CallFrame::NewView(uint32_t index) const {
  int64_t offset = 0;
  uint32_t root = index;
  while (program_.buffers_[root].kind == v1::ProgramBuffer::VIEW) {
    KILN_ASSIGN_OR_RETURN(int64_t step, sizes_.Number(program_.buffers_[root].offset));
    offset += step;
    root = program_.buffers_[root].base;
  }
  const Program::Buffer& buffer = program_.buffers_[index];
  if (program_.buffers_[root].dtype != buffer.dtype) {
    return absl::UnimplementedError("a view with another dtype than its base leaves the program");
  }
  Extent extent;
  KILN_RETURN_IF_ERROR(sizes_.Measure(buffer.shape, extent));
  if (slots_[root].tensor == nullptr) {
    char* data = static_cast<char*>(slots_[root].data) + offset * buffer.element;
    return host_.Over(data, buffer.dtype, extent.sizes, extent.strides);
  }
  return host_.View(slots_[root].tensor, extent.sizes, extent.strides, offset);
}

// The memory of a step as far as it is known before it runs.
std::vector<MemoryRange> CallFrame::Touched(const Program::Step& step) {
  std::vector<MemoryRange> ranges;
  if (const auto* launch = std::get_if<Program::LaunchAt>(&step)) {
    AddRanges(program_.steps_.launches[launch->index], ranges);
  } else if (const auto* group = std::get_if<Program::GroupStep>(&step)) {
    for (const Program::LaunchStep& member : program_.steps_.Members(*group)) AddRanges(member, ranges);
  }
  const auto* at = std::get_if<Program::CallAt>(&step);
  if (at == nullptr || !program_.steps_.calls[at->index].in_memory) return ranges;
  const Program::CallStep& call = program_.steps_.calls[at->index];
  for (const Program::CallArgument& argument : call.arguments) {
    for (const int64_t buffer : argument.buffers) AddRange(buffer, false, ranges);
  }
  if (call.into) {
    for (const int64_t buffer : call.results) AddRange(buffer, true, ranges);
  }
  return ranges;
}

void CallFrame::AddRanges(const Program::LaunchStep& launch, std::vector<MemoryRange>& ranges) const {
  const KernelRunner& kernel = *program_.kernels_[launch.kernel];
  for (size_t k = 0; k < launch.buffers.size(); ++k) AddRange(launch.buffers[k], kernel.Stores(k), ranges);
}

// The bytes of a buffer and of all that it is a view of: a store may go beyond the view, into padding. What
// has no memory yet is left out.
void CallFrame::AddRange(int64_t index, bool written, std::vector<MemoryRange>& ranges) const {
  const char *first = nullptr, *last = nullptr;
  while (index >= 0) {
    Extent extent;
    const absl::StatusOr<TensorMemory> memory = MemoryOf(static_cast<uint32_t>(index), extent);
    if (memory.ok() && memory->data != nullptr) {
      const MemoryRange range = RangeOf(*memory, written);
      const char* const data = static_cast<const char*>(range.data);
      first = first == nullptr ? data : std::min(first, data);
      last = last == nullptr ? data + range.bytes : std::max(last, data + range.bytes);
    }
    const Program::Buffer& buffer = program_.buffers_[index];
    index = buffer.kind == v1::ProgramBuffer::VIEW ? int64_t{buffer.base} : -1;
  }
  if (first != nullptr) ranges.push_back({first, last - first, written});
}

absl::Status CallFrame::Launch(const Program::LaunchStep& launch) {
  std::array<void*, kKernelBuffersMax> buffers;  // each is set before it is read
  LaunchMember member;
  Dims symbols;
  KILN_RETURN_IF_ERROR(sizes_.Numbers(launch.symbols, symbols));
  KILN_RETURN_IF_ERROR(SetMember(launch, buffers.data(), symbols.data(), member));
  int64_t bytes = 0;
  if (!call_.on_gpu()) {
    KILN_ASSIGN_OR_RETURN(bytes, OperandBytes(launch));
  }
  return Launch(launch.kernel, {&member, 1}, bytes);
}

absl::Status CallFrame::Launch(uint32_t kernel, absl::Span<LaunchMember> members, int64_t bytes) {
  KILN_ASSIGN_OR_RETURN(const uint64_t launches,
                        RunLaunch(*program_.kernels_[kernel], members, bytes, host_, call_));
  launches_ += launches;
  return absl::OkStatus();
}

absl::Status CallFrame::LaunchGroup(const Program::GroupStep& group) {
  const absl::Span<const Program::LaunchStep> members = program_.steps_.Members(group);
  std::vector<LaunchMember> run(members.size());
  std::vector<Dims> symbols(members.size());
  size_t count = 0;
  for (const Program::LaunchStep& member : members) count += member.buffers.size();
  std::vector<void*> buffers(count);
  int64_t bytes = std::max<int64_t>(group.fixed_bytes, 0);
  void** data = buffers.data();
  for (size_t i = 0; i < members.size(); ++i) {
    KILN_RETURN_IF_ERROR(sizes_.Numbers(members[i].symbols, symbols[i]));
    KILN_RETURN_IF_ERROR(SetMember(members[i], data, symbols[i].data(), run[i]));
    data += members[i].buffers.size();
    if (call_.on_gpu() || group.fixed_bytes >= 0) continue;
    KILN_ASSIGN_OR_RETURN(const int64_t own, OperandBytes(members[i]));
    bytes += own;
  }
  if (members.empty()) return absl::OkStatus();
  return Launch(members.front().kernel, absl::MakeSpan(run), bytes);
}

absl::Status CallFrame::SetMember(const Program::LaunchStep& launch, void** buffers, const int64_t* symbols,
                                  LaunchMember& member) const {
  KILN_ASSIGN_OR_RETURN(member.units, sizes_.Number(launch.units));
  for (size_t k = 0; k < launch.buffers.size(); ++k) {
    KILN_ASSIGN_OR_RETURN(buffers[k], DataOf(launch.buffers[k]));
  }
  member.args.buffer_count = static_cast<uint32_t>(launch.buffers.size());
  member.args.buffers = buffers;
  member.args.symbols = symbols;
  return absl::OkStatus();
}

// The bytes that a launch's operands span, by which the CPU chooses its number of threads.
absl::StatusOr<int64_t> CallFrame::OperandBytes(const Program::LaunchStep& launch) const {
  if (launch.fixed_bytes >= 0) return launch.fixed_bytes;
  int64_t bytes = 0;
  for (uint32_t index : launch.buffers) {
    const Program::Buffer& buffer = program_.buffers_[index];
    Extent extent;
    KILN_RETURN_IF_ERROR(sizes_.Measure(buffer.shape, extent));
    bytes += SpanElements(extent.sizes, extent.strides) * buffer.element;
  }
  return bytes;
}

absl::StatusOr<int64_t> CallFrame::ValueOf(const Program::LetStep& step) {
  if (step.number) return sizes_.Number(*step.number);
  if (call_.on_gpu()) {
    KILN_RETURN_IF_ERROR(Fence());
    KILN_ASSIGN_OR_RETURN(const Tensor item, Get(step.item));
    return host_.Item(item);
  }
  KILN_ASSIGN_OR_RETURN(void* data, DataOf(step.item));
  const v1::DType dtype = program_.buffers_[step.item].dtype;
  if (!IsInteger(dtype) && dtype != v1::BOOL) {
    return absl::UnimplementedError("a symbol from a floating point tensor");
  }
  return LoadScalar(dtype, data, 0).i;
}

absl::Status CallFrame::Finish(std::vector<Value>& outputs) {
  outputs.clear();
  outputs.reserve(program_.outputs_.size());
  for (const Program::Output& output : program_.outputs_) {
    Value value;
    if (output.kind == Program::Output::kNumber) {
      value.is_number = true;
      KILN_ASSIGN_OR_RETURN(value.number, sizes_.Number(output.number));
    } else if (output.kind == Program::Output::kBuffer) {
      if (NeedsView(output.buffer)) {
        KILN_ASSIGN_OR_RETURN(value.tensor, NewView(output.buffer));
      } else {
        // An input that comes out is the caller's tensor, whatever its layout; a view of a copy that
        // stands in for one holds the right values, in memory of its own.
        Slot& slot = slots_[output.buffer];
        if (output.last && slot.caller == nullptr) {
          value.tensor = std::exchange(slot.tensor, nullptr);
        } else {
          KILN_ASSIGN_OR_RETURN(value.tensor,
                                host_.Share(slot.caller != nullptr ? slot.caller : slot.tensor));
        }
      }
    }
    outputs.push_back(value);
  }
  return absl::OkStatus();
}

}  // namespace kiln::runtime
