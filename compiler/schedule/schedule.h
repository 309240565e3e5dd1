// From loop nodes to kernels: which nodes share a kernel, in which order steps run, how each
// kernel's loops are merged, vectorised and split over threads.
//
// `ScheduleLoops` fuses greedily over pairs that share memory (can_fuse.h legality, score_fusion.h
// merit): vertical, horizontal, and a reduction with its pointwise neighbours. The result keeps the
// LoopGraph's semantics and is a valid execution order. Deterministic.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/lower/loop_graph.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// What one launch of a kernel works on.
struct LaunchOperands {
  std::vector<BufferId> buffers;  // by Kernel.buffers position
  std::vector<ExprId> symbols;    // by Kernel symbol: LoopGraph expressions
  ExprId units = 0;
};

struct ScheduledKernel {
  v1::Kernel kernel;  // canonical: equal kernels are equal bytes
  v1::KernelNotes notes;
  LaunchOperands operands;
  std::vector<LaunchOperands> others;  // of the same launch, in any order (group_launches.h)
  ExprId bytes_read = 0;               // by all of them
  ExprId bytes_written = 0;
  std::vector<uint32_t> origins;  // imported nodes that it computes, ascending

  // Calls fn(operands) for each set.
  template <typename Fn>
  void ForOperands(Fn fn) const {
    fn(operands);
    for (const LaunchOperands& other : others) fn(other);
  }
};

using ScheduledStep = std::variant<ScheduledKernel, CallNode, SeedsNode, LetNode, ConditionNode>;

struct Schedule {
  std::vector<ScheduledStep> steps;  // buffers that vanished into kernels appear nowhere

  std::string ToString(const LoopGraph& graph) const;
};

struct ScheduleOptions {
  bool fuse = true;   // false: one kernel a loop node, for tests and for finding bugs
  bool group = true;  // false: one launch a kernel, likewise
  Machine machine;
};

// `graph` gains index expressions (loop merging, unit counts), and large column sums become two nodes
// with a buffer between them (split_columns.h).
absl::StatusOr<Schedule> ScheduleLoops(LoopGraph& graph, const ScheduleOptions& options = {});

}  // namespace kiln
