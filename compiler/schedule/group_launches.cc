#include "compiler/schedule/group_launches.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/schedule/gemm_threads.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/member_table.h"
#include "compiler/support/proto_util.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

// The constants of a kernel that may be symbols: extents, spans, what is added to an index, and
// where a single element is stored. A symbol that
// has a constant's value changes nothing that the kernel computes. Strides stay constants, since by them
// accesses are chosen.
std::vector<int> GeneralConstants(const v1::Kernel& kernel) {
  std::vector<char> general(kernel.exprs_size(), 0);
  for (uint32_t extent : kernel.outer()) general[extent] = 1;
  for (const v1::Stage& stage : kernel.stages()) {
    for (uint32_t extent : stage.inner()) general[extent] = 1;
  }
  for (const v1::KernelBuffer& buffer : kernel.buffers()) general[buffer.span()] = 1;
  for (const v1::ExprNode& node : kernel.exprs()) {
    if (node.op() != v1::EXPR_ADD) continue;
    for (uint32_t arg : node.args()) general[arg] = 1;
  }
  for (const v1::Stage& stage : kernel.stages()) {
    for (const v1::LoopOp& op : stage.ops()) {
      if (static_cast<LoopOpcode>(op.op()) == LoopOpcode::kStore) general[op.index()] = 1;
    }
  }
  std::vector<int> constants;
  for (int e = 0; e < kernel.exprs_size(); ++e) {
    if (general[e] != 0 && kernel.exprs(e).op() == v1::EXPR_CONST) constants.push_back(e);
  }
  return constants;
}

// Equal of kernels that differ in such constants alone.
std::string SkeletonOf(const v1::Kernel& kernel, const std::vector<int>& constants) {
  v1::Kernel skeleton = kernel;
  for (int e : constants) skeleton.mutable_exprs(e)->set_value(0);
  return SerializeDeterministic(skeleton);
}

// First and last element, where they are known.
using Elements = std::optional<std::pair<int64_t, int64_t>>;

bool Overlap(const Elements& a, const Elements& b) {
  return !a || !b || (a->first <= b->second && b->first <= a->second);
}

Elements IndexRange(const v1::Kernel& kernel, const v1::Stage& stage, uint32_t index) {
  const v1::ExprNode& node = kernel.exprs(static_cast<int>(index));
  if (node.op() == v1::EXPR_CONST) return std::pair(node.value(), node.value());
  if (node.op() == v1::EXPR_VAR) {
    const int64_t outer = kernel.outer_size();
    const int variable = static_cast<int>(node.value() < outer ? node.value() : node.value() - outer);
    const uint32_t extent = node.value() < outer ? kernel.outer(variable) : stage.inner(variable);
    if (kernel.exprs(static_cast<int>(extent)).op() != v1::EXPR_CONST) return std::nullopt;
    return std::pair(int64_t{0}, kernel.exprs(static_cast<int>(extent)).value() - 1);
  }
  if (node.op() != v1::EXPR_ADD && node.op() != v1::EXPR_MUL) return std::nullopt;
  Elements range;
  for (uint32_t arg : node.args()) {
    const Elements part = IndexRange(kernel, stage, arg);
    if (!part || part->first < 0) return std::nullopt;
    if (!range) {
      range = part;
    } else if (node.op() == v1::EXPR_ADD) {
      range = {range->first + part->first, range->second + part->second};
    } else if (__builtin_mul_overflow(range->first, part->first, &range->first) ||
               __builtin_mul_overflow(range->second, part->second, &range->second)) {
      return std::nullopt;
    }
  }
  return range;
}

// Of a buffer, by all loads and stores; nothing where not all are known.
Elements AccessedElements(const v1::Kernel& kernel, uint32_t buffer) {
  Elements all;
  for (const v1::Stage& stage : kernel.stages()) {
    for (const v1::LoopOp& op : stage.ops()) {
      const auto opcode = static_cast<LoopOpcode>(op.op());
      if ((opcode != LoopOpcode::kLoad && opcode != LoopOpcode::kStore) || op.buffer() != buffer) continue;
      const Elements one = IndexRange(kernel, stage, op.index());
      if (!one) return std::nullopt;
      all = all ? std::pair(std::min(all->first, one->first), std::max(all->second, one->second)) : *one;
    }
  }
  return all;
}

class Grouper {
 public:
  Grouper(LoopContext& context, std::vector<ScheduledStep>& steps) : context_(context), steps_(steps) {
    outputs_.assign(context.graph().buffers.size(), 0);
    for (const LoopGraphOutput& output : context.graph().outputs) {
      if (output.kind == LoopGraphOutput::Kind::kView) outputs_[output.view.buffer] = 1;
    }
  }

