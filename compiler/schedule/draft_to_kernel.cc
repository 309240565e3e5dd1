#include "compiler/schedule/draft_to_kernel.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/kernel_exprs.h"
#include "compiler/schedule/loop_order.h"
#include "compiler/schedule/private_storage.h"
#include "compiler/schedule/stage_plan.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

LoopFacts FactsOf(const Draft& draft, const StagePlan& plan) {
  LoopFacts facts;
  absl::flat_hash_set<uint32_t> live;
  for (const PlannedStage& stage : plan.stages()) {
    for (uint32_t op : stage.ops) {
      const LoopOpData& data = draft.ops[op].data;
      if (data.op == LoopOpcode::kLoad && plan.ForwardedValue(op, stage.key.level) >= 0) continue;
      live.insert(op);
    }
  }
  for (const DraftAccess& access : Accesses(draft)) {
    if (live.contains(access.position)) facts.accesses.push_back(access);
  }
  for (uint32_t i = 0; i < draft.ops.size(); ++i) {
    if (live.contains(i) && HasIndex(draft.ops[i].data)) facts.indexed.push_back(i);
  }
  return facts;
}

// Constants that only number a random operator. Passed as symbols, they do not keep the kernels of
// equal layers from being one.
absl::flat_hash_set<LoopOpId> RandomNumbers(const Draft& draft) {
  absl::flat_hash_set<LoopOpId> numbers;
  absl::flat_hash_set<LoopOpId> others;
  for (const DraftOp& op : draft.ops) {
    for (size_t i = 0; i < op.data.args.size(); ++i) {
      bool number = op.data.op == LoopOpcode::kRandBits && i == 2;
      (number ? numbers : others).insert(op.data.args[i]);
    }
  }
  absl::flat_hash_set<LoopOpId> result;
  for (const DraftOp& op : draft.ops) {
    bool only = numbers.contains(op.id) && !others.contains(op.id);
    if (only && op.data.op == LoopOpcode::kConstant && op.data.dtype == v1::I64) result.insert(op.id);
  }
  return result;
}

class Builder {
 public:
  Builder(LoopContext& context, const Draft& draft, const StagePlan& plan)
      : context_(context),
        draft_(draft),
        plan_(plan),
        exprs_(context, &result_.kernel),
        random_numbers_(RandomNumbers(draft)) {}

  absl::StatusOr<ScheduledKernel> Run(const v1::KernelSchedule& schedule) {
    v1::Kernel& kernel = result_.kernel;
    kernel.set_format_version(kKernelFormatVersion);
    for (uint32_t i = 0; i < draft_.outer.size(); ++i) {
      exprs_.DefineVar(draft_.outer[i].leaf, i);
      KILN_ASSIGN_OR_RETURN(uint32_t extent, exprs_.WriteSize(draft_.outer[i].extent));
      kernel.add_outer(extent);
    }
    for (const DraftClass& cls : draft_.classes) {
      for (uint32_t j = 0; j < cls.vars.size(); ++j) {
        exprs_.DefineVar(cls.vars[j].leaf, static_cast<uint32_t>(draft_.outer.size()) + j);
      }
    }
    for (const PlannedStage& stage : plan_.stages()) KILN_RETURN_IF_ERROR(WriteStage(stage));
    KILN_RETURN_IF_ERROR(WriteSpans());
    kernel.set_symbol_count(static_cast<uint32_t>(exprs_.symbols().size()));
    *kernel.mutable_schedule() = schedule;
    result_.operands.symbols = exprs_.symbols();
    result_.operands.units = CountUnits(context_, draft_.outer, schedule);
    KILN_RETURN_IF_ERROR(CheckCounts());
    return std::move(result_);
  }

 private:
  using Values = absl::flat_hash_map<uint32_t, uint32_t>;  // position in the draft → kernel op

  // At most so many elements of a buffer are read (or written), by the loops' extents alone.
  struct Touched {
    absl::flat_hash_map<BufferId, ExprId> elements;
    absl::flat_hash_set<std::pair<BufferId, ExprId>> seen;  // by index
  };

