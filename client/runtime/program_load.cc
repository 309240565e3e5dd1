// Program::Load: from the message to checked, compact steps, and to what a call writes of them.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client_limits.h"
#include "client/runtime/arena_plan.h"
#include "client/runtime/program.h"
#include "client/runtime/span.h"
#include "compiler/graph/dtypes.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

constexpr int64_t kGpuArenaBytesMax = int64_t{4} << 20;  // of one temporary

absl::Status AtMost(size_t limit, int count, absl::string_view what) {
  if (static_cast<size_t>(count) <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(count, " ", what, ", limit ", limit));
}

}  // namespace

class ProgramLoader {
 public:
  ProgramLoader(const v1::Program& from, Program& to, size_t kernels)
      : from_(from), to_(to), kernels_(kernels) {}

  absl::Status Load() {
    if (from_.format_version() != kProgramFormatVersion) {
      return absl::UnimplementedError(
          absl::StrCat("program format ", from_.format_version(), " is not known"));
    }
    KILN_ASSIGN_OR_RETURN(to_.symbols_.exprs, ExprProgram::Load(from_));
    KILN_RETURN_IF_ERROR(Inputs());
    KILN_RETURN_IF_ERROR(Symbols());
    KILN_RETURN_IF_ERROR(Buffers());
    live_.assign(to_.buffers_.size(), false);
    block_of_.assign(to_.buffers_.size(), -1);
    for (size_t b = 0; b < to_.buffers_.size(); ++b)
      live_[b] = to_.buffers_[b].kind == v1::ProgramBuffer::INPUT;
    for (int i = 0; i < from_.steps_size(); ++i) {
      if (absl::Status status = Step(from_.steps(i)); !status.ok()) {
        return StatusWrap(status, absl::StrCat("step ", i));
      }
    }
    to_.times_ = std::make_unique<StepTimes>(to_.steps_.order.size());
    KILN_RETURN_IF_ERROR(Outputs());
    PlanArena();
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Program::Shape> Shape(const google::protobuf::RepeatedPtrField<v1::SymInt>& sizes,
                                       const google::protobuf::RepeatedPtrField<v1::SymInt>& strides) {
    if (sizes.size() != strides.size()) return absl::InvalidArgumentError("sizes and strides do not match");
    KILN_RETURN_IF_ERROR(AtMost(kRankMax, sizes.size(), "dimensions"));
    Program::Shape shape;
    for (int d = 0; d < sizes.size(); ++d) {
      KILN_ASSIGN_OR_RETURN(Dim size, to_.symbols_.exprs.Resolve(sizes[d]));
      KILN_ASSIGN_OR_RETURN(Dim stride, to_.symbols_.exprs.Resolve(strides[d]));
      shape.fixed = shape.fixed && size.expr < 0 && stride.expr < 0;
      shape.sizes.push_back(size);
      shape.strides.push_back(stride);
      shape.fixed_sizes.push_back(size.value);
      shape.fixed_strides.push_back(stride.value);
    }
    if (shape.fixed) shape.fixed_span = SpanElements(shape.fixed_sizes, shape.fixed_strides);
    return shape;
  }

  absl::Status Inputs() {
    for (const v1::ProgramInput& from : from_.inputs()) {
      Program::Input input;
      input.written = from.written();
      if (from.kind_case() == v1::ProgramInput::kTensor) {
        input.is_tensor = true;
        input.dtype = from.tensor().dtype();
        KILN_ASSIGN_OR_RETURN(input.shape, Shape(from.tensor().sizes(), from.tensor().strides()));
      }
      to_.inputs_.push_back(std::move(input));
    }
    return absl::OkStatus();
  }

  absl::Status Symbols() {
    for (int i = 0; i < from_.symbols_size(); ++i) {
      const v1::Symbol& symbol = from_.symbols(i);
      to_.symbols_.ranges.emplace_back();
      if (symbol.kind() == v1::SYMBOL_UNBACKED) to_.symbols_.ranges.back() = {symbol.min(), symbol.max()};
      const v1::SymbolBinding& binding = symbol.binding();
      if (binding.source() == v1::SymbolBinding::SOURCE_UNSPECIFIED) continue;
      if (binding.input() >= to_.inputs_.size() || binding.source() > v1::SymbolBinding::INPUT_STRIDE)
        return absl::InvalidArgumentError("a symbol names an unknown input");
      const Program::Input& input = to_.inputs_[binding.input()];
      const bool whole = binding.source() == v1::SymbolBinding::INPUT_VALUE;
      if (whole == input.is_tensor || (!whole && binding.dim() >= input.shape.sizes.size())) {
        return absl::InvalidArgumentError(absl::StrCat("symbol ", i, " has a wrong binding"));
      }
      to_.symbols_.bindings.push_back(
          {binding.source(), binding.input(), binding.dim(), static_cast<uint32_t>(i)});
    }
    return absl::OkStatus();
  }

  Program::Place PlaceOf(uint32_t index, const Program::Buffer& buffer) const {
    Program::Place place;
    place.root = index;
    place.fixed = true;
    if (buffer.kind != v1::ProgramBuffer::VIEW) return place;
    const Program::Place& base = to_.where_[buffer.base];
    place.root = base.root;
    place.fixed = base.fixed && buffer.offset.expr < 0 &&
                  !__builtin_mul_overflow(buffer.offset.value, buffer.element, &place.bytes) &&
                  !__builtin_add_overflow(place.bytes, base.bytes, &place.bytes);
    return place;
  }

  absl::Status Buffers() {
    for (int i = 0; i < from_.buffers_size(); ++i) {
      const v1::ProgramBuffer& from = from_.buffers(i);
      Program::Buffer buffer;
      buffer.kind = from.kind();
      buffer.dtype = from.dtype();
      buffer.element = ByteSize(from.dtype());
      if (buffer.element == 0) return absl::InvalidArgumentError(absl::StrCat("buffer ", i, " has no dtype"));
      KILN_ASSIGN_OR_RETURN(buffer.shape, Shape(from.sizes(), from.strides()));
      KILN_ASSIGN_OR_RETURN(buffer.offset, to_.symbols_.exprs.Resolve(from.storage_offset()));
      switch (from.kind()) {
        case v1::ProgramBuffer::INPUT:
          if (from.input() >= to_.inputs_.size() || !to_.inputs_[from.input()].is_tensor ||
              to_.inputs_[from.input()].buffer != UINT32_MAX) {
            return absl::InvalidArgumentError(absl::StrCat("buffer ", i, " names a wrong input"));
          }
          to_.inputs_[from.input()].buffer = i;
          buffer.input = from.input();
          break;
        case v1::ProgramBuffer::VIEW:
          if (from.base() >= static_cast<uint32_t>(i)) {
            return absl::InvalidArgumentError(absl::StrCat("buffer ", i, " views a later buffer"));
          }
          buffer.base = from.base();
          break;
        case v1::ProgramBuffer::OWNED:
        case v1::ProgramBuffer::SEEDS: break;
        default: return absl::UnimplementedError(absl::StrCat("buffer kind ", static_cast<int>(from.kind())));
      }
      to_.where_.push_back(PlaceOf(static_cast<uint32_t>(i), buffer));
      to_.buffers_.push_back(std::move(buffer));
    }
    return absl::OkStatus();
  }

  // Whether a tensor of the program's own can be handed from one buffer to the other as it is.
  static bool SameLayout(const Program::Buffer& a, const Program::Buffer& b) {
    const auto same = [](const std::vector<Dim>& x, const std::vector<Dim>& y) {
      return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                        [](const Dim& p, const Dim& q) { return p.value == q.value && p.expr == q.expr; });
    };
    return a.kind == v1::ProgramBuffer::OWNED && b.kind == v1::ProgramBuffer::OWNED && a.dtype == b.dtype &&
           same(a.shape.sizes, b.shape.sizes) && same(a.shape.strides, b.shape.strides);
  }

