#include "client/runtime/program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/runtime/launch.h"
#include "client/runtime/memory_range.h"
#include "client/runtime/span.h"
#include "compiler/graph/dtypes.h"
#include "compiler/ir/scalar_ops.h"
#include "compiler/support/limits.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

using Dims = absl::InlinedVector<int64_t, 6>;

bool SameSizes(absl::Span<const int64_t> a, absl::Span<const int64_t> b) { return a == b; }

bool SameStrides(absl::Span<const int64_t> sizes, absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
  bool same = true;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return true;
    if (sizes[d] > 1 && a[d] != b[d]) same = false;
  }
  return same;
}

// A library call's result is not what the graph was compiled for.
absl::Status Contradiction(absl::string_view gave, absl::string_view declared) {
  absl::Status status = absl::InternalError(absl::StrCat(gave, " where ", declared, " was declared"));
  status.SetPayload(kContradictionPayload, absl::Cord());
  return status;
}

}  // namespace

// The state of one call.
class Frame {
 public:
  explicit Frame(const Program& program)
      : program_(program), host_(*program.host_), slots_(program.buffers_.size()) {
    if (!program.calls_.empty()) scratch_ = program.TakeScratch();
  }

  ~Frame() {
    order_.reset();  // before any memory is given back
    for (Slot& slot : slots_) Drop(slot.tensor);
    for (Tensor& tensor : kept_) Drop(tensor);
    for (InputCopy& written : input_copies_) Drop(written.copy);
    for (Tensor& tensor : temporaries_) Drop(tensor);
    for (CallContext::Kept& kept : call_.scratch) Drop(kept.tensor);
    Drop(arena_);  // after all that lie in it
    if (scratch_ != nullptr) program_.GiveScratch(std::move(scratch_));
    program_.counts_->launches.fetch_add(launches_, std::memory_order_relaxed);
    program_.counts_->library_calls.fetch_add(library_calls_, std::memory_order_relaxed);
  }

