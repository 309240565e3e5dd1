#include "compiler/schedule/plan_memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/loop_context.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr int64_t kTakeOverDistanceMax = 64;  // steps between death and new life
constexpr size_t kLoadsMax = 63;              // of one buffer in one kernel, for in-place proofs

struct Lifetime {
  int64_t first = -1;  // step that first touches it
  int64_t last = -1;
  bool allocated = false;  // by an Alloc step of ours
  bool made = false;       // by a library call, in memory that is ours alone
  bool output = false;
};

class Planner {
 public:
  Planner(LoopGraph& graph, const Schedule& schedule) : graph_(graph), context_(graph), schedule_(schedule) {}

  absl::StatusOr<MemoryPlan> Run() {
    KILN_RETURN_IF_ERROR(FindLifetimes());
    plan_.steps.resize(schedule_.steps.size());
    FindDeaths();
    FindLoad();
    for (size_t s = 0; s < schedule_.steps.size(); ++s) PlanStep(static_cast<int64_t>(s));
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      const Lifetime& life = lives_[b];
      if (life.output || passed_on_[b]) continue;
      if (life.last >= 0 && Releasable(b)) plan_.steps[life.last].release.push_back(b);
      if (life.last < 0 && IsInput(b) && Releasable(b)) plan_.unused.push_back(b);
    }
    for (int64_t bytes : load_) plan_.peak_bytes = std::max(plan_.peak_bytes, bytes);
    return std::move(plan_);
  }

 private:
  bool IsInput(BufferId b) const { return graph_.buffers[b].kind == LoopBuffer::Kind::kInput; }

  const v1::InputFact& FactOf(BufferId b) const { return graph_.inputs[graph_.buffers[b].input].fact; }

  bool Releasable(BufferId b) const { return !IsInput(b) || !FactOf(b).is_static(); }

  absl::Status Touch(BufferId b, int64_t step, bool write) {
    Lifetime& life = lives_[b];
    if (life.first < 0) {
      if (!write && !IsInput(b)) {
        return absl::InternalError(absl::StrCat("step ", step, " reads buffer ", b, " before it is written"));
      }
      life.first = step;
    }
    life.last = step;
    // A library call's view keeps the memory that it lies in.
    const int64_t shared = graph_.buffers[b].shares;
    return shared < 0 ? absl::OkStatus() : Touch(static_cast<BufferId>(shared), step, false);
  }

  absl::Status TouchOperands(const ScheduledKernel& kernel, const LaunchOperands& operands, int64_t step) {
    for (size_t i = 0; i < operands.buffers.size(); ++i) {
      BufferId b = operands.buffers[i];
      bool writes = kernel.kernel.buffers(static_cast<int>(i)).access() & v1::WRITE;
      if (lives_[b].first < 0 && !IsInput(b)) lives_[b].allocated = true;
      KILN_RETURN_IF_ERROR(Touch(b, step, writes));
    }
    return absl::OkStatus();
  }

  // What a step uses.
  absl::Status TouchAll(const ScheduledKernel& kernel, int64_t step) {
    KILN_RETURN_IF_ERROR(TouchOperands(kernel, kernel.operands, step));
    for (const LaunchOperands& other : kernel.others)
      KILN_RETURN_IF_ERROR(TouchOperands(kernel, other, step));
    return absl::OkStatus();
  }
  absl::Status TouchAll(const CallNode& call, int64_t step) {
    for (const BufferView& view : call.tensors) KILN_RETURN_IF_ERROR(Touch(view.buffer, step, false));
    for (int64_t result : call.results) {
      if (result < 0) continue;
      BufferId b = static_cast<BufferId>(result);
      if (call.into_results && lives_[b].first < 0 && !IsInput(b)) lives_[b].allocated = true;
      KILN_RETURN_IF_ERROR(Touch(b, step, true));
      if (!call.into_results && call.own_results) lives_[b].made = true;
    }
    return absl::OkStatus();
  }
  absl::Status TouchAll(const SeedsNode& seeds, int64_t step) { return Touch(seeds.buffer, step, true); }
  absl::Status TouchAll(const LetNode& let, int64_t step) {
    return let.number ? absl::OkStatus() : Touch(let.item.buffer, step, false);
  }
  absl::Status TouchAll(const ConditionNode&, int64_t) { return absl::OkStatus(); }

  absl::Status FindLifetimes() {
    lives_.resize(graph_.buffers.size());
    passed_on_.assign(graph_.buffers.size(), 0);
    for (size_t s = 0; s < schedule_.steps.size(); ++s) {
      const int64_t at = static_cast<int64_t>(s);
      KILN_RETURN_IF_ERROR(
          std::visit([&](const auto& step) { return TouchAll(step, at); }, schedule_.steps[s]));
    }
    for (const LoopGraphOutput& output : graph_.outputs) {
      if (output.kind != LoopGraphOutput::Kind::kView) continue;
      BufferId b = output.view.buffer;
      if (lives_[b].first < 0 && !IsInput(b)) {
        return absl::InternalError(absl::StrCat("output buffer ", b, " is never written"));
      }
      for (int64_t of = b; of >= 0; of = graph_.buffers[of].shares) lives_[of].output = true;
    }
    return absl::OkStatus();
  }

  void FindDeaths() {
    deaths_.resize(schedule_.steps.size());
    births_.resize(schedule_.steps.size());
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      const Lifetime& life = lives_[b];
      if (life.allocated) births_[life.first].push_back(b);
      if (life.last >= 0 && !life.output) deaths_[life.last].push_back(b);
    }
  }

  // Estimated bytes of own buffers during each step, without any reuse.
  void FindLoad() {
    load_.assign(schedule_.steps.size(), 0);
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      const Lifetime& life = lives_[b];
      if (IsInput(b) || life.first < 0) continue;
      int64_t bytes = context_.EstimateBytes(b);
      int64_t end = life.output ? static_cast<int64_t>(load_.size()) - 1 : life.last;
      for (int64_t s = life.first; s <= end; ++s) load_[s] += bytes;
    }
    for (int64_t bytes : load_) peak_ = std::max(peak_, bytes);
  }

  bool SameStorageSize(BufferId a, BufferId b) {
    const LoopBuffer& x = graph_.buffers[a];
    const LoopBuffer& y = graph_.buffers[b];
    return x.device == y.device && x.dtype == y.dtype && context_.Equal(x.span, y.span);
  }

  // May `b` give its storage away? Own buffers, and donated inputs that fill their memory.
  bool CanGive(BufferId b) {
    if (passed_on_[b] || lives_[b].output) return false;
    if (!IsInput(b)) return lives_[b].allocated || lives_[b].made;
    const v1::InputFact& fact = FactOf(b);
    if (!fact.donated() || fact.is_static() || fact.mutated()) return false;
    return context_.Equal(context_.pool().Product(graph_.buffers[b].sizes), graph_.buffers[b].span);
  }

  // Every access to either buffer is at one index in loops of one domain, no load of `from` follows a
  // store to `to`, and the stored value depends on all those loads: then no reordering of accesses
  // that are taken not to alias can put such a load after the store.
  bool SameElements(const ScheduledKernel& kernel, BufferId from, BufferId to) {
    const v1::Stage* where = nullptr;
    uint32_t index = 0;
    bool stored = false;
    size_t loads = 0;
    std::vector<uint64_t> depends;  // by op: the loads that its value depends on
    for (const v1::Stage& stage : kernel.kernel.stages()) {
      for (const v1::LoopOp& op : stage.ops()) {
        uint64_t on = 0;
        for (uint32_t arg : op.args()) on |= depends[arg];
        bool load = op.op() == static_cast<uint32_t>(LoopOpcode::kLoad);
        bool memory = load || op.op() == static_cast<uint32_t>(LoopOpcode::kStore);
        BufferId b = memory ? kernel.operands.buffers[op.buffer()] : 0;
        if (memory && (b == from || b == to)) {
          if (b == from && (!load || stored || loads == kLoadsMax)) return false;
          if (where != nullptr && (op.index() != index || !SameDomain(*where, stage))) return false;
          where = &stage;
          index = op.index();
          if (b == from) on |= uint64_t{1} << loads++;
          if (b == to && !load) {
            stored = true;
            if (op.args_size() > 1 || depends[op.args(0)] != (uint64_t{1} << loads) - 1) return false;
          }
        }
        depends.push_back(on);
      }
    }
    return stored && !UsesIndirect(kernel.kernel, index);
  }

  static bool SameDomain(const v1::Stage& a, const v1::Stage& b) {
    return std::equal(a.inner().begin(), a.inner().end(), b.inner().begin(), b.inner().end());
  }

  bool UsesIndirect(const v1::Kernel& kernel, uint32_t expr) {
    const v1::ExprNode& node = kernel.exprs(static_cast<int>(expr));
    if (node.op() == v1::EXPR_INDIRECT) return true;
    for (uint32_t arg : node.args()) {
      if (UsesIndirect(kernel, arg)) return true;
    }
    return false;
  }

  int64_t FindInPlace(int64_t s, BufferId buffer) {
    const auto* kernel = std::get_if<ScheduledKernel>(&schedule_.steps[s]);
    // Of several members the one that writes need not be the one that reads.
    if (kernel == nullptr || !kernel->others.empty()) return -1;
    for (BufferId from : deaths_[s]) {
      if (from == buffer || !CanGive(from) || !SameStorageSize(from, buffer)) continue;
      if (lives_[from].first == s && !IsInput(from)) continue;  // made here, too
      if (SameElements(*kernel, from, buffer)) return from;
    }
    return -1;
  }

  int64_t FindDead(int64_t s, BufferId buffer) {
    int64_t bytes = context_.EstimateBytes(buffer);
    int64_t load_between = 0;
    for (int64_t t = s - 1; t >= 0 && s - t <= kTakeOverDistanceMax; --t) {
      if (t + 1 < s) load_between = std::max(load_between, load_[t + 1]);
      if (load_between + bytes > peak_) return -1;
      for (BufferId from : deaths_[t]) {
        if (IsInput(from) || !CanGive(from) || !SameStorageSize(from, buffer)) continue;
        for (int64_t u = t + 1; u < s; ++u) load_[u] += bytes;
        return from;
      }
    }
    return -1;
  }

  void PlanStep(int64_t s) {
    for (BufferId b : births_[s]) {
      BufferAllocation allocation;
      allocation.buffer = b;
      int64_t from = FindInPlace(s, b);
      if (from >= 0) {
        ++plan_.in_place;
        if (!IsInput(static_cast<BufferId>(from))) load_[s] -= context_.EstimateBytes(b);
      } else {
        from = FindDead(s, b);
        if (from >= 0) ++plan_.taken_over;
      }
      if (from >= 0) passed_on_[from] = 1;
      allocation.reuse = from;
      plan_.steps[s].allocate.push_back(allocation);
    }
  }

  LoopGraph& graph_;
  LoopContext context_;
  const Schedule& schedule_;
  MemoryPlan plan_;
  std::vector<Lifetime> lives_;
  std::vector<char> passed_on_;
  std::vector<std::vector<BufferId>> deaths_;  // by step
  std::vector<std::vector<BufferId>> births_;
  std::vector<int64_t> load_;
  int64_t peak_ = 0;
};

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(LoopGraph& graph, const Schedule& schedule) {
  return Planner(graph, schedule).Run();
}

std::string MemoryPlan::ToString() const {
  std::string text = absl::StrCat("estimated peak of own buffers ", peak_bytes, " bytes; in place ", in_place,
                                  ", storage taken over ", taken_over, "\n");
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].allocate.empty() && steps[s].release.empty()) continue;
    absl::StrAppend(&text, s, ":");
    for (const BufferAllocation& a : steps[s].allocate) {
      absl::StrAppend(&text, " alloc b", a.buffer);
      if (a.reuse >= 0) absl::StrAppend(&text, " over b", a.reuse);
    }
    for (BufferId b : steps[s].release) absl::StrAppend(&text, " free b", b);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace kiln