  uint32_t Root(uint32_t buffer) const { return to_.where_[buffer].root; }
  absl::Status Known(int64_t buffer) const {
    if (buffer < 0 || buffer >= static_cast<int64_t>(to_.buffers_.size())) {
      return absl::InvalidArgumentError(absl::StrCat("unknown buffer ", buffer));
    }
    return absl::OkStatus();
  }
  absl::Status Use(int64_t buffer) const {
    KILN_RETURN_IF_ERROR(Known(buffer));
    if (!live_[Root(buffer)])
      return absl::InvalidArgumentError(absl::StrCat("buffer ", buffer, " is not live"));
    return absl::OkStatus();
  }
  absl::Status Define(int64_t buffer) {
    KILN_RETURN_IF_ERROR(Known(buffer));
    const v1::ProgramBuffer::Kind kind = to_.buffers_[buffer].kind;
    if ((kind != v1::ProgramBuffer::OWNED && kind != v1::ProgramBuffer::SEEDS) || live_[buffer]) {
      return absl::InvalidArgumentError(absl::StrCat("buffer ", buffer, " cannot be allocated here"));
    }
    live_[buffer] = true;
    return absl::OkStatus();
  }

  absl::Status Step(const v1::Step& from) {
    KILN_ASSIGN_OR_RETURN(Program::Step step, Read(from));
    // What the step took over is gone.
    if (from.has_launch() || from.has_launch_group() || from.has_call()) {
      for (int64_t buffer : taken_) live_[buffer] = false;
      taken_.clear();
    }
    to_.steps_.order.push_back(std::move(step));
    return absl::OkStatus();
  }

