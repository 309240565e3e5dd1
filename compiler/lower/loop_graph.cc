#include "compiler/lower/loop_graph.h"

#include <algorithm>
#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/lower/strides.h"

namespace kiln {

std::string ExprsText(const ExprPool& exprs, const std::vector<ExprId>& ids) {
  return absl::StrCat(
      "[",
      absl::StrJoin(ids, ", ",
                    [&](std::string* out, ExprId id) { absl::StrAppend(out, exprs.ToString(id)); }),
      "]");
}

namespace {

bool SameOp(const LoopOpData& a, const LoopOpData& b) {
  return a.op == b.op && a.dtype == b.dtype && a.buffer == b.buffer && a.index == b.index &&
         a.bits == b.bits && a.mode == b.mode && a.args == b.args;
}

size_t HashOp(const LoopOpData& op) {
  return absl::HashOf(static_cast<uint32_t>(op.op), static_cast<int>(op.dtype), op.args, op.buffer, op.index,
                      op.bits, op.mode);
}

std::string ConstantText(const LoopOpData& op) {
  if (!IsFloat(op.dtype)) return absl::StrCat(static_cast<int64_t>(op.bits));
  double value;
  std::memcpy(&value, &op.bits, sizeof value);
  return absl::StrCat(value);
}

std::string OpText(const ExprPool& exprs, const LoopBody& body, LoopOpId id) {
  const LoopOpData& op = body.op(id);
  auto args =
      absl::StrJoin(op.args, ", ", [](std::string* out, LoopOpId arg) { absl::StrAppend(out, "%", arg); });
  std::string text = absl::StrCat("%", id, " = ", InfoOf(op.op).name, ".", DTypeName(op.dtype));
  switch (op.op) {
    case LoopOpcode::kConstant: return absl::StrCat(text, " ", ConstantText(op));
    case LoopOpcode::kIndexExpr: return absl::StrCat(text, " ", exprs.ToString(op.index));
    case LoopOpcode::kLoad:
      return absl::StrCat(text, " b", op.buffer, "[", exprs.ToString(op.index), "]",
                          args.empty() ? "" : " if ", args);
    case LoopOpcode::kStore:
      return absl::StrCat("store.", DTypeName(op.dtype), " b", op.buffer, "[", exprs.ToString(op.index), "] ",
                          op.mode == v1::STORE_ACCUMULATE ? "+= " : "= ", args);
    case LoopOpcode::kCheckIndex:
      return absl::StrCat(text, " ", args, op.mode == v1::INDEX_FROM_START ? " in " : " from either end in ",
                          exprs.ToString(op.index));
    case LoopOpcode::kReduce:
    case LoopOpcode::kScan: return absl::StrCat(text, " ", v1::ReduceKind_Name(op.mode), " ", args);
    default: return absl::StrCat(text, " ", args);
  }
}

std::string LoopsText(const ExprPool& exprs, const std::vector<LoopVar>& vars) {
  return absl::StrJoin(vars, ", ", [&](std::string* out, const LoopVar& var) {
    absl::StrAppend(out, exprs.ToString(var.leaf), " < ", exprs.ToString(var.extent));
  });
}

std::string ViewText(const ExprPool& exprs, const BufferView& view) {
  return absl::StrCat("b", view.buffer, ":", DTypeName(view.dtype), ExprsText(exprs, view.sizes), "/",
                      ExprsText(exprs, view.strides), "+", exprs.ToString(view.offset));
}

void AppendLoops(const ExprPool& exprs, const LoopNode& node, std::string* out) {
  absl::StrAppend(out, "loops (", LoopsText(exprs, node.outer), ")");
  if (!node.inner.empty()) {
    absl::StrAppend(out,
                    node.ordered ? " ordered ("
                    : node.gemm  ? " gemm ("
                                 : " inner (",
                    LoopsText(exprs, node.inner), ")");
  }
  absl::StrAppend(out, "  # ", absl::StrJoin(node.operators, " "), "\n");
  for (LoopOpId id = 0; id < node.body.size(); ++id) {
    absl::StrAppend(out, "    ", OpText(exprs, node.body, id), "\n");
  }
}

void AppendCall(const ExprPool& exprs, const CallNode& call, std::string* out) {
  absl::StrAppend(
      out, "call ", call.target, " (",
      absl::StrJoin(call.tensors, ", ",
                    [&](std::string* s, const BufferView& v) { absl::StrAppend(s, ViewText(exprs, v)); }),
      ") -> ", absl::StrJoin(call.results, ", "), call.into_results ? " into" : "");
  for (const SizeBind& bind : call.binds)
    absl::StrAppend(out, " s", bind.symbol, "=size(", bind.result, ", ", bind.dim, ")");
  absl::StrAppend(out, "  # ", call.reason, "\n");
}

}  // namespace

LoopOpId LoopBody::Add(LoopOpData op) {
  const LoopOpId id = static_cast<LoopOpId>(ops_.size());
  if (op.op != LoopOpcode::kStore) {
    auto& bucket = index_[HashOp(op)];
    for (LoopOpId other : bucket) {
      if (SameOp(ops_[other], op)) return other;
    }
    bucket.push_back(id);
  }
  ops_.push_back(std::move(op));
  return id;
}

BufferId LoopGraph::AddBuffer(v1::DType dtype, v1::DeviceType device, const std::vector<ExprId>& sizes,
                              const std::vector<ExprId>& strides) {
  LoopBuffer buffer;
  buffer.dtype = dtype;
  buffer.device = device;
  buffer.sizes = sizes;
  buffer.strides = strides;
  buffer.span = SpanOfElements(exprs, sizes, strides);
  buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(buffers.size() - 1);
}

BufferView LoopGraph::Whole(BufferId buffer) {
  const LoopBuffer& made = buffers[buffer];
  return BufferView{buffer, made.dtype, made.sizes, made.strides, exprs.Const(0)};
}

BufferId LoopGraph::StorageOf(BufferId buffer) const {
  while (buffers[buffer].shares >= 0) buffer = static_cast<BufferId>(buffers[buffer].shares);
  return buffer;
}

bool LoopGraph::Require(ExprId condition) {
  if (const auto known = exprs.AsConst(condition)) return *known != 0;
  std::vector<ExprId>& list = HasUnbacked(exprs, symbols, condition) ? checks : guards;
  if (!absl::c_linear_search(given, condition) && !absl::c_linear_search(list, condition)) {
    list.push_back(condition);
  }
  return true;
}

void LoopGraph::AddUnbacked(ExprId id, std::vector<uint32_t>* found) const {
  for (ExprId leaf : LeavesOf(exprs, id)) {
    const ExprNode& node = exprs.node(leaf);
    if (node.op == v1::EXPR_SYMBOL && IsUnbacked(symbols[node.value]))
      found->push_back(static_cast<uint32_t>(node.value));
    if (const auto extent = exprs.Extent(leaf)) AddUnbacked(*extent, found);
  }
}

void LoopGraph::PlaceChecks() {
  if (checks.empty()) return;
  // After how many nodes each symbol is set.
  std::vector<size_t> set(symbols.size(), 0);
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].kind == LoopGraphNode::Kind::kLet) set[nodes[n].let.symbol] = n + 1;
    for (const SizeBind& bind : nodes[n].call.binds) set[bind.symbol] = n + 1;
  }
  std::vector<std::vector<ExprId>> after(nodes.size() + 1);
  for (ExprId condition : checks) {
    std::vector<uint32_t> used;
    AddUnbacked(condition, &used);
    size_t place = 0;
    for (uint32_t symbol : used) place = std::max(place, set[symbol]);
    after[place].push_back(condition);
  }
  std::vector<LoopGraphNode> placed;
  for (size_t n = 0; n <= nodes.size(); ++n) {
    for (ExprId condition : after[n]) {
      LoopGraphNode node;
      node.kind = LoopGraphNode::Kind::kCheck;
      node.check = {condition,
                    absl::StrCat("Runtime assertion failed: sizes do not fit: ", exprs.ToString(condition))};
      placed.push_back(std::move(node));
    }
    if (n < nodes.size()) placed.push_back(std::move(nodes[n]));
  }
  nodes = std::move(placed);
  checks.clear();
}