  std::vector<ScheduledStep> Run() {
    for (size_t begin = 0; begin < steps_.size();) {
      size_t end = begin;
      while (end < steps_.size() && std::holds_alternative<ScheduledKernel>(steps_[end])) ++end;
      if (cost::PaysSharedLaunch(end - begin)) {
        GroupKernels(begin, end);
      } else {
        for (size_t s = begin; s < end; ++s) result_.push_back(std::move(steps_[s]));
      }
      if (end < steps_.size()) result_.push_back(std::move(steps_[end++]));
      begin = end;
    }
    return std::move(result_);
  }

 private:
  static constexpr size_t kAlone = SIZE_MAX;

  struct Known {
    uint32_t depth = 0;         // kernels before it that wait for one another
    std::vector<size_t> waits;  // for steps
    size_t group = kAlone;
  };
  struct Group {
    std::vector<size_t> members;  // steps
    std::vector<int> symbols;     // expressions of the kernel that are constants of each member's own
  };

  // The kernels [begin, end), between which nothing else lies.
  void GroupKernels(size_t begin, size_t end) {
    known_.assign(end - begin, {});
    first_ = begin;
    FindWaits(end);
    FindGroups(end);
    Emit(end);
  }

  Known& At(size_t s) { return known_[s - first_]; }

  void FindWaits(size_t end) {
    struct Access {
      size_t step;
      BufferId buffer;
      Elements elements;
      bool writes;
    };
    absl::flat_hash_map<uint32_t, std::vector<Access>> memory;
    for (size_t s = first_; s < end; ++s) {
      const ScheduledKernel& kernel = KernelOf(s);
      Known& known = At(s);
      for (size_t i = 0; i < kernel.operands.buffers.size(); ++i) {
        const BufferId buffer = kernel.operands.buffers[i];
        const Access own = {s, buffer, AccessedElements(kernel.kernel, static_cast<uint32_t>(i)),
                            kernel.kernel.buffers(static_cast<int>(i)).access() != v1::READ};
        std::vector<Access>& others = memory[context_.MemoryOf(buffer)];
        for (const Access& other : others) {
          if (other.step == s || (!own.writes && !other.writes)) continue;
          if (other.buffer == buffer && !Overlap(own.elements, other.elements)) continue;
          known.waits.push_back(other.step);
          known.depth = std::max(known.depth, At(other.step).depth + 1);
        }
        // What comes later waits for this one, and by it for all before.
        if (own.writes && !own.elements) others.clear();
        others.push_back(own);
      }
    }
  }

  void FindGroups(size_t end) {
    // Kernels of one depth do not wait for one another, and groups of such close no cycle.
    std::map<std::pair<uint32_t, std::string>, std::vector<size_t>> alike;
    for (size_t s = first_; s < end; ++s) {
      const v1::Kernel& kernel = KernelOf(s).kernel;
      if (IsGemmOfGpu(KernelOf(s))) continue;
      alike[{At(s).depth, SkeletonOf(kernel, GeneralConstants(kernel))}].push_back(s);
    }
    groups_.clear();
    for (auto& [key, members] : alike) {
      if (!cost::PaysSharedLaunch(members.size()) || HeldBytes(members) > kGroupHeldBytesMax) continue;
      Group group{std::move(members), {}};
      group.symbols = DifferingConstants(group.members);
      if (!cost::PaysSharedLaunch(MembersThatFit(group))) continue;
      for (size_t s : group.members) At(s).group = groups_.size();
      groups_.push_back(std::move(group));
    }
  }

  // Of blocks enough, by a schedule that has its sizes.
  bool IsGemmOfGpu(const ScheduledKernel& kernel) const {
    const std::vector<BufferId>& buffers = kernel.operands.buffers;
    if (buffers.empty() || !context_.HasThreads(buffers[0])) return false;
    const KernelFacts facts(kernel.kernel);
    return facts.ExpressionsFit() && ChooseGemmThreads(facts, context_.machine()).has_value();
  }

  std::vector<int> DifferingConstants(const std::vector<size_t>& members) const {
    const v1::Kernel& first = KernelOf(members.front()).kernel;
    std::vector<int> differing;
    for (int e : GeneralConstants(first)) {
      const auto differs = [&](size_t s) {
        return KernelOf(s).kernel.exprs(e).value() != first.exprs(e).value();
      };
      if (std::any_of(members.begin(), members.end(), differs)) differing.push_back(e);
    }
    return differing;
  }