  absl::StatusOr<Program::Step> Read(const v1::Step& from) {
    switch (from.kind_case()) {
      case v1::Step::kLet: return Let(from.let());
      case v1::Step::kCheck: {
        KILN_ASSIGN_OR_RETURN(const Dim holds, to_.symbols_.exprs.ResolveExpr(from.check().condition()));
        return Program::CheckStep{holds, from.check().message()};
      }
      case v1::Step::kAlloc: return Alloc(from.alloc());
      case v1::Step::kFree: return Free(from.free());
      case v1::Step::kView: KILN_RETURN_IF_ERROR(Use(from.view().buffer())); return Program::ViewStep{};
      case v1::Step::kSeeds:
        KILN_RETURN_IF_ERROR(Define(from.seeds().buffer()));
        return Program::SeedsStep{from.seeds().buffer(), from.seeds().count()};
      case v1::Step::kLaunch: {
        const Program::LaunchAt at = {static_cast<uint32_t>(to_.steps_.launches.size())};
        KILN_RETURN_IF_ERROR(Launch(from.launch().kernel(), from.launch()));
        return at;
      }
      case v1::Step::kLaunchGroup: return LaunchGroup(from.launch_group());
      case v1::Step::kCall: {
        const Program::CallAt at = {static_cast<uint32_t>(to_.steps_.calls.size())};
        KILN_RETURN_IF_ERROR(Call(from.call()));
        return at;
      }
      default:
        return absl::UnimplementedError(absl::StrCat("unknown step ", static_cast<int>(from.kind_case())));
    }
  }

  absl::StatusOr<Program::Step> Let(const v1::Step::Let& from) {
    if (from.symbol() >= static_cast<uint32_t>(from_.symbols_size()))
      return absl::InvalidArgumentError("a step sets an unknown symbol");
    Program::LetStep step;
    step.symbol = from.symbol();
    if (from.from_case() == v1::Step::Let::kExpr) {
      KILN_ASSIGN_OR_RETURN(step.number, to_.symbols_.exprs.Resolve(from.expr()));
    } else {
      KILN_RETURN_IF_ERROR(Use(from.item()));
      step.item = from.item();
    }
    return step;
  }

  absl::StatusOr<Program::Step> Alloc(const v1::Step::Alloc& from) {
    Program::AllocStep step;
    step.buffer = from.buffer();
    if (from.reuse() >= 0) {
      step.reuse = from.reuse();
      KILN_RETURN_IF_ERROR(Use(step.reuse));
      if (to_.buffers_[step.reuse].kind == v1::ProgramBuffer::VIEW) {
        return absl::InvalidArgumentError("a view's storage cannot be taken over");
      }
      // Its bytes may still be read by the next step, under the new buffer's storage.
      taken_.push_back(step.reuse);
      KILN_RETURN_IF_ERROR(Known(step.buffer));
      step.moves = SameLayout(to_.buffers_[step.buffer], to_.buffers_[step.reuse]);
    }
    KILN_RETURN_IF_ERROR(Define(step.buffer));
    PutIntoBlock(step.buffer, step.reuse);
    return step;
  }

  absl::StatusOr<Program::Step> Free(const v1::Step::Free& from) {
    const Program::FreeStep step = {from.buffer()};
    KILN_RETURN_IF_ERROR(Use(step.buffer));
    if (to_.buffers_[step.buffer].kind == v1::ProgramBuffer::VIEW) return step;
    live_[step.buffer] = false;
    if (block_of_[step.buffer] >= 0) blocks_[block_of_[step.buffer]].storage.last = to_.steps_.order.size();
    return step;
  }

