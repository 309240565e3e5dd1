// A kernel in the making: one loop node, or several fused ones.
//
// Semantics: for each point of `outer`, every op in list order runs over the whole inner domain of its
// class (kOuterClass: once). That is vector-at-a-time order, so lists of two drafts over the same outer
// points can simply be appended; kernel_builder.h later runs ops of one class in common loops where
// dependencies allow. Reduce ops belong to a class, but their values are outer ones.
//
// Ownership: value semantics; op ids are unique over the whole LoopGraph, args and EXPR_INDIRECT leaves
// name them. Threads: one.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/lower/loop_graph.h"
#include "compiler/schedule/loop_context.h"

namespace kiln {

inline constexpr int kOuterClass = -1;

struct DraftOp {
  LoopOpId id = 0;
  int cls = kOuterClass;
  LoopOpData data;
};

struct DraftClass {
  std::vector<LoopVar> vars;
  bool ordered = false;  // loop order is fixed: scan, accumulating store, arg-reductions
};

struct Draft {
  std::vector<LoopVar> outer;
  std::vector<DraftClass> classes;
  std::vector<DraftOp> ops;
  std::vector<uint32_t> nodes;  // positions in LoopGraph::nodes, ascending
  bool gemm = false;            // one of the nodes is one (LoopNode::gemm)
};

// One load or store of a draft.
struct DraftAccess {
  BufferId buffer = 0;
  ExprId index = 0;
  int cls = kOuterClass;
  bool store = false;
  bool accumulate = false;
  bool masked = false;
  size_t position = 0;  // in Draft::ops
};

using LeafMap = absl::flat_hash_map<ExprId, ExprId>;

// Loops of one iteration vanish here.
Draft MakeDraft(LoopContext& context, uint32_t node);

std::vector<DraftAccess> Accesses(const Draft& draft);
bool HasIndex(const LoopOpData& op);

// Replaces loop variables in all index expressions.
void SubstituteVars(LoopContext& context, Draft& draft, const LeafMap& replacement);

// Sets the class of every op from the variables it depends on, given that all of the draft's loops are
// `outer` and those of class `cls`. For drafts that had no class before.
void AssignClass(LoopContext& context, Draft& draft, int cls);

// Ops whose values `op` reads, through arguments and through its index.
void AppendDependencies(LoopContext& context, const LoopOpData& op, std::vector<LoopOpId>* out);

}  // namespace kiln