std::string LoopGraph::ToString() const {
  std::string out;
  for (BufferId id = 0; id < buffers.size(); ++id) {
    const LoopBuffer& buffer = buffers[id];
    absl::StrAppend(&out, "b", id, " ", DTypeName(buffer.dtype), ExprsText(exprs, buffer.sizes), "/",
                    ExprsText(exprs, buffer.strides), " span ", exprs.ToString(buffer.span));
    if (buffer.kind == LoopBuffer::Kind::kInput) absl::StrAppend(&out, " input ", buffer.input);
    absl::StrAppend(&out, "\n");
  }
  for (const LoopGraphNode& node : nodes) {
    switch (node.kind) {
      case LoopGraphNode::Kind::kLoops: AppendLoops(exprs, node.loops, &out); break;
      case LoopGraphNode::Kind::kCall: AppendCall(exprs, node.call, &out); break;
      case LoopGraphNode::Kind::kSeeds:
        absl::StrAppend(&out, "seeds b", node.seeds.buffer, " x", node.seeds.count, "\n");
        break;
      case LoopGraphNode::Kind::kLet:
        absl::StrAppend(&out, "let s", node.let.symbol, " = ",
                        node.let.number ? exprs.ToString(*node.let.number) : ViewText(exprs, node.let.item),
                        "\n");
        break;
      case LoopGraphNode::Kind::kCheck:
        absl::StrAppend(&out, "check ", exprs.ToString(node.check.condition), "\n");
        break;
    }
  }
  for (const LoopGraphOutput& output : outputs) {
    absl::StrAppend(&out, "output ");
    if (output.kind == LoopGraphOutput::Kind::kView) absl::StrAppend(&out, ViewText(exprs, output.view));
    if (output.kind == LoopGraphOutput::Kind::kSymInt) absl::StrAppend(&out, exprs.ToString(output.sym_int));
    absl::StrAppend(&out, "\n");
  }
  return out;
}

}  // namespace kiln