  // The storage of a buffer that is allocated, or that takes over that of `reuse`.
  void PutIntoBlock(uint32_t buffer, int64_t reuse) {
    const Program::Buffer& to = to_.buffers_[buffer];
    if (reuse >= 0) {
      const int64_t block = block_of_[reuse];
      const Program::Buffer& from = to_.buffers_[reuse];
      if (block < 0 || to.dtype != from.dtype) return;
      if (to.shape.fixed && from.shape.fixed && to.shape.fixed_span > from.shape.fixed_span) return;
      if (!KnownAtStart(to.shape)) {
        blocks_[block].temporary = false;  // a call may find that it fits; what becomes of it is not followed
        return;
      }
      block_of_[buffer] = block;
    } else {
      const bool on_gpu = from_.buffers(buffer).device().type() != v1::CPU;
      if (on_gpu ? !to.shape.fixed : !KnownAtStart(to.shape)) return;
      block_of_[buffer] = static_cast<int64_t>(blocks_.size());
      blocks_.push_back({{to_.steps_.order.size(), SIZE_MAX, 0, {}}, on_gpu});
    }
    ArenaPlan::Storage& storage = blocks_[block_of_[buffer]].storage;
    if (to.shape.fixed) {
      storage.bytes = std::max(storage.bytes, to.shape.fixed_span * to.element);
    } else {
      storage.layouts.push_back({to.element, to.shape.sizes, to.shape.strides});
    }
  }

  bool KnownAtStart(const Program::Shape& shape) const {
    const auto known = [&](const Dim& dim) { return to_.symbols_.exprs.KnownAtStart(dim); };
    return std::all_of(shape.sizes.begin(), shape.sizes.end(), known) &&
           std::all_of(shape.strides.begin(), shape.strides.end(), known);
  }

  // The buffer's memory outlives the call, or may.
  void KeepOutOfArena(uint32_t buffer) {
    if (block_of_[Root(buffer)] >= 0) blocks_[block_of_[Root(buffer)]].temporary = false;
  }

  // On a GPU results may have the memory of temporaries that are gone before them, but not their places in an
  // arena; so only what is small, whose allocation is expensive beside the kernel that fills it.
  void KeepLargeOutOfGpuArena() {
    std::vector<Held> held;
    for (const auto& [storage, on_gpu, temporary, place] : blocks_) {
      if (on_gpu) held.push_back({{storage.first, storage.last, storage.bytes}, temporary});
    }
    if (held.empty()) return;
    to_.arena_plan_.AlignTo(kGpuArenaAlignment);
    const int64_t largest = LargestInArena(held, kGpuArenaBytesMax, kGpuArenaAlignment);
    for (Block& block : blocks_) {
      if (block.on_gpu && block.storage.bytes > largest) block.temporary = false;
    }
  }

  void PlanArena() {
    KeepLargeOutOfGpuArena();
    for (Block& block : blocks_) {
      if (block.temporary) block.place = to_.arena_plan_.Add(std::move(block.storage));
    }
    to_.arena_plan_.Finish(to_.symbols_.exprs);
    for (size_t b = 0; b < block_of_.size(); ++b) {
      if (block_of_[b] < 0 || !blocks_[block_of_[b]].temporary) continue;
      to_.where_[b].arena = static_cast<int32_t>(blocks_[block_of_[b]].place);
    }
  }

  absl::StatusOr<Program::Step> LaunchGroup(const v1::LaunchGroup& from) {
    Program::GroupStep group;
    group.first = static_cast<uint32_t>(to_.steps_.launches.size());
    group.count = static_cast<uint32_t>(from.members_size());
    group.fixed_bytes = 0;
    for (const v1::LaunchGroup::Member& member : from.members()) {
      KILN_RETURN_IF_ERROR(Launch(from.kernel(), member));
      const int64_t bytes = to_.steps_.launches.back().fixed_bytes;
      group.fixed_bytes = bytes < 0 || group.fixed_bytes < 0 ? -1 : group.fixed_bytes + bytes;
    }
    return group;
  }

  // `from`: a launch, or a member of one.
  template <typename Operands>
  absl::Status Launch(uint32_t kernel, const Operands& from) {
    if (kernel >= kernels_) return absl::InvalidArgumentError("unknown kernel");
    KILN_RETURN_IF_ERROR(AtMost(kKernelBuffersMax, from.buffers_size(), "buffers"));
    Program::LaunchStep launch;
    launch.kernel = kernel;
    bool fixed = true;
    int64_t bytes = 0;
    for (uint32_t buffer : from.buffers()) {
      KILN_RETURN_IF_ERROR(Use(buffer));
      launch.buffers.push_back(buffer);
      to_.buffers_[Root(buffer)].in_kernels = true;
      const Program::Buffer& known = to_.buffers_[buffer];
      fixed = fixed && known.shape.fixed;
      bytes += known.shape.fixed_span * known.element;
    }
    if (fixed) launch.fixed_bytes = bytes;
    for (const v1::SymInt& symbol : from.symbols()) {
      KILN_ASSIGN_OR_RETURN(Dim dim, to_.symbols_.exprs.Resolve(symbol));
      launch.symbols.push_back(dim);
    }
    KILN_ASSIGN_OR_RETURN(launch.units, to_.symbols_.exprs.Resolve(from.units()));
    to_.steps_.launches.push_back(std::move(launch));
    return absl::OkStatus();
  }

