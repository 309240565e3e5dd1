#include "compiler/artifact/program_builder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/artifact/call_arguments.h"
#include "compiler/graph/expr_eval.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/graph/expr_proto.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr uint32_t kNoBuffer = UINT32_MAX;

class Builder {
 public:
  Builder(LoopGraph& graph, const Schedule& schedule, const MemoryPlan& memory, v1::PlanReply* reply)
      : graph_(graph),
        schedule_(schedule),
        memory_(memory),
        reply_(*reply),
        program_(*reply->mutable_program()),
        exprs_(graph.exprs, program_.mutable_exprs()),
        byte_exprs_(graph.exprs, reply->mutable_byte_exprs()) {}

  absl::Status Run() {
    program_.set_format_version(kProgramFormatVersion);
    for (const v1::Symbol& symbol : graph_.symbols) {
      v1::Symbol* added = program_.add_symbols();
      *added = symbol;
      if (IsBoundByValue(symbol)) added->clear_binding();  // steps say what of
    }
    WriteInputs();
    buffers_.assign(graph_.buffers.size(), kNoBuffer);
    FindViews();
    for (BufferId b : memory_.unused) AddFree(BufferOf(b));
    for (size_t s = 0; s < schedule_.steps.size(); ++s) KILN_RETURN_IF_ERROR(WriteStep(s));
    MarkWrittenInputs();
    WriteOutputs();
    WriteGuards();
    WriteStatistics();
    return absl::OkStatus();
  }

 private:
  struct View {
    BufferView view;
    uint32_t id = kNoBuffer;
    int64_t last = -1;  // step of its last use by a call
    bool live = false;
    bool output = false;
  };

