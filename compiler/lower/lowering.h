// Graph → LoopGraph: every node of the core set becomes loops over loop-level operators, library calls
// or nothing (views). One table, `LoweringTable`, maps an overload to its function; an overload that is
// not in it becomes a library call with the reason "no lowering", so any graph lowers.
//
// Values stay *virtual* (an index function with an explicit body) until something needs memory: a
// library call, a reduction's result, an output, or reuse that would repeat too much work
// (materializer.h has the rules). F16 and BF16 are computed in F32 and rounded where the graph names a
// value.
//
// Threads: a call keeps no state. Deterministic. Errors: INVALID_ARGUMENT for arguments that do not
// fit an operator, which name the node. Whether an overload mutates its arguments is not asked here: the
// client, who has the schema, sends none but copy_.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "compiler/graph/graph.h"
#include "compiler/lower/loop_graph.h"
#include "compiler/target/machine.h"

namespace kiln {

struct LowerOptions {
  Machine machine;
  bool fallback_random = false;  // random operators are library calls, so that they match eager
  bool round_values = true;      // off in a control alone: F16 and BF16 are rounded in memory only
  bool deterministic = false;    // sums that meet in an element have one order on a GPU as well
};

absl::StatusOr<LoopGraph> LowerGraph(const Graph& graph, const LowerOptions& options);

class LoweringContext;
using LowerFn = absl::Status (*)(LoweringContext& context, const GraphNode& node);
using LoweringTable = absl::flat_hash_map<OperatorName, LowerFn>;

// The one table; built on first use.
const LoweringTable& Lowerings();

// One a file; called by Lowerings().
void RegisterPointwise(LoweringTable& table);
void RegisterReductions(LoweringTable& table);
void RegisterViews(LoweringTable& table);
void RegisterIndexing(LoweringTable& table);
void RegisterCopies(LoweringTable& table);
void RegisterPadding(LoweringTable& table);
void RegisterCreation(LoweringTable& table);
void RegisterRandom(LoweringTable& table);
void RegisterWindows(LoweringTable& table);
void RegisterExterns(LoweringTable& table);
void RegisterMutation(LoweringTable& table);
void RegisterStorage(LoweringTable& table);
void RegisterSymbols(LoweringTable& table);

}  // namespace kiln