  absl::Status Call(const v1::Call& from) {
    Program::CallStep call;
    call.target = from.target();
    call.into = from.into_results();
    for (const v1::NamedArgument& named : from.args()) {
      Program::CallArgument argument;
      CallValue value;
      KILN_RETURN_IF_ERROR(Argument(named.value(), argument, value));
      call.values.push_back(std::move(value));
      call.names.push_back(named.name());
      call.arguments.push_back(std::move(argument));
    }
    for (int64_t result : from.results()) {
      if (result >= 0) {
        KILN_RETURN_IF_ERROR(call.into ? Use(result) : Define(result));
      } else if (call.into) {
        return absl::InvalidArgumentError("a call into buffers lacks one");
      }
      call.results.push_back(result);
    }
    for (const v1::Call::Bind& bind : from.binds()) {
      if (bind.result() >= call.results.size() || call.into)
        return absl::InvalidArgumentError("a symbol is the size of no result that a call makes");
      call.binds.push_back(bind);
    }
    if (!call.into && !to_.host_->MakesNewMemory(call.target)) {
      for (const Program::CallArgument& argument : call.arguments) {
        for (int64_t buffer : argument.buffers) {
          if (buffer >= 0) KeepOutOfArena(buffer);
        }
      }
    }
    call.in_memory = call.binds.empty() && !call.results.empty() &&
                     call.results.size() <= kMemoryCallResultsMax && OperandsAreTensors(call) &&
                     to_.host_->NewMemoryCall(call.target, false) != nullptr;
    if (call.in_memory) Operands(call);
    to_.steps_.calls.push_back(std::move(call));
    return absl::OkStatus();
  }

  void Operands(Program::CallStep& call) const {
    call.fixed = true;
    for (size_t i = 0; i < call.values.size(); ++i) {
      call.fixed = call.fixed && call.arguments[i].dims.empty();
      if (call.values[i].kind != v1::Argument::kAsTensor) continue;
      const auto buffer = static_cast<uint32_t>(call.arguments[i].buffers[0]);
      call.fixed = call.fixed && to_.buffers_[buffer].shape.fixed;
      call.operands.push_back({static_cast<uint32_t>(i), buffer});
    }
    for (const int64_t result : call.results) {
      if (result >= 0) call.fixed = call.fixed && to_.buffers_[result].shape.fixed;
    }
  }

  // No lists of them, and few.
  static bool OperandsAreTensors(const Program::CallStep& call) {
    size_t tensors = 0;
    for (size_t i = 0; i < call.values.size(); ++i) {
      const bool tensor = call.values[i].kind == v1::Argument::kAsTensor;
      if (!tensor && !call.arguments[i].buffers.empty()) return false;
      tensors += tensor;
    }
    return tensors + call.results.size() <= kMemoryCallOperandsMax;
  }

