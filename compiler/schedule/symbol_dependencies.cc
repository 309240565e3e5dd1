#include "compiler/schedule/symbol_dependencies.h"

#include <algorithm>
#include <variant>

#include "absl/algorithm/container.h"
#include "compiler/schedule/draft.h"

namespace kiln {

SymbolDependencies::SymbolDependencies(const LoopGraph& graph)
    : graph_(graph), before_(graph.symbols.size()) {
  any_ = absl::c_any_of(graph.symbols, IsUnbacked);
}

void SymbolDependencies::Add(ExprId id) { graph_.AddUnbacked(id, &used_); }

void SymbolDependencies::Add(const BufferView& view) {
  for (ExprId size : view.sizes) Add(size);
  for (ExprId stride : view.strides) Add(stride);
  Add(view.offset);
}

void SymbolDependencies::UsedBy(const LoopGraphNode& node, const NodeAccess& access) {
  for (const std::vector<BufferId>* buffers : {&access.reads, &access.writes}) {
    for (BufferId b : *buffers) {
      const LoopBuffer& buffer = graph_.buffers[b];
      for (ExprId size : buffer.sizes) Add(size);
      for (ExprId stride : buffer.strides) Add(stride);
      Add(buffer.span);
    }
  }
  switch (node.kind) {
    case LoopGraphNode::Kind::kLoops:
      for (const std::vector<LoopVar>* loops : {&node.loops.outer, &node.loops.inner}) {
        for (const LoopVar& loop : *loops) Add(loop.extent);
      }
      for (LoopOpId id = 0; id < node.loops.body.size(); ++id) {
        const LoopOpData& op = node.loops.body.op(id);
        if (HasIndex(op)) Add(op.index);
      }
      break;
    case LoopGraphNode::Kind::kCall:
      for (const BufferView& view : node.call.tensors) Add(view);
      for (const auto& [name, argument] : node.call.args) {
        if (const auto* number = std::get_if<IntArg>(&argument)) Add(number->value);
        if (const auto* numbers = std::get_if<IntListArg>(&argument)) {
          for (ExprId number : numbers->values) Add(number);
        }
      }
      break;
    case LoopGraphNode::Kind::kLet:
      if (node.let.number) {
        Add(*node.let.number);
      } else {
        Add(node.let.item);
      }
      break;
    case LoopGraphNode::Kind::kCheck: Add(node.check.condition); break;
    case LoopGraphNode::Kind::kSeeds: break;
  }
}

void SymbolDependencies::Visit(uint32_t n, const NodeAccess& access,
                               absl::FunctionRef<void(int64_t)> depend) {
  const LoopGraphNode& node = graph_.nodes[n];
  const bool check = node.kind == LoopGraphNode::Kind::kCheck;
  if (any_) {
    used_.clear();
    UsedBy(node, access);
    std::sort(used_.begin(), used_.end());
    used_.erase(std::unique(used_.begin(), used_.end()), used_.end());
    for (uint32_t symbol : used_) {
      for (uint32_t on : before_[symbol]) depend(on);
      if (check) before_[symbol].push_back(n);
    }
    if (node.kind == LoopGraphNode::Kind::kLet) before_[node.let.symbol].push_back(n);
    for (const SizeBind& bind : node.call.binds) before_[bind.symbol].push_back(n);
  }
  if (check) checks_.push_back(n);
  for (BufferId b : access.writes) {
    if (graph_.buffers[b].kind != LoopBuffer::Kind::kInput) continue;
    for (uint32_t on : checks_) depend(on);
  }
}

}  // namespace kiln