  absl::Status Bind(absl::Span<const Value> inputs) {
    // Take over every reference first, so that an error leaks none.
    if (inputs.size() != program_.inputs_.size()) {
      for (const Value& value : inputs) kept_.push_back(value.tensor);
      return absl::FailedPreconditionError(
          absl::StrCat("the program takes ", program_.inputs_.size(), " inputs, not ", inputs.size()));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      const uint32_t buffer = program_.inputs_[i].buffer;
      if (buffer != UINT32_MAX) {
        slots_[buffer].tensor = inputs[i].tensor;
      } else if (inputs[i].tensor != nullptr) {
        kept_.push_back(inputs[i].tensor);
      }
      if (program_.inputs_[i].is_tensor == (inputs[i].tensor == nullptr)) {
        bad_input_ = static_cast<int64_t>(i);
      }
    }
    if (bad_input_ >= 0) {
      return absl::FailedPreconditionError(absl::StrCat("input ", bad_input_, " is of the wrong kind"));
    }
    KILN_ASSIGN_OR_RETURN(call_, host_.Begin());
    call_.tuned = program_.tuned_.get();
    call_.tuned_convolutions = program_.tuned_convolutions_.get();
    program_.exprs_.Start(exprs_);
    for (const Program::Binding& binding : program_.bindings_) {
      const Value& value = inputs[binding.input];
      int64_t& symbol = exprs_.symbols[binding.symbol];
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
    for (const Program::Binding& binding : program_.bindings_)
      KILN_RETURN_IF_ERROR(SetSymbol(binding.symbol, exprs_.symbols[binding.symbol]));
    program_.exprs_.Evaluate(0, exprs_);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].tensor != nullptr) KILN_RETURN_IF_ERROR(CheckInput(i, inputs[i].tensor));
    }
    return absl::OkStatus();
  }

  absl::Status Execute() {
    KILN_RETURN_IF_ERROR(MakeArena());
    if (call_.recorded && (capture_ = host_.NewCapture(call_)) != nullptr) {
      order_ = std::make_unique<CaptureDependencies>(*capture_);
      call_.order = order_.get();
    }
    StepTimes* const times = StepTimes::On() ? program_.times_.get() : nullptr;
    for (size_t i = 0; i < program_.steps_.size(); ++i) {
      const Program::Step& step = program_.steps_[i];
      const StepTimer timer(times, i);
      const bool recorded = order_ != nullptr && Records(step.kind);
      if (recorded) KILN_RETURN_IF_ERROR(order_->Begin(Touched(step)));
      switch (step.kind) {
        case v1::Step::kAlloc: KILN_RETURN_IF_ERROR(Alloc(step)); break;
        case v1::Step::kFree: Drop(slots_[step.a].tensor); break;
        case v1::Step::kLaunch: KILN_RETURN_IF_ERROR(Launch(program_.launches_[step.index])); break;
        case v1::Step::kLaunchGroup: KILN_RETURN_IF_ERROR(LaunchGroup(program_.groups_[step.index])); break;
        case v1::Step::kCall: KILN_RETURN_IF_ERROR(Call(step.index, i)); break;
        case v1::Step::kLet:
          KILN_RETURN_IF_ERROR(Let(step));
          program_.exprs_.Evaluate(i + 1, exprs_);
          break;
        case v1::Step::kCheck: KILN_RETURN_IF_ERROR(Check(step)); break;
        case v1::Step::kView: break;  // views are made where they are used
        case v1::Step::kSeeds: {
          KILN_RETURN_IF_ERROR(Fence());
          KILN_ASSIGN_OR_RETURN(Tensor seeds, host_.Seeds(step.b));
          KILN_RETURN_IF_ERROR(Fill(step.a, seeds));
          break;
        }
        default: return absl::InternalError("unknown step");
      }
      if (recorded) KILN_RETURN_IF_ERROR(order_->End());
      // The time of a step is its work's, not that of launching it.
      if (times != nullptr && !call_.recorded) KILN_RETURN_IF_ERROR(host_.Wait(call_));
    }
    return Fence();
  }

  // What the steps stored to copies of inputs belongs into the inputs. Not reached when a step fails.
  absl::Status CopyBack() {
    for (const InputCopy& written : input_copies_) {
      program_.counts_->stride_copies.fetch_add(1, std::memory_order_relaxed);
      KILN_RETURN_IF_ERROR(host_.Copy(written.input, written.copy));
    }
    return absl::OkStatus();
  }

  absl::Status Finish(std::vector<Value>& outputs) {
    outputs.clear();
    outputs.reserve(program_.outputs_.size());
    for (const Program::Output& output : program_.outputs_) {
      Value value;
      if (output.kind == Program::Output::kNumber) {
        value.is_number = true;
        KILN_ASSIGN_OR_RETURN(value.number, Number(output.number));
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

 private:
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

  void Drop(Tensor& tensor) {
    if (tensor != nullptr) host_.Release(tensor);
    tensor = nullptr;
  }

  absl::StatusOr<int64_t> Number(const Dim& dim) const {
    if (dim.expr < 0) return dim.value;
    const ExprValue& value = exprs_.exprs[dim.expr];
    if (!value.valid) return absl::FailedPreconditionError("a size overflows or divides by zero");
    return value.value;
  }

  absl::Status Evaluate(const std::vector<Dim>& dims, Dims& values) const {
    values.clear();
    for (const Dim& dim : dims) {
      KILN_ASSIGN_OR_RETURN(int64_t value, Number(dim));
      values.push_back(value);
    }
    return absl::OkStatus();
  }

  // Sizes and strides of `shape` now; points into the shape or into the two scratch vectors.
  struct Extent {
    absl::Span<const int64_t> sizes;
    absl::Span<const int64_t> strides;
    Dims size_values;
    Dims stride_values;
  };
  absl::Status Measure(const Program::Shape& shape, Extent& extent) const {
    if (shape.fixed) {
      extent.sizes = shape.fixed_sizes;
      extent.strides = shape.fixed_strides;
      return absl::OkStatus();
    }
    KILN_RETURN_IF_ERROR(Evaluate(shape.sizes, extent.size_values));
    KILN_RETURN_IF_ERROR(Evaluate(shape.strides, extent.stride_values));
    extent.sizes = extent.size_values;
    extent.strides = extent.stride_values;
    return absl::OkStatus();
  }

  absl::Status WrongInput(size_t input, absl::Span<const int64_t> sizes) const {
    return absl::FailedPreconditionError(absl::StrCat(
        "input ", input, " has sizes [", absl::StrJoin(sizes, ", "), "], not those compiled for"));
  }

  // Kernels trust sizes and strides, so each input is compared with what was compiled for.
  absl::Status CheckInput(size_t index, Tensor tensor) {
    const Program::Input& input = program_.inputs_[index];
    Extent extent;
    KILN_RETURN_IF_ERROR(Measure(input.shape, extent));
    KILN_ASSIGN_OR_RETURN(absl::Span<const int64_t> sizes, host_.Sizes(tensor));
    if (!SameSizes(sizes, extent.sizes)) return WrongInput(index, sizes);
    KILN_ASSIGN_OR_RETURN(v1::DType dtype, host_.Type(tensor));
    // Dynamo traces a number that Python draws anew in each call as F32, and passes it as F64.
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

  absl::Status SetData(Slot& slot) {
    KILN_ASSIGN_OR_RETURN(slot.data, host_.Data(slot.tensor));
    return absl::OkStatus();
  }

  absl::StatusOr<Tensor> CopyOf(Tensor tensor, v1::DType dtype, const Extent& extent) {
    program_.counts_->stride_copies.fetch_add(1, std::memory_order_relaxed);
    KILN_ASSIGN_OR_RETURN(Tensor copy, host_.Empty(dtype, extent.sizes, extent.strides));
    absl::Status status = Fence();
    if (status.ok()) {
      status = IsExpanded(extent) ? CopyExpanded(copy, tensor, dtype, extent) : host_.Copy(copy, tensor);
    }
    if (!status.ok()) {
      host_.Release(copy);
      return status;
    }
    return copy;
  }

  static bool IsExpanded(const Extent& extent) {
    for (size_t d = 0; d < extent.sizes.size(); ++d) {
      if (extent.sizes[d] > 1 && extent.strides[d] == 0) return true;
    }
    return false;
  }

  // Elements that share memory are written once, from the first of them. By way of a dense tensor, since a
  // view of `from` would not show what it is the conjugate or the negative of.
  absl::Status CopyExpanded(Tensor to, Tensor from, v1::DType dtype, const Extent& extent) {
    std::vector<int64_t> dense_strides(extent.sizes.size()), sizes(extent.sizes.begin(), extent.sizes.end());
    int64_t stride = 1;
    for (size_t d = sizes.size(); d-- > 0; stride *= extent.sizes[d]) {
      dense_strides[d] = stride;
      if (extent.strides[d] == 0) sizes[d] = std::min<int64_t>(sizes[d], 1);
    }
    std::array<Tensor, 3> made = {};  // dense, one of each element there, one of each element of `to`
    absl::Status status = [&]() -> absl::Status {
      KILN_ASSIGN_OR_RETURN(made[0], host_.Empty(dtype, extent.sizes, dense_strides));
      KILN_RETURN_IF_ERROR(host_.Copy(made[0], from));
      KILN_ASSIGN_OR_RETURN(made[1], host_.View(made[0], sizes, dense_strides, 0));
      KILN_ASSIGN_OR_RETURN(made[2], host_.View(to, sizes, extent.strides, 0));
      return host_.Copy(made[2], made[1]);
    }();
    for (Tensor tensor : made) {
      if (tensor != nullptr) host_.Release(tensor);
    }
    return status;
  }

  absl::Status MakeArena() {
    if (program_.arena_plan_.empty()) return absl::OkStatus();
    // Temporaries of one place would wait for each other in the graph, and allocations are made once.
    if (call_.recorded) return absl::OkStatus();
    places_ = program_.arena_plan_.For(exprs_);
    if (places_ == nullptr) return absl::OkStatus();
    const int64_t size = places_->bytes, stride = 1;
    KILN_ASSIGN_OR_RETURN(arena_, host_.Empty(v1::U8, {&size, 1}, {&stride, 1}));
    KILN_ASSIGN_OR_RETURN(void* data, host_.Data(arena_));
    arena_data_ = static_cast<char*>(data);
    return absl::OkStatus();
  }

  int64_t OffsetInArena(uint32_t buffer) const {
    const int32_t place = program_.where_[buffer].arena;
    return place < 0 || places_ == nullptr ? Arena::kApart : places_->offsets[place];
  }

  absl::Status Alloc(const Program::Step& step) {
    Slot& slot = slots_[step.a];
    if (const int64_t offset = OffsetInArena(step.a); offset != Arena::kApart) {
      if (step.b >= 0) Drop(slots_[step.b].tensor);  // of the same place
      slot.data = arena_data_ + offset;
      return absl::OkStatus();
    }
    if (step.moves) {
      TakeOver(slots_[step.b], false, slot);
      return absl::OkStatus();
    }
    const Program::Buffer& buffer = program_.buffers_[step.a];
    Extent extent;
    KILN_RETURN_IF_ERROR(Measure(buffer.shape, extent));
    if (step.b >= 0) {
      const Program::Buffer& old = program_.buffers_[step.b];
      Slot& taken = slots_[step.b];
      Extent before;
      KILN_RETURN_IF_ERROR(Measure(old.shape, before));
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
  void TakeOver(Slot& from, bool other_layout, Slot& to) {
    to = {std::exchange(from.tensor, nullptr), from.data, nullptr, from.other_layout || other_layout};
  }

  // Stores a reference of our own as buffer `index`, in the declared layout, and beside a GPU there: but what
  // `call` gives to stay on the CPU, where no kernel reads it.
  absl::Status Fill(uint32_t index, Tensor tensor, const Program::CallStep* call = nullptr,
                    size_t result = 0) {
    const Program::Buffer& buffer = program_.buffers_[index];
    Slot& slot = slots_[index];
    slot.tensor = tensor;
    Extent extent;
    KILN_RETURN_IF_ERROR(Measure(buffer.shape, extent));
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

  absl::StatusOr<void*> DataOf(uint32_t index) const {
    const Program::Place& place = program_.where_[index];
    if (place.fixed) return static_cast<void*>(static_cast<char*>(slots_[place.root].data) + place.bytes);
    const Program::Buffer& buffer = program_.buffers_[index];
    KILN_ASSIGN_OR_RETURN(void* base, DataOf(buffer.base));
    KILN_ASSIGN_OR_RETURN(int64_t offset, Number(buffer.offset));
    // The offset counts in the view's elements.
    return static_cast<void*>(static_cast<char*>(base) + offset * buffer.element);
  }

  // A new reference to a view, over the storage of its root.
  absl::StatusOr<Tensor> NewView(uint32_t index) const {
    int64_t offset = 0;
    uint32_t root = index;
    while (program_.buffers_[root].kind == v1::ProgramBuffer::VIEW) {
      KILN_ASSIGN_OR_RETURN(int64_t step, Number(program_.buffers_[root].offset));
      offset += step;
      root = program_.buffers_[root].base;
    }
    const Program::Buffer& buffer = program_.buffers_[index];
    if (program_.buffers_[root].dtype != buffer.dtype) {
      return absl::UnimplementedError("a view with another dtype than its base leaves the program");
    }
    Extent extent;
    KILN_RETURN_IF_ERROR(Measure(buffer.shape, extent));
    if (slots_[root].tensor == nullptr) {
      char* data = static_cast<char*>(slots_[root].data) + offset * buffer.element;
      return host_.Over(data, buffer.dtype, extent.sizes, extent.strides);
    }
    return host_.View(slots_[root].tensor, extent.sizes, extent.strides, offset);
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

  // What is recorded now waits for all before it; of a call that is not recorded nothing.
  absl::Status Fence() { return order_ == nullptr ? absl::OkStatus() : order_->Fence(); }

  static bool Records(v1::Step::KindCase kind) {
    return kind == v1::Step::kLaunch || kind == v1::Step::kLaunchGroup || kind == v1::Step::kCall ||
           kind == v1::Step::kSeeds;
  }

  // The memory of a step as far as it is known before it runs.
  std::vector<MemoryRange> Touched(const Program::Step& step) {
    std::vector<MemoryRange> ranges;
    if (step.kind == v1::Step::kLaunch) {
      AddRanges(program_.launches_[step.index], ranges);
    } else if (step.kind == v1::Step::kLaunchGroup) {
      for (const Program::LaunchStep& member : Members(program_.groups_[step.index]))
        AddRanges(member, ranges);
    } else if (step.kind == v1::Step::kCall && program_.calls_[step.index].in_memory) {
      const Program::CallStep& call = program_.calls_[step.index];
      for (const Program::CallArgument& argument : call.arguments) {
        for (const int64_t buffer : argument.buffers) AddRange(buffer, false, ranges);
      }
      if (call.into) {
        for (const int64_t buffer : call.results) AddRange(buffer, true, ranges);
      }
    }
    return ranges;
  }

  void AddRanges(const Program::LaunchStep& launch, std::vector<MemoryRange>& ranges) const {
    const KernelRunner& kernel = *program_.kernels_[launch.kernel];
    for (size_t k = 0; k < launch.buffers.size(); ++k) AddRange(launch.buffers[k], kernel.Stores(k), ranges);
  }

  // From the first to the last of a view and of all that it is a view of: what is stored may lie beside the
  // view, in room for padding. What has no memory yet is no part of it.
  void AddRange(int64_t index, bool written, std::vector<MemoryRange>& ranges) const {
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

  // The bytes that a launch's operands span, by which the CPU chooses its number of threads.
  absl::StatusOr<int64_t> OperandBytes(const Program::LaunchStep& launch) const {
    if (launch.fixed_bytes >= 0) return launch.fixed_bytes;
    int64_t bytes = 0;
    for (uint32_t index : launch.buffers) {
      const Program::Buffer& buffer = program_.buffers_[index];
      Extent extent;
      KILN_RETURN_IF_ERROR(Measure(buffer.shape, extent));
      bytes += SpanElements(extent.sizes, extent.strides) * buffer.element;
    }
    return bytes;
  }

  absl::Status Launch(const Program::LaunchStep& launch) {
    std::array<void*, kKernelBuffersMax> buffers;  // each is set before it is read
    LaunchMember member;
    Dims symbols;
    KILN_RETURN_IF_ERROR(Evaluate(launch.symbols, symbols));
    KILN_RETURN_IF_ERROR(SetMember(launch, buffers.data(), symbols.data(), member));
    int64_t bytes = 0;
    if (!call_.on_gpu()) {
      KILN_ASSIGN_OR_RETURN(bytes, OperandBytes(launch));
    }
    return Launch(launch.kernel, {&member, 1}, bytes);
  }

  absl::Status LaunchGroup(const Program::GroupStep& group) {
    const absl::Span<const Program::LaunchStep> members = Members(group);
    std::vector<LaunchMember> run(members.size());
    std::vector<Dims> symbols(members.size());
    size_t count = 0;
    for (const Program::LaunchStep& member : members) count += member.buffers.size();
    std::vector<void*> buffers(count);
    int64_t bytes = std::max<int64_t>(group.fixed_bytes, 0);
    void** data = buffers.data();
    for (size_t i = 0; i < members.size(); ++i) {
      KILN_RETURN_IF_ERROR(Evaluate(members[i].symbols, symbols[i]));
      KILN_RETURN_IF_ERROR(SetMember(members[i], data, symbols[i].data(), run[i]));
      data += members[i].buffers.size();
      if (call_.on_gpu() || group.fixed_bytes >= 0) continue;
      KILN_ASSIGN_OR_RETURN(const int64_t own, OperandBytes(members[i]));
      bytes += own;
    }
    if (members.empty()) return absl::OkStatus();
    return Launch(members.front().kernel, absl::MakeSpan(run), bytes);
  }

  absl::Span<const Program::LaunchStep> Members(const Program::GroupStep& group) const {
    return absl::MakeConstSpan(program_.launches_).subspan(group.first, group.count);
  }

  absl::Status SetMember(const Program::LaunchStep& launch, void** buffers, const int64_t* symbols,
                         LaunchMember& member) const {
    KILN_ASSIGN_OR_RETURN(member.units, Number(launch.units));
    for (size_t k = 0; k < launch.buffers.size(); ++k) {
      KILN_ASSIGN_OR_RETURN(buffers[k], DataOf(launch.buffers[k]));
    }
    member.args.buffer_count = static_cast<uint32_t>(launch.buffers.size());
    member.args.buffers = buffers;
    member.args.symbols = symbols;
    return absl::OkStatus();
  }

  absl::Status Launch(uint32_t kernel, absl::Span<LaunchMember> members, int64_t bytes) {
    KILN_ASSIGN_OR_RETURN(const uint64_t launches,
                          RunLaunch(*program_.kernels_[kernel], members, bytes, host_, call_));
    launches_ += launches;
    return absl::OkStatus();
  }

  absl::Status Call(size_t index, size_t step) {
    const Program::CallStep& call = program_.calls_[index];
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
      program_.exprs_.Evaluate(step + 1, exprs_);
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
  absl::StatusOr<bool> CallFixed(const Program::CallStep& call, Program::CallState& state) {
    for (const Program::Operand& operand : call.operands) {
      KILN_ASSIGN_OR_RETURN(state.values[operand.argument].memory.data, DataOf(operand.buffer));
    }
    for (size_t i = 0; call.into && i < state.declared.size(); ++i) {
      KILN_ASSIGN_OR_RETURN(state.declared[i].data, DataOf(static_cast<uint32_t>(call.results[i])));
    }
    return CallInMemory(call, state);
  }

  // The same, of sizes of this call.
  absl::StatusOr<bool> CallMeasured(const Program::CallStep& call, Program::CallState& state) {
    std::array<Extent, Program::kMemoryOperandsMax> extents;
    size_t used = 0;
    for (const Program::Operand& operand : call.operands) {
      KILN_ASSIGN_OR_RETURN(state.values[operand.argument].memory, MemoryOf(operand.buffer, extents[used++]));
    }
    for (size_t i = 0; i < state.values.size(); ++i) {
      if (state.values[i].kind == v1::Argument::kAsTensor) continue;
      KILN_RETURN_IF_ERROR(ResolveNumbers(call.arguments[i], state.values[i]));
    }
    for (size_t i = 0; i < state.declared.size(); ++i) {
      if (call.results[i] < 0) continue;
      KILN_ASSIGN_OR_RETURN(state.declared[i], MemoryOf(call.results[i], extents[used++], call.into));
    }
    return CallInMemory(call, state);
  }

  // With all of the state set.
  absl::StatusOr<bool> CallInMemory(const Program::CallStep& call, Program::CallState& state) {
    std::array<Tensor, Program::kMemoryResultsMax> made = {};
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

  // Without an address where the buffer is yet to be made.
  absl::StatusOr<TensorMemory> MemoryOf(uint32_t index, Extent& extent, bool exists = true) const {
    const Program::Buffer& buffer = program_.buffers_[index];
    KILN_RETURN_IF_ERROR(Measure(buffer.shape, extent));
    TensorMemory memory{nullptr, buffer.dtype, extent.sizes, extent.strides};
    if (exists) {
      KILN_ASSIGN_OR_RETURN(memory.data, DataOf(index));
    }
    return memory;
  }

  // Sets what changes from call to call; `value` has the rest already.
  absl::Status Resolve(const Program::CallArgument& argument, CallValue& value) {
    if (value.kind == v1::Argument::kAsTensor) {
      KILN_ASSIGN_OR_RETURN(value.tensor, Get(argument.buffers[0]));
      return absl::OkStatus();
    }
    for (size_t i = 0; i < argument.buffers.size(); ++i) {
      if (argument.buffers[i] < 0) continue;
      KILN_ASSIGN_OR_RETURN(value.tensors[i], Get(argument.buffers[i]));
    }
    return ResolveNumbers(argument, value);
  }

  absl::Status ResolveNumbers(const Program::CallArgument& argument, CallValue& value) const {
    if (value.kind == v1::Argument::kAsInt && !argument.dims.empty()) {
      KILN_ASSIGN_OR_RETURN(value.number, Number(argument.dims[0]));
      return absl::OkStatus();
    }
    for (size_t i = 0; i < argument.dims.size(); ++i) {
      KILN_ASSIGN_OR_RETURN(value.numbers[i], Number(argument.dims[i]));
    }
    return absl::OkStatus();
  }

  // The compiler relies on an unbacked symbol's range, which nobody but the call can check.
  absl::Status SetSymbol(uint32_t symbol, int64_t value) {
    exprs_.symbols[symbol] = value;
    const Program::Range& range = program_.ranges_[symbol];
    if (range.min <= value && value <= range.max) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("Runtime assertion failed: a number that the graph computes is ", value,
                     range.max == INT64_MAX ? absl::StrCat(", less than ", range.min)
                                            : absl::StrCat(", not from ", range.min, " to ", range.max)));
  }

  // What only a call's results tell.
  absl::Status SetSizes(const Program::CallStep& call, absl::Span<const Tensor> results) {
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
      KILN_RETURN_IF_ERROR(SetSymbol(bind.symbol(), sizes[bind.dim()]));
    }
    return absl::OkStatus();
  }

  absl::Status Let(const Program::Step& step) {
    KILN_ASSIGN_OR_RETURN(const int64_t value, LetValue(step));
    return SetSymbol(step.a, value);
  }

  absl::StatusOr<int64_t> LetValue(const Program::Step& step) {
    if (step.from_expr) return Number(step.dim);
    if (call_.on_gpu()) {
      KILN_RETURN_IF_ERROR(Fence());
      KILN_ASSIGN_OR_RETURN(const Tensor item, Get(static_cast<uint32_t>(step.b)));
      return host_.Item(item);
    }
    KILN_ASSIGN_OR_RETURN(void* data, DataOf(step.b));
    const v1::DType dtype = program_.buffers_[step.b].dtype;
    if (!IsInteger(dtype) && dtype != v1::BOOL) {
      return absl::UnimplementedError("a symbol from a floating point tensor");
    }
    return LoadScalar(dtype, data, 0).i;
  }

  absl::Status Check(const Program::Step& step) const {
    KILN_ASSIGN_OR_RETURN(int64_t holds, Number(step.dim));
    return holds != 0 ? absl::OkStatus() : absl::FailedPreconditionError(step.message);
  }

  const Program& program_;
  Host& host_;
  ExprFrame exprs_;
  std::vector<Slot> slots_;
  std::vector<Tensor> kept_;             // released when the call ends
  std::vector<InputCopy> input_copies_;  // of inputs that the program writes, in the order of the inputs
  Tensor arena_ = nullptr;               // memory of the buffers that have no tensor
  char* arena_data_ = nullptr;
  std::shared_ptr<const Arena> places_;  // in it; none where each buffer has a tensor of its own
  std::vector<Tensor> temporaries_;      // views made for the running call
  std::unique_ptr<Program::Scratch> scratch_;
  CallContext call_;
  std::unique_ptr<Capture> capture_;  // of a call that is recorded
  std::unique_ptr<CaptureDependencies> order_;
  uint64_t launches_ = 0;
  uint64_t library_calls_ = 0;
  int64_t bad_input_ = -1;
};

absl::Status Program::Run(absl::Span<const Value> inputs, std::vector<Value>& outputs) const {
  counts_->calls.fetch_add(1, std::memory_order_relaxed);
  Frame frame(*this);
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

}  // namespace kiln::runtime