  absl::Status Argument(const v1::Argument& from, Program::CallArgument& to, CallValue& value) {
    value.kind = from.kind_case();
    switch (from.kind_case()) {
      case v1::Argument::kAsNone: break;
      case v1::Argument::kAsTensor: to.buffers.push_back(from.as_tensor()); break;
      case v1::Argument::kAsTensors:
        for (uint32_t b : from.as_tensors().values()) to.buffers.push_back(b);
        break;
      case v1::Argument::kAsOptionalTensors:
        for (int64_t b : from.as_optional_tensors().values()) to.buffers.push_back(b < 0 ? -1 : b);
        break;
      case v1::Argument::kAsInt: value.number = from.as_int(); break;
      case v1::Argument::kAsInts:
        value.numbers.assign(from.as_ints().values().begin(), from.as_ints().values().end());
        break;
      case v1::Argument::kAsFloat: value.real = Double(from.as_float()); break;
      case v1::Argument::kAsFloats:
        for (uint64_t bits : from.as_floats().bits()) value.reals.push_back(Double(bits));
        break;
      case v1::Argument::kAsBool: value.number = from.as_bool(); break;
      case v1::Argument::kAsBools:
        value.numbers.assign(from.as_bools().values().begin(), from.as_bools().values().end());
        break;
      case v1::Argument::kAsString: value.text = from.as_string(); break;
      case v1::Argument::kAsStrings:
        value.texts.assign(from.as_strings().values().begin(), from.as_strings().values().end());
        break;
      case v1::Argument::kAsSymInt: {
        KILN_ASSIGN_OR_RETURN(Dim dim, to_.symbols_.exprs.Resolve(from.as_sym_int()));
        to.dims.push_back(dim);
        value.kind = v1::Argument::kAsInt;
        break;
      }
      case v1::Argument::kAsSymInts:
        for (const v1::SymInt& item : from.as_sym_ints().values()) {
          KILN_ASSIGN_OR_RETURN(Dim dim, to_.symbols_.exprs.Resolve(item));
          to.dims.push_back(dim);
        }
        value.kind = v1::Argument::kAsInts;
        value.numbers.resize(to.dims.size());
        break;
      case v1::Argument::kAsScalarType: value.number = from.as_scalar_type(); break;
      case v1::Argument::kAsMemoryFormat: value.number = from.as_memory_format(); break;
      case v1::Argument::kAsLayout: value.number = from.as_layout(); break;
      case v1::Argument::kAsDevice: value.number = from.as_device().type(); break;
      default: return absl::InvalidArgumentError("an argument of unknown kind");
    }
    if (value.kind != v1::Argument::kAsTensor) value.tensors.resize(to.buffers.size());
    for (int64_t buffer : to.buffers) {
      if (buffer >= 0) KILN_RETURN_IF_ERROR(Use(buffer));
    }
    return absl::OkStatus();
  }

  static double Double(uint64_t bits) {
    double value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }

  absl::Status Outputs() {
    for (const v1::ProgramOutput& from : from_.outputs()) {
      Program::Output output;
      if (from.kind_case() == v1::ProgramOutput::kBuffer) {
        KILN_RETURN_IF_ERROR(StatusWrap(Use(from.buffer()), "output"));
        output.kind = Program::Output::kBuffer;
        output.buffer = from.buffer();
        KeepOutOfArena(from.buffer());
      } else if (from.kind_case() == v1::ProgramOutput::kSymInt) {
        output.kind = Program::Output::kNumber;
        KILN_ASSIGN_OR_RETURN(output.number, to_.symbols_.exprs.Resolve(from.sym_int()));
      }
      to_.outputs_.push_back(output);
    }
    std::vector<bool> seen(to_.buffers_.size());
    for (auto output = to_.outputs_.rbegin(); output != to_.outputs_.rend(); ++output) {
      if (output->kind != Program::Output::kBuffer) continue;
      std::vector<bool>::reference known = seen[Root(output->buffer)];
      output->last = !known;
      known = true;
    }
    return absl::OkStatus();
  }

  const v1::Program& from_;
  Program& to_;
  size_t kernels_;
  std::vector<bool> live_;
  std::vector<int64_t> taken_;

  // Storage that buffers have one after the other, of sizes that a call knows when it begins.
  struct Block {
    ArenaPlan::Storage storage;
    bool on_gpu = false;
    bool temporary = true;  // in the arena
    size_t place = 0;       // in the arena's plan
  };
  std::vector<Block> blocks_;
  std::vector<int64_t> block_of_;  // by buffer; -1: none
};

absl::StatusOr<std::shared_ptr<const Program>> Program::Load(const v1::Manifest& manifest,
                                                             const ObjectMap& objects,
                                                             const std::string& interpret, Host* host) {
  auto program = std::make_shared<Program>();
  program->host_ = host;
  ProgramLoader loader(manifest.program(), *program, manifest.kernels_size());
  KILN_RETURN_IF_ERROR(StatusWrap(loader.Load(), "program"));
  KILN_ASSIGN_OR_RETURN(std::vector<bool> interpreted,
                        ParseInterpretList(interpret, manifest.kernels_size()));
  KILN_ASSIGN_OR_RETURN(program->kernels_, LoadKernels(manifest, objects, interpreted));
  KILN_ASSIGN_OR_RETURN(program->tuned_.gemms, TunedGemms::Create(manifest.tuning(), objects));
  program->tuned_.convolutions = TunedConvolutions::Create(manifest.tuning());
  return program;
}

}  // namespace kiln::runtime