  void WriteInputs() {
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      const GraphInput& input = graph_.inputs[i];
      v1::ProgramInput* out = program_.add_inputs();
      if (input.sym_int) {
        *out->mutable_sym_int() = exprs_.WriteInt(*input.sym_int);
        continue;
      }
      const TensorType& type = graph_.input_types[i];
      v1::TensorMeta* tensor = out->mutable_tensor();
      tensor->set_dtype(type.dtype);
      tensor->mutable_device()->set_type(type.device);
      WriteInts(type.sizes, tensor->mutable_sizes());
      WriteInts(type.strides, tensor->mutable_strides());
      *tensor->mutable_storage_offset() = exprs_.WriteInt(type.offset);
    }
  }

  void WriteInts(const std::vector<ExprId>& ids, google::protobuf::RepeatedPtrField<v1::SymInt>* out) {
    for (ExprId id : ids) *out->Add() = exprs_.WriteInt(id);
  }

  void MarkWrittenInputs() {
    auto mark = [&](BufferId b) {
      const LoopBuffer& data = graph_.buffers[b];
      if (data.kind != LoopBuffer::Kind::kInput) return;
      program_.mutable_inputs(static_cast<int>(data.input))->set_written(true);
    };
    for (const ScheduledStep& step : schedule_.steps) {
      if (const auto* launch = std::get_if<ScheduledKernel>(&step)) {
        launch->ForOperands([&](const LaunchOperands& operands) {
          for (int i = 0; i < launch->kernel.buffers_size(); ++i) {
            if (launch->kernel.buffers(i).access() != v1::READ) mark(operands.buffers[i]);
          }
        });
      }
      const auto* call = std::get_if<CallNode>(&step);
      if (call == nullptr) continue;
      for (const BufferView& view : call->tensors) {
        if (call->mutates_arguments) mark(view.buffer);
      }
      for (int64_t result : call->results) {
        if (result >= 0) mark(static_cast<BufferId>(result));
      }
    }
  }

  uint32_t AddBuffer(v1::ProgramBuffer::Kind kind, v1::DType dtype, v1::DeviceType device,
                     const std::vector<ExprId>& sizes, const std::vector<ExprId>& strides, ExprId offset) {
    uint32_t id = static_cast<uint32_t>(program_.buffers_size());
    v1::ProgramBuffer* buffer = program_.add_buffers();
    buffer->set_kind(kind);
    buffer->set_dtype(dtype);
    buffer->mutable_device()->set_type(device);
    WriteInts(sizes, buffer->mutable_sizes());
    WriteInts(strides, buffer->mutable_strides());
    *buffer->mutable_storage_offset() = exprs_.WriteInt(offset);
    return id;
  }

  uint32_t BufferOf(BufferId b) {
    if (buffers_[b] != kNoBuffer) return buffers_[b];
    const LoopBuffer& data = graph_.buffers[b];
    bool input = data.kind == LoopBuffer::Kind::kInput;
    buffers_[b] = AddBuffer(input ? v1::ProgramBuffer::INPUT : v1::ProgramBuffer::OWNED, data.dtype,
                            data.device, data.sizes, data.strides, graph_.exprs.Const(0));
    if (input) program_.mutable_buffers(static_cast<int>(buffers_[b]))->set_input(data.input);
    return buffers_[b];
  }

  bool IsWhole(const BufferView& view) const {
    const LoopBuffer& data = graph_.buffers[view.buffer];
    return view.dtype == data.dtype && view.sizes == data.sizes && view.strides == data.strides &&
           graph_.exprs.AsConst(view.offset) == 0;
  }

  static std::string KeyOf(const BufferView& view) {
    return absl::StrCat(view.buffer, ":", static_cast<int>(view.dtype), ":", absl::StrJoin(view.sizes, ","),
                        ":", absl::StrJoin(view.strides, ","), ":", view.offset);
  }

  View* ViewOf(const BufferView& view) {
    auto [it, added] = view_index_.try_emplace(KeyOf(view), views_.size());
    if (added) views_.push_back({view});
    return &views_[it->second];
  }

  void FindViews() {
    for (size_t s = 0; s < schedule_.steps.size(); ++s) {
      const auto* call = std::get_if<CallNode>(&schedule_.steps[s]);
      if (call == nullptr) continue;
      for (const BufferView& view : call->tensors) {
        if (!IsWhole(view)) ViewOf(view)->last = static_cast<int64_t>(s);
      }
    }
    for (const LoopGraphOutput& output : graph_.outputs) {
      if (output.kind == LoopGraphOutput::Kind::kView && !IsWhole(output.view))
        ViewOf(output.view)->output = true;
    }
  }

  // The program buffer for a window; made by a View step when it is not there yet.
  uint32_t UseView(const BufferView& view) {
    if (IsWhole(view)) return BufferOf(view.buffer);
    uint32_t base = BufferOf(view.buffer);
    View& entry = *ViewOf(view);
    if (entry.id == kNoBuffer) {
      entry.id = AddBuffer(v1::ProgramBuffer::VIEW, view.dtype, graph_.buffers[view.buffer].device,
                           view.sizes, view.strides, view.offset);
      program_.mutable_buffers(static_cast<int>(entry.id))->set_base(base);
    }
    if (!entry.live) {
      entry.live = true;
      program_.add_steps()->mutable_view()->set_buffer(entry.id);
    }
    return entry.id;
  }

  void AddFree(uint32_t id) { program_.add_steps()->mutable_free()->set_buffer(id); }

  absl::Status WriteStep(size_t s) {
    const StepMemory& memory = memory_.steps[s];
    for (const BufferAllocation& allocation : memory.allocate) {
      int64_t reuse = allocation.reuse < 0 ? -1 : int64_t{BufferOf(static_cast<BufferId>(allocation.reuse))};
      uint32_t id = BufferOf(allocation.buffer);
      v1::Step::Alloc* alloc = program_.add_steps()->mutable_alloc();
      alloc->set_buffer(id);
      alloc->set_reuse(reuse);
    }
    KILN_RETURN_IF_ERROR(std::visit([&](const auto& step) { return Write(s, step); }, schedule_.steps[s]));
    for (BufferId b : memory.release) AddFree(BufferOf(b));
    return absl::OkStatus();
  }

  absl::Status Write(size_t, const SeedsNode& node) {
    uint32_t id = BufferOf(node.buffer);
    program_.mutable_buffers(static_cast<int>(id))->set_kind(v1::ProgramBuffer::SEEDS);
    v1::Step::Seeds* seeds = program_.add_steps()->mutable_seeds();
    seeds->set_buffer(id);
    seeds->set_count(node.count);
    return absl::OkStatus();
  }

  absl::Status Write(size_t, const LetNode& node) {
    v1::Step::Let let;
    let.set_symbol(node.symbol);
    if (node.number) {
      *let.mutable_expr() = exprs_.WriteInt(*node.number);
    } else {
      let.set_item(UseView(node.item));
    }
    *program_.add_steps()->mutable_let() = std::move(let);
    return absl::OkStatus();
  }

  absl::Status Write(size_t, const ConditionNode& node) {
    v1::Step::Assert* check = program_.add_steps()->mutable_check();
    check->set_condition(exprs_.Write(node.condition));
    check->set_message(node.message);
    return absl::OkStatus();
  }

  // A number of bytes for people, who know no sizes that only the run knows.
  v1::SymInt WriteBytes(ExprId id) {
    return byte_exprs_.WriteInt(Substitute(graph_.exprs, id, [&](ExprId leaf) {
      const ExprNode& node = graph_.exprs.node(leaf);
      if (node.op != v1::EXPR_SYMBOL || !IsUnbacked(graph_.symbols[node.value])) return leaf;
      return graph_.exprs.Const(EstimateOfSymbol(graph_.symbols, node.value));
    }));
  }

  absl::Status Write(size_t, const ScheduledKernel& kernel) {
    std::string bytes = SerializeDeterministic(kernel.kernel);
    auto [it, added] = kernels_.try_emplace(bytes, static_cast<uint32_t>(reply_.kernels_size()));
    if (added) {
      v1::PlannedKernel* planned = reply_.add_kernels();
      planned->set_kernel(std::move(bytes));
      *planned->mutable_notes() = kernel.notes;
      *planned->mutable_bytes_read() = WriteBytes(kernel.bytes_read);
      *planned->mutable_bytes_written() = WriteBytes(kernel.bytes_written);
    }
    ++launches_;
    if (kernel.others.empty()) {
      v1::Launch launch;
      launch.set_kernel(it->second);
      WriteOperands(kernel.operands, &launch);
      *program_.add_steps()->mutable_launch() = std::move(launch);
      return absl::OkStatus();
    }
    v1::LaunchGroup group;
    group.set_kernel(it->second);
    kernel.ForOperands([&](const LaunchOperands& operands) { WriteOperands(operands, group.add_members()); });
    *program_.add_steps()->mutable_launch_group() = std::move(group);
    return absl::OkStatus();
  }

  // Of a launch, or of a member of one.
  template <typename Message>
  void WriteOperands(const LaunchOperands& operands, Message* out) {
    for (BufferId b : operands.buffers) out->add_buffers(BufferOf(b));
    WriteInts(operands.symbols, out->mutable_symbols());
    *out->mutable_units() = exprs_.WriteInt(operands.units);
  }

  absl::Status Write(size_t s, const CallNode& call) {
    std::vector<uint32_t> tensors;
    for (const BufferView& view : call.tensors) tensors.push_back(UseView(view));
    v1::Call out;
    out.set_target(call.target);
    out.set_into_results(call.into_results);
    for (const auto& [name, argument] : call.args) {
      v1::NamedArgument* named = out.add_args();
      named->set_name(name);
      absl::Status status = WriteArgument(
          argument, exprs_,
          [&](ValueId position) -> absl::StatusOr<uint32_t> {
            if (position < tensors.size()) return tensors[position];
            return absl::InternalError("a tensor argument has no view");
          },
          named->mutable_value());
      if (!status.ok()) return StatusWrap(status, absl::StrCat("call of ", call.target));
    }
    for (int64_t result : call.results) {
      out.add_results(result < 0 ? -1 : int64_t{BufferOf(static_cast<BufferId>(result))});
    }
    for (const SizeBind& bind : call.binds) {
      v1::Call::Bind* added = out.add_binds();
      added->set_symbol(bind.symbol);
      added->set_result(bind.result);
      added->set_dim(bind.dim);
    }
    *program_.add_steps()->mutable_call() = std::move(out);
    CountCall(call);
    for (View& view : views_) {
      if (!view.live || view.output || view.last != static_cast<int64_t>(s)) continue;
      view.live = false;
      AddFree(view.id);
    }
    return absl::OkStatus();
  }

  // What a call touches: each storage once that it reads, and each that it fills.
  ExprId BytesOf(const CallNode& call) {
    absl::btree_set<BufferId> touched;
    for (const BufferView& view : call.tensors) touched.insert(view.buffer);
    for (int64_t result : call.results) {
      if (result >= 0) touched.insert(static_cast<BufferId>(result));
    }
    std::vector<ExprId> bytes;
    for (BufferId id : touched) {
      const LoopBuffer& buffer = graph_.buffers[id];
      bytes.push_back(graph_.exprs.Mul(graph_.exprs.Const(ByteSize(buffer.dtype)), buffer.span));
    }
    return graph_.exprs.Sum(bytes);
  }

  void CountCall(const CallNode& call) {
    v1::CompileStatistics* statistics = reply_.mutable_statistics();
    statistics->set_library_calls(statistics->library_calls() + 1);
    library_bytes_.push_back(BytesOf(call));
    for (v1::LibraryCall& known : *statistics->mutable_calls()) {
      if (known.target() != call.target || known.reason() != call.reason) continue;
      known.set_count(known.count() + 1);
      return;
    }
    v1::LibraryCall* added = statistics->add_calls();
    added->set_target(call.target);
    added->set_reason(call.reason);
    added->set_count(1);
  }

  // A buffer's own tensor is one result's. What the caller sees as another value, a view that changes
  // nothing, is a tensor of its own, whose sizes can be changed without the other's.
  uint32_t BufferOfOutput(const LoopGraphOutput& output, absl::flat_hash_map<uint32_t, ValueId>& seen) {
    const BufferView& view = output.view;
    const uint32_t id = UseView(view);
    if (!IsWhole(view) || output.seen_as == kNoValue) return id;
    const auto [first, added] = seen.try_emplace(id, output.seen_as);
    if (added || first->second == output.seen_as) return id;
    const uint32_t other = AddBuffer(v1::ProgramBuffer::VIEW, view.dtype, graph_.buffers[view.buffer].device,
                                     view.sizes, view.strides, view.offset);
    program_.mutable_buffers(static_cast<int>(other))->set_base(id);
    program_.add_steps()->mutable_view()->set_buffer(other);
    return other;
  }

  void WriteOutputs() {
    absl::flat_hash_map<uint32_t, ValueId> seen;
    for (const LoopGraphOutput& output : graph_.outputs) {
      v1::ProgramOutput written;
      switch (output.kind) {
        case LoopGraphOutput::Kind::kView: written.set_buffer(BufferOfOutput(output, seen)); break;
        case LoopGraphOutput::Kind::kSymInt:
          *written.mutable_sym_int() = exprs_.WriteInt(output.sym_int);
          break;
        case LoopGraphOutput::Kind::kNone: written.set_none(true); break;
      }
      *program_.add_outputs() = std::move(written);
    }
  }

  void WriteGuards() {
    v1::Guards* guards = reply_.mutable_guards();
    for (const v1::Symbol& symbol : graph_.symbols) *guards->add_symbols() = symbol;
    ExprWriter writer(graph_.exprs, guards->mutable_exprs());
    for (ExprId guard : graph_.guards) guards->add_conditions(writer.Write(guard));
    for (ExprId guard : graph_.given) guards->add_given(writer.Write(guard));
  }

  void WriteStatistics() {
    v1::CompileStatistics* statistics = reply_.mutable_statistics();
    statistics->set_kernels(launches_);
    statistics->set_unique_kernels(static_cast<uint32_t>(reply_.kernels_size()));
    *statistics->mutable_library_bytes() = WriteBytes(graph_.exprs.Sum(library_bytes_));
  }

  LoopGraph& graph_;
  const Schedule& schedule_;
  const MemoryPlan& memory_;
  v1::PlanReply& reply_;
  v1::Program& program_;
  ExprWriter exprs_;
  ExprWriter byte_exprs_;              // of PlanReply.byte_exprs
  std::vector<ExprId> library_bytes_;  // by call
  std::vector<uint32_t> buffers_;      // program buffer, by loop buffer
  std::vector<View> views_;
  absl::flat_hash_map<std::string, size_t> view_index_;
  absl::flat_hash_map<std::string, uint32_t> kernels_;
  uint32_t launches_ = 0;
};

}  // namespace

absl::Status BuildProgram(LoopGraph& graph, const Schedule& schedule, const MemoryPlan& memory,
                          v1::PlanReply* reply) {
  return Builder(graph, schedule, memory, reply).Run();
}

}  // namespace kiln
