#include "compiler/schedule/group_launches.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/support/member_table.h"
#include "compiler/support/proto_util.h"

namespace kiln {
namespace {

constexpr int64_t kHeldBytesMax = int64_t{1} << 20;  // of the program's own memory, by all members

// The kernel with the extent of its one outer loop as a further symbol. A constant may be a symbol that has
// its value: nothing that the kernel computes changes.
struct Generalized {
  v1::Kernel kernel;
  std::optional<int64_t> extent;  // the further symbol's value
};

Generalized Generalize(const v1::Kernel& kernel) {
  Generalized result{kernel, std::nullopt};
  if (kernel.outer_size() != 1) return result;
  v1::ExprNode& extent = *result.kernel.mutable_exprs(static_cast<int>(kernel.outer(0)));
  if (extent.op() != v1::EXPR_CONST) return result;
  result.extent = extent.value();
  extent.set_op(v1::EXPR_SYMBOL);
  extent.set_value(kernel.symbol_count());
  result.kernel.set_symbol_count(kernel.symbol_count() + 1);
  return result;
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
      while (end < steps_.size() && steps_[end].kind == ScheduledStep::Kind::kKernel) ++end;
      if (end - begin >= kLaunchMembersMin) {
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
    Generalized general;
    uint32_t depth = 0;         // kernels before it that wait for one another
    std::vector<size_t> waits;  // for steps
    size_t group = kAlone;
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
    struct Memory {
      std::optional<size_t> writer;
      std::vector<size_t> readers;
    };
    absl::flat_hash_map<uint32_t, Memory> memory;
    for (size_t s = first_; s < end; ++s) {
      const ScheduledKernel& kernel = steps_[s].kernel;
      Known& known = At(s);
      const auto wait = [&](size_t on) {
        if (on == s) return;
        known.waits.push_back(on);
        known.depth = std::max(known.depth, At(on).depth + 1);
      };
      for (size_t i = 0; i < kernel.operands.buffers.size(); ++i) {
        Memory& m = memory[context_.MemoryOf(kernel.operands.buffers[i])];
        const bool writes = kernel.kernel.buffers(static_cast<int>(i)).access() != v1::READ;
        if (m.writer) wait(*m.writer);
        if (writes) {
          for (size_t reader : m.readers) wait(reader);
          m = {s, {}};
        } else {
          m.readers.push_back(s);
        }
      }
    }
  }

  void FindGroups(size_t end) {
    // Kernels of one depth do not wait for one another, and groups of such close no cycle.
    std::map<std::pair<uint32_t, std::string>, std::vector<size_t>> alike;
    for (size_t s = first_; s < end; ++s) {
      Known& known = At(s);
      known.general = Generalize(steps_[s].kernel.kernel);
      alike[{known.depth, SerializeDeterministic(known.general.kernel)}].push_back(s);
    }
    groups_.clear();
    for (auto& [key, members] : alike) {
      if (members.size() < kLaunchMembersMin || HeldBytes(members) > kHeldBytesMax) continue;
      if (MembersThatFit(members.front()) < kLaunchMembersMin) continue;
      for (size_t s : members) At(s).group = groups_.size();
      groups_.push_back(std::move(members));
    }
  }

  // The table has an address a buffer.
  uint32_t MembersThatFit(size_t s) {
    const v1::Kernel& kernel = At(s).general.kernel;
    return MemberTable::MembersThatFit(static_cast<uint32_t>(kernel.buffers_size()) + kernel.symbol_count());
  }

  int64_t HeldBytes(const std::vector<size_t>& members) {
    absl::flat_hash_set<BufferId> held;
    int64_t bytes = 0;
    for (size_t s : members) {
      for (BufferId b : steps_[s].kernel.operands.buffers) {
        if (context_.graph().buffers[b].kind == LoopBuffer::Kind::kInput || outputs_[b] != 0) continue;
        if (held.insert(b).second) bytes += context_.EstimateBytes(b);
      }
    }
    return bytes;
  }

  // Each group when all that its members wait for is done, else in the order as it was.
  void Emit(size_t end) {
    const auto representative = [&](size_t s) {
      return At(s).group == kAlone ? s : groups_[At(s).group].front();
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
      result_.push_back(At(s).group == kAlone ? std::move(steps_[s]) : Grouped(groups_[At(s).group]));
      for (size_t next : followers[s - first_]) {
        if (--waiting[next - first_] == 0) ready.push(next);
      }
    }
  }

  LaunchOperands OperandsOf(size_t s) {
    LaunchOperands operands = std::move(steps_[s].kernel.operands);
    if (const auto extent = At(s).general.extent) operands.symbols.push_back(context_.pool().Const(*extent));
    return operands;
  }

  ScheduledStep Grouped(const std::vector<size_t>& members) {
    ScheduledStep step = std::move(steps_[members.front()]);
    ScheduledKernel& kernel = step.kernel;
    const bool on_gpu = context_.graph().buffers[kernel.operands.buffers.front()].device == v1::CUDA;
    kernel.kernel = At(members.front()).general.kernel;
    if (const auto extent = At(members.front()).general.extent)
      kernel.operands.symbols.push_back(context_.pool().Const(*extent));
    for (size_t i = 1; i < members.size(); ++i) {
      const ScheduledKernel& other = steps_[members[i]].kernel;
      kernel.bytes_read = context_.pool().Add(kernel.bytes_read, other.bytes_read);
      kernel.bytes_written = context_.pool().Add(kernel.bytes_written, other.bytes_written);
      kernel.origins.insert(kernel.origins.end(), other.origins.begin(), other.origins.end());
      kernel.others.push_back(OperandsOf(members[i]));
    }
    std::sort(kernel.origins.begin(), kernel.origins.end());
    if (on_gpu) kernel.kernel.mutable_schedule()->set_members(MembersThatFit(members.front()));
    return step;
  }

  LoopContext& context_;
  std::vector<ScheduledStep>& steps_;
  std::vector<char> outputs_;  // by buffer
  std::vector<ScheduledStep> result_;
  // Of the kernels that are looked at.
  size_t first_ = 0;
  std::vector<Known> known_;
  std::vector<std::vector<size_t>> groups_;
};

}  // namespace

void GroupLaunches(LoopContext& context, std::vector<ScheduledStep>* steps) {
  *steps = Grouper(context, *steps).Run();
}

}  // namespace kiln
