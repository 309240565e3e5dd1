// What is known of a graph's values before any is lowered: who reads them, and what their memory has to be.
//
// Ownership: value semantics; made once a graph. Threads: none shared. Errors: none; a malformed node says
// nothing of its arguments, and fails when it is lowered.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "compiler/graph/graph.h"
#include "compiler/lower/loop_graph.h"

namespace kiln {

// Everything is by value.
struct ValueFacts {
  std::vector<uint32_t> uses;              // consumers, looking through views
  std::vector<bool> memory_uses;           // some consumer is no loop: a library call, an output
  std::vector<bool> pinned;                // as PinnedLayouts (pinned_layouts.h) says
  std::vector<bool> shared;                // as SharedByOutputs
  std::vector<ValueId> owners;             // as MemoryOwners
  std::vector<int64_t> padded_row_length;  // as FindRowPadding (padding.h) says
  absl::flat_hash_map<ValueId, std::vector<SizeBind>> binds;  // symbols that are sizes of the value

  bool UsedByLoopsOnly(ValueId id) const { return !memory_uses[id]; }
  // The value's storage is aliased by several results that the caller sees.
  bool IsShared(ValueId id) const { return shared[owners[id]]; }
};

ValueFacts FindValueFacts(const Graph& graph);

// Each tensor argument of the node, those of lists included, absent ones not.
void VisitTensors(const GraphNode& node, absl::FunctionRef<void(ValueId)> visit);

}  // namespace kiln
