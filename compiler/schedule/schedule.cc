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
    ScheduledStep step;
    const LoopGraphNode& node = graph.nodes[group.node];
    if (group.loops) {
      std::vector<uint32_t> nodes = group.draft.nodes;
      uint32_t serial = static_cast<uint32_t>(schedule.steps.size());
      auto kernel = BuildKernel(context, std::move(group.draft), serial,
                                [&](BufferId b) { return visibility.Escapes(b); });
      if (!kernel.ok()) return StatusWrap(kernel.status(), absl::StrCat("kernel of ", PlaceOf(graph, nodes)));
      if (kernel->kernel.stages().empty()) continue;  // nobody reads what it would compute
      step.kind = ScheduledStep::Kind::kKernel;
      step.kernel = *std::move(kernel);
      step.kernel.origins = OriginsOf(graph, nodes);
    } else if (node.kind == LoopGraphNode::Kind::kCall) {
      step.kind = ScheduledStep::Kind::kCall;
      step.call = node.call;
    } else if (node.kind == LoopGraphNode::Kind::kSeeds) {
      step.kind = ScheduledStep::Kind::kSeeds;
      step.seeds = node.seeds;
    } else if (node.kind == LoopGraphNode::Kind::kLet) {
      step.kind = ScheduledStep::Kind::kLet;
      step.let = node.let;
    } else {
      step.kind = ScheduledStep::Kind::kCheck;
      step.check = node.check;
    }
    schedule.steps.push_back(std::move(step));
  }
  if (options.group) GroupLaunches(context, &schedule.steps);
  KILN_RETURN_IF_ERROR(graph.exprs.status());
  return schedule;
}

std::string Schedule::ToString(const LoopGraph& graph) const {
  std::string text;
  for (size_t i = 0; i < steps.size(); ++i) {
    const ScheduledStep& step = steps[i];
    absl::StrAppend(&text, i, ": ");
    switch (step.kind) {
      case ScheduledStep::Kind::kKernel: {
        const v1::Kernel& kernel = step.kernel.kernel;
        absl::StrAppend(
            &text, "kernel ", step.kernel.notes.name(), " outer=", kernel.outer_size(),
            " stages=", kernel.stages_size(), " units=", graph.exprs.ToString(step.kernel.operands.units),
            " parallel_dims=", kernel.schedule().parallel_dims(), " chunk=", kernel.schedule().chunk(), " ",
            v1::VectorDim_Name(kernel.schedule().vector_dim()));
        step.kernel.ForOperands([&](const LaunchOperands& operands) {
          absl::StrAppend(&text, "\n   buffers");
          for (size_t b = 0; b < operands.buffers.size(); ++b) {
            absl::StrAppend(&text, " b", operands.buffers[b], ":",
                            v1::BufferAccess_Name(kernel.buffers(static_cast<int>(b)).access()));
          }
        });
        absl::StrAppend(&text, "\n   operators ", absl::StrJoin(step.kernel.notes.operators(), " "), "\n");
        break;
      }
      case ScheduledStep::Kind::kCall:
        absl::StrAppend(&text, "call ", step.call.target, " -> ", absl::StrJoin(step.call.results, ","),
                        "  # ", step.call.reason, "\n");
        break;
      case ScheduledStep::Kind::kSeeds:
        absl::StrAppend(&text, "seeds b", step.seeds.buffer, " count ", step.seeds.count, "\n");
        break;
      case ScheduledStep::Kind::kLet:
        absl::StrAppend(&text, "let s", step.let.symbol, " = ",
                        step.let.number ? graph.exprs.ToString(*step.let.number)
                                        : absl::StrCat("item b", step.let.item.buffer),
                        "\n");
        break;
      case ScheduledStep::Kind::kCheck:
        absl::StrAppend(&text, "check ", graph.exprs.ToString(step.check.condition), "\n");
        break;
    }
  }
  return text;
}

}  // namespace kiln
