#include "compiler/schedule/schedule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/schedule/draft_to_kernel.h"
#include "compiler/schedule/fuse.h"
#include "compiler/schedule/group_launches.h"
#include "compiler/schedule/loop_context.h"
#include "compiler/schedule/split_columns.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// Which buffers somebody outside of one group sees.
class Visibility {
 public:
  Visibility(const LoopGraph& graph, const std::vector<FusedGroup>& groups) : graph_(graph) {
    output_.assign(graph.buffers.size(), 0);
    for (const LoopGraphOutput& output : graph.outputs) {
      if (output.kind == LoopGraphOutput::Kind::kView) output_[output.view.buffer] = 1;
    }
    first_user_.assign(graph.buffers.size(), -1);
    shared_.assign(graph.buffers.size(), 0);
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::vector<uint32_t> own = {groups[g].node};
      for (uint32_t n : groups[g].loops ? groups[g].draft.nodes : own) {
        NodeAccess access = AccessOf(graph.nodes[n]);
        for (BufferId b : access.reads) Use(b, static_cast<int64_t>(g));
        for (BufferId b : access.writes) Use(b, static_cast<int64_t>(g));
      }
    }
  }

  bool Escapes(BufferId b) const {
    return shared_[b] || output_[b] || graph_.buffers[b].kind == LoopBuffer::Kind::kInput;
  }

 private:
  void Use(BufferId b, int64_t group) {
    if (first_user_[b] >= 0 && first_user_[b] != group) shared_[b] = 1;
    first_user_[b] = group;
  }

  const LoopGraph& graph_;
  std::vector<char> output_;
  std::vector<char> shared_;
  std::vector<int64_t> first_user_;
};

std::vector<uint32_t> OriginsOf(const LoopGraph& graph, const std::vector<uint32_t>& nodes) {
  std::vector<uint32_t> origins;
  for (uint32_t n : nodes) {
    const std::vector<uint32_t>& from = graph.nodes[n].loops.origins;
    origins.insert(origins.end(), from.begin(), from.end());
  }
  std::sort(origins.begin(), origins.end());
  origins.erase(std::unique(origins.begin(), origins.end()), origins.end());
  return origins;
}

// "loop node 3 (node 12, aten.add.Tensor)": with the graph's own node, where one is known.
std::string PlaceOf(const LoopGraph& graph, const std::vector<uint32_t>& nodes) {
  std::string place = absl::StrCat("loop node ", nodes[0]);
  const std::vector<uint32_t> origins = OriginsOf(graph, nodes);
  const std::vector<std::string>& operators = graph.nodes[nodes.back()].loops.operators;
  if (!origins.empty() && !operators.empty())
    absl::StrAppend(&place, " (node ", origins.back(), ", ", operators.back(), ")");
  return place;
}

// A step's line, and a kernel's buffers and operators below it.
struct StepText {
  const ExprPool& exprs;

  std::string operator()(const ScheduledKernel& step) const {
    const v1::Kernel& kernel = step.kernel;
    std::string text = absl::StrCat(
        "kernel ", step.notes.name(), " outer=", kernel.outer_size(), " stages=", kernel.stages_size(),
        " units=", exprs.ToString(step.operands.units), " parallel_dims=", kernel.schedule().parallel_dims(),
        " chunk=", kernel.schedule().chunk(), " ", v1::VectorDim_Name(kernel.schedule().vector_dim()));
    step.ForOperands([&](const LaunchOperands& operands) {
      absl::StrAppend(&text, "\n   buffers");
      for (size_t b = 0; b < operands.buffers.size(); ++b) {
        absl::StrAppend(&text, " b", operands.buffers[b], ":",
                        v1::BufferAccess_Name(kernel.buffers(static_cast<int>(b)).access()));
      }
    });
    return absl::StrCat(text, "\n   operators ", absl::StrJoin(step.notes.operators(), " "));
  }
  std::string operator()(const CallNode& call) const {
    return absl::StrCat("call ", call.target, " -> ", absl::StrJoin(call.results, ","), "  # ", call.reason);
  }
  std::string operator()(const SeedsNode& seeds) const {
    return absl::StrCat("seeds b", seeds.buffer, " count ", seeds.count);
  }
  std::string operator()(const LetNode& let) const {
    return absl::StrCat("let s", let.symbol, " = ",
                        let.number ? exprs.ToString(*let.number) : absl::StrCat("item b", let.item.buffer));
  }
  std::string operator()(const ConditionNode& check) const {
    return absl::StrCat("check ", exprs.ToString(check.condition));
  }
};

}  // namespace

absl::StatusOr<Schedule> ScheduleLoops(LoopGraph& graph, const ScheduleOptions& options) {
  SplitColumnSums(graph, options.machine);
  LoopContext context(graph, options.machine);
  FuseOptions fuse;
  fuse.fuse = options.fuse;
  KILN_ASSIGN_OR_RETURN(std::vector<FusedGroup> groups, FuseLoops(context, fuse));
  Visibility visibility(graph, groups);
  Schedule schedule;
  for (FusedGroup& group : groups) {
    const LoopGraphNode& node = graph.nodes[group.node];
    if (group.loops) {
      std::vector<uint32_t> nodes = group.draft.nodes;
      uint32_t serial = static_cast<uint32_t>(schedule.steps.size());
      auto kernel = BuildKernel(context, std::move(group.draft), serial,
                                [&](BufferId b) { return visibility.Escapes(b); });
      if (!kernel.ok()) return StatusWrap(kernel.status(), absl::StrCat("kernel of ", PlaceOf(graph, nodes)));
      if (kernel->kernel.stages().empty()) continue;  // nobody reads what it would compute
      kernel->origins = OriginsOf(graph, nodes);
      schedule.steps.push_back(*std::move(kernel));
    } else if (node.kind == LoopGraphNode::Kind::kCall) {
      schedule.steps.push_back(node.call);
    } else if (node.kind == LoopGraphNode::Kind::kSeeds) {
      schedule.steps.push_back(node.seeds);
    } else if (node.kind == LoopGraphNode::Kind::kLet) {
      schedule.steps.push_back(node.let);
    } else {
      schedule.steps.push_back(node.check);
    }
  }
  if (options.group) GroupLaunches(context, &schedule.steps);
  KILN_RETURN_IF_ERROR(graph.exprs.status());
  return schedule;
}

std::string Schedule::ToString(const LoopGraph& graph) const {
  std::string text;
  for (size_t i = 0; i < steps.size(); ++i)
    absl::StrAppend(&text, i, ": ", std::visit(StepText{graph.exprs}, steps[i]), "\n");
  return text;
}

}  // namespace kiln