  // What a graph asks for beyond the limits of a kernel is unsupported, not a kernel that is wrong.
  absl::Status CheckCounts() const {
    const v1::Kernel& kernel = result_.kernel;
    int loops = 0;
    for (const v1::Stage& stage : kernel.stages()) loops = std::max(loops, stage.inner_size());
    const struct {
      absl::string_view what;
      size_t count, limit;
    } counts[] = {{"ops", op_count_, kKernelOpsMax},
                  {"buffers", result_.operands.buffers.size(), kKernelBuffersMax},
                  {"stages", static_cast<size_t>(kernel.stages_size()), kKernelStagesMax},
                  {"loops", static_cast<size_t>(kernel.outer_size() + loops), kKernelLoopsMax},
                  {"symbols", kernel.symbol_count(), kGraphSymbolsMax},
                  {"expressions", static_cast<size_t>(kernel.exprs_size()), kExprNodesMax}};
    for (const auto& [what, count, limit] : counts) {
      if (count <= limit) continue;
      return absl::UnimplementedError(
          absl::StrCat("unsupported: a single kernel of ", count, " ", what, ", limit ", limit));
    }
    return absl::OkStatus();
  }

  absl::Status WriteStage(const PlannedStage& planned) {
    stage_ = result_.kernel.add_stages();
    values_.clear();
    known_.clear();
    key_ = planned.key;
    if (planned.key.cls != kOuterClass) {
      const DraftClass& cls = draft_.classes[planned.key.cls];
      for (const LoopVar& var : cls.vars) {
        KILN_ASSIGN_OR_RETURN(uint32_t extent, exprs_.WriteSize(var.extent));
        stage_->add_inner(extent);
      }
      // Loops of one iteration are gone, but what ends a loop still needs one.
      if (cls.vars.empty()) {
        KILN_ASSIGN_OR_RETURN(uint32_t extent, exprs_.WriteSize(context_.pool().Const(1)));
        stage_->add_inner(extent);
      }
    }
    for (uint32_t position : planned.ops) KILN_RETURN_IF_ERROR(WriteOp(position));
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> ValueOf(uint32_t position) const {
    auto it = values_.find(position);
    if (it != values_.end()) return it->second;
    it = global_.find(position);
    if (it != global_.end()) return it->second;
    return absl::InternalError("an op uses a value that no stage has computed");
  }

  void Define(uint32_t position, uint32_t value) {
    values_[position] = value;
    const DraftOp& op = draft_.ops[position];
    bool kept = op.cls == kOuterClass ? !plan_.IsClonable(position) : op.data.op == LoopOpcode::kReduce;
    if (kept) global_[position] = value;
  }

  absl::Status WriteOp(uint32_t position) {
    const LoopOpData& data = draft_.ops[position].data;
    if (data.op == LoopOpcode::kLoad) {
      int64_t forwarded = plan_.ForwardedValue(position, key_.level);
      if (forwarded >= 0) return WriteForwarded(position, static_cast<uint32_t>(forwarded));
    }
    if (random_numbers_.contains(draft_.ops[position].id)) {
      v1::LoopOp number;
      number.set_op(static_cast<uint32_t>(LoopOpcode::kIndexExpr));
      number.set_dtype(v1::I64);
      number.set_index(exprs_.WriteParameter(context_.pool().Const(static_cast<int64_t>(data.bits))));
      Define(position, Add(std::move(number), {LoopOpcode::kIndexExpr}));
      return absl::OkStatus();
    }
    v1::LoopOp op;
    op.set_op(static_cast<uint32_t>(data.op));
    op.set_dtype(data.dtype);
    op.set_bits(data.bits);
    op.set_mode(data.mode);
    for (LoopOpId arg : data.args) {
      KILN_ASSIGN_OR_RETURN(uint32_t value, ValueOf(plan_.position(arg)));
      op.add_args(value);
    }
    bool memory = data.op == LoopOpcode::kLoad || data.op == LoopOpcode::kStore;
    if (memory) op.set_buffer(BufferPosition(data));
    if (HasIndex(data)) {
      KILN_ASSIGN_OR_RETURN(
          uint32_t index, exprs_.Write(data.index, [&](LoopOpId id) { return ValueOf(plan_.position(id)); }));
      op.set_index(index);
    }
    Define(position, Add(std::move(op), data));
    return absl::OkStatus();
  }

  // The stored value in place of a load: 0 where the load's mask is false.
  absl::Status WriteForwarded(uint32_t position, uint32_t value_position) {
    const LoopOpData& load = draft_.ops[position].data;
    KILN_ASSIGN_OR_RETURN(uint32_t value, ValueOf(value_position));
    if (!load.args.empty()) {
      KILN_ASSIGN_OR_RETURN(uint32_t mask, ValueOf(plan_.position(load.args[0])));
      v1::LoopOp zero;
      zero.set_op(static_cast<uint32_t>(LoopOpcode::kConstant));
      zero.set_dtype(load.dtype);
      v1::LoopOp where;
      where.set_op(static_cast<uint32_t>(LoopOpcode::kWhere));
      where.set_dtype(load.dtype);
      where.add_args(mask);
      where.add_args(value);
      where.add_args(Add(std::move(zero), {LoopOpcode::kConstant}));
      value = Add(std::move(where), {LoopOpcode::kWhere});
    }
    Define(position, value);
    return absl::OkStatus();
  }

  // Appends the op, unless the stage has an equal one.
  uint32_t Add(v1::LoopOp op, const LoopOpData& data) {
    bool store = data.op == LoopOpcode::kStore;
    std::string key = op.SerializeAsString();
    if (data.op == LoopOpcode::kLoad) {
      absl::StrAppend(&key, "@", stores_[context_.MemoryOf(data.buffer)]);
    }
    if (store) {
      ++stores_[context_.MemoryOf(data.buffer)];
    } else if (auto it = known_.find(key); it != known_.end()) {
      return it->second;
    }
    uint32_t id = op_count_++;
    if (!store) known_[key] = id;
    *stage_->add_ops() = std::move(op);
    return id;
  }

  uint32_t BufferPosition(const LoopOpData& data) {
    auto [it, added] =
        buffers_.try_emplace(data.buffer, static_cast<uint32_t>(result_.operands.buffers.size()));
    if (added) {
      result_.operands.buffers.push_back(data.buffer);
      v1::KernelBuffer* buffer = result_.kernel.add_buffers();
      buffer->set_dtype(context_.graph().buffers[data.buffer].dtype);
    }
    v1::KernelBuffer* buffer = result_.kernel.mutable_buffers(static_cast<int>(it->second));
    bool writes = data.op == LoopOpcode::kStore;
    bool reads = !writes || data.mode == v1::STORE_ACCUMULATE;
    int access = buffer->access() | (writes ? v1::WRITE : 0) | (reads ? v1::READ : 0);
    buffer->set_access(static_cast<v1::BufferAccess>(access));
    if (reads && !touched_.written.seen.contains({data.buffer, data.index})) NoteTouched(touched_.read, data);
    if (writes) NoteTouched(touched_.written, data);
    return it->second;
  }

  // Adds the points of the access's loops, unless the same index was counted already. What the kernel wrote
  // and reads again counts once, as written. A value at an index
  // that another value gives is one a point of all loops.
  void NoteTouched(Touched& touched, const LoopOpData& data) {
    if (!touched.seen.insert({data.buffer, data.index}).second) return;
    ExprPool& pool = context_.pool();
    const bool indirect = context_.HasIndirect(data.index);
    const std::vector<ExprId> leaves = context_.Leaves(data.index);
    ExprId points = pool.Const(1);
    const auto multiply = [&](const std::vector<LoopVar>& vars) {
      for (const LoopVar& var : vars) {
        if (indirect || absl::c_linear_search(leaves, var.leaf)) points = pool.Mul(points, var.extent);
      }
    };
    multiply(draft_.outer);
    if (key_.cls != kOuterClass) multiply(draft_.classes[key_.cls].vars);
    auto [it, added] = touched.elements.try_emplace(data.buffer, points);
    if (!added) it->second = pool.Add(it->second, points);
  }

  absl::Status WriteSpans() {
    ExprPool& pool = context_.pool();
    std::vector<ExprId> read;
    std::vector<ExprId> written;
    for (size_t i = 0; i < result_.operands.buffers.size(); ++i) {
      const LoopBuffer& data = context_.graph().buffers[result_.operands.buffers[i]];
      v1::KernelBuffer* buffer = result_.kernel.mutable_buffers(static_cast<int>(i));
      KILN_ASSIGN_OR_RETURN(uint32_t span, exprs_.WriteSize(data.span));
      buffer->set_span(span);
      const auto add = [&](const Touched& touched, std::vector<ExprId>* sum) {
        const auto found = touched.elements.find(result_.operands.buffers[i]);
        if (found == touched.elements.end()) return;
        sum->push_back(pool.Mul(pool.Min(data.span, found->second), pool.Const(ByteSize(data.dtype))));
      };
      add(touched_.read, &read);
      add(touched_.written, &written);
    }
    result_.bytes_read = pool.Sum(read);
    result_.bytes_written = pool.Sum(written);
    return absl::OkStatus();
  }

  LoopContext& context_;
  const Draft& draft_;
  const StagePlan& plan_;
  ScheduledKernel result_;
  KernelExprs exprs_;
  absl::flat_hash_set<LoopOpId> random_numbers_;
  v1::Stage* stage_ = nullptr;
  StageKey key_;
  Values values_;  // of the stage being written
  Values global_;  // of outer ops and reductions
  absl::flat_hash_map<std::string, uint32_t> known_;
  absl::flat_hash_map<uint32_t, uint32_t> stores_;  // so far, by memory
  absl::flat_hash_map<BufferId, uint32_t> buffers_;
  struct {
    Touched read, written;
  } touched_;
  uint32_t op_count_ = 0;
};

// "aten.native_layer_norm.default" → "native_layer_norm".
std::string ShortName(const std::string& target) {
  size_t begin = target.find('.');
  begin = begin == std::string::npos ? 0 : begin + 1;
  size_t end = target.find('.', begin);
  return target.substr(begin, end == std::string::npos ? end : end - begin);
}

v1::KernelNotes NotesOf(LoopContext& context, const Draft& draft, const std::vector<BufferId>& buffers,
                        uint32_t serial) {
  v1::KernelNotes notes;
  std::vector<std::string> names;
  for (uint32_t node : draft.nodes) {
    for (const std::string& op : context.graph().nodes[node].loops.operators) {
      notes.add_operators(op);
      std::string name = ShortName(op);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
    }
  }
  std::string title;
  for (size_t i = 0; i < names.size() && i < kKernelNameOperatorsMax; ++i)
    absl::StrAppend(&title, names[i], "_");
  notes.set_name(absl::StrCat(title.empty() ? "loops_" : title, serial));
  for (BufferId buffer : buffers) notes.add_buffer_names(absl::StrCat("b", buffer));
  return notes;
}

}  // namespace

absl::StatusOr<ScheduledKernel> BuildKernel(LoopContext& context, Draft draft, uint32_t serial,
                                            absl::FunctionRef<bool(BufferId)> escapes) {
  KILN_ASSIGN_OR_RETURN(StagePlan plan, StagePlan::Make(context, draft, escapes));
  const auto results = ScratchInResults(context, draft, plan, escapes);
  for (DraftOp& op : draft.ops) {
    if (!HasIndex(op.data)) continue;
    if (auto it = results.find(op.data.buffer); it != results.end()) op.data.buffer = it->second;
  }
  v1::KernelSchedule schedule = ChooseLoops(context, draft, FactsOf(draft, plan));
  KILN_ASSIGN_OR_RETURN(ScheduledKernel kernel, Builder(context, draft, plan).Run(schedule));
  kernel.notes = NotesOf(context, draft, kernel.operands.buffers, serial);
  return kernel;
}

}  // namespace kiln