  // The table has an address a buffer.
  uint32_t MembersThatFit(const Group& group) const {
    const v1::Kernel& kernel = KernelOf(group.members.front()).kernel;
    return MemberTable::MembersThatFit(static_cast<uint32_t>(kernel.buffers_size() + group.symbols.size()) +
                                       kernel.symbol_count());
  }

  int64_t HeldBytes(const std::vector<size_t>& members) {
    absl::flat_hash_set<BufferId> held;
    int64_t bytes = 0;
    for (size_t s : members) {
      for (BufferId b : KernelOf(s).operands.buffers) {
        if (context_.graph().buffers[b].kind == LoopBuffer::Kind::kInput || outputs_[b] != 0) continue;
        if (held.insert(b).second) bytes += context_.EstimateBytes(b);
      }
    }
    return bytes;
  }

  // Each group when all that its members wait for is done, else in the order as it was.
  void Emit(size_t end) {
    const auto representative = [&](size_t s) {
      return At(s).group == kAlone ? s : groups_[At(s).group].members.front();
    };
    std::vector<std::vector<size_t>> followers(known_.size());
    std::vector<size_t> waiting(known_.size(), 0);
    for (size_t s = first_; s < end; ++s) {
      for (size_t on : At(s).waits) {
        followers[representative(on) - first_].push_back(representative(s));
        ++waiting[representative(s) - first_];
      }
    }
    std::priority_queue<size_t, std::vector<size_t>, std::greater<size_t>> ready;
    for (size_t s = first_; s < end; ++s) {
      if (representative(s) == s && waiting[s - first_] == 0) ready.push(s);
    }
    while (!ready.empty()) {
      const size_t s = ready.top();
      ready.pop();
      if (At(s).group == kAlone) {
        result_.push_back(std::move(steps_[s]));
      } else {
        result_.push_back(Grouped(groups_[At(s).group]));
      }
      for (size_t next : followers[s - first_]) {
        if (--waiting[next - first_] == 0) ready.push(next);
      }
    }
  }

  ScheduledKernel& KernelOf(size_t s) const { return std::get<ScheduledKernel>(steps_[s]); }

  LaunchOperands OperandsOf(size_t s, const Group& group) {
    ScheduledKernel& kernel = KernelOf(s);
    LaunchOperands operands = std::move(kernel.operands);
    for (int e : group.symbols)
      operands.symbols.push_back(context_.pool().Const(kernel.kernel.exprs(e).value()));
    return operands;
  }

  ScheduledKernel Grouped(const Group& group) {
    ScheduledKernel kernel;
    kernel.bytes_read = kernel.bytes_written = context_.pool().Const(0);
    kernel.operands = OperandsOf(group.members.front(), group);
    for (size_t i = 1; i < group.members.size(); ++i)
      kernel.others.push_back(OperandsOf(group.members[i], group));
    for (size_t s : group.members) {
      const ScheduledKernel& member = KernelOf(s);
      kernel.bytes_read = context_.pool().Add(kernel.bytes_read, member.bytes_read);
      kernel.bytes_written = context_.pool().Add(kernel.bytes_written, member.bytes_written);
      kernel.origins.insert(kernel.origins.end(), member.origins.begin(), member.origins.end());
    }
    std::sort(kernel.origins.begin(), kernel.origins.end());
    kernel.kernel = std::move(KernelOf(group.members.front()).kernel);
    kernel.notes = std::move(KernelOf(group.members.front()).notes);
    for (int e : group.symbols) {
      kernel.kernel.mutable_exprs(e)->set_op(v1::EXPR_SYMBOL);
      kernel.kernel.mutable_exprs(e)->set_value(kernel.kernel.symbol_count());
      kernel.kernel.set_symbol_count(kernel.kernel.symbol_count() + 1);
    }
    // A GPU's launch carries a table of so many, a CPU's takes any number.
    if (context_.HasThreads(kernel.operands.buffers.front())) {
      kernel.kernel.mutable_schedule()->set_members(MemberTable::MembersThatFit(
          static_cast<uint32_t>(kernel.kernel.buffers_size()) + kernel.kernel.symbol_count()));
    }
    return kernel;
  }

  LoopContext& context_;
  std::vector<ScheduledStep>& steps_;
  std::vector<char> outputs_;  // by buffer
  std::vector<ScheduledStep> result_;
  // Of the kernels that are looked at.
  size_t first_ = 0;
  std::vector<Known> known_;
  std::vector<Group> groups_;
};

}  // namespace

void GroupLaunches(LoopContext& context, std::vector<ScheduledStep>* steps) {
  *steps = Grouper(context, *steps).Run();
}

}  // namespace kiln
