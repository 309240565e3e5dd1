#include "compiler/schedule/kernel_exprs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// Not absl::Hash: the order must be the same in every process.
uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 32);
}

bool Commutes(v1::ExprOp op) { return op == v1::EXPR_ADD || op == v1::EXPR_MUL; }

}  // namespace

uint32_t KernelExprs::Intern(v1::ExprOp op, int64_t value, const std::vector<uint32_t>& args) {
  std::string key = absl::StrCat(static_cast<int>(op), ":", value);
  for (uint32_t arg : args) absl::StrAppend(&key, ",", arg);
  auto [it, added] = index_.try_emplace(std::move(key), static_cast<uint32_t>(kernel_.exprs_size()));
  if (added) {
    v1::ExprNode* node = kernel_.add_exprs();
    node->set_op(op);
    node->set_value(value);
    for (uint32_t arg : args) node->add_args(arg);
  }
  return it->second;
}

uint32_t KernelExprs::Symbol(ExprId id) {
  auto [it, added] = symbol_numbers_.try_emplace(id, static_cast<uint32_t>(symbols_.size()));
  if (added) symbols_.push_back(id);
  return Intern(v1::EXPR_SYMBOL, it->second, {});
}

absl::StatusOr<uint64_t> KernelExprs::StructureOf(ExprId id, IndirectFn indirect) {
  const ExprNode node = context_.pool().node(id);
  uint64_t hash = Mix(0x6b696c6e, static_cast<uint64_t>(node.op));
  if (node.op == v1::EXPR_VAR) {
    auto it = vars_.find(id);
    if (it == vars_.end()) return absl::InternalError("an index uses a loop variable of another kernel");
    return Mix(hash, it->second);
  }
  if (node.op == v1::EXPR_INDIRECT) {
    KILN_ASSIGN_OR_RETURN(uint32_t op, indirect(static_cast<LoopOpId>(node.value)));
    return Mix(hash, op);
  }
  // Which symbol it is must not matter to the order; its first use numbers it.
  if (node.op == v1::EXPR_SYMBOL) return hash;
  hash = Mix(hash, static_cast<uint64_t>(node.value));
  std::vector<uint64_t> parts;
  for (ExprId arg : node.args) {
    KILN_ASSIGN_OR_RETURN(uint64_t part, StructureOf(arg, indirect));
    parts.push_back(part);
  }
  if (Commutes(node.op)) std::sort(parts.begin(), parts.end());
  for (uint64_t part : parts) hash = Mix(hash, part);
  return hash;
}

absl::StatusOr<uint32_t> KernelExprs::Write(ExprId id, IndirectFn indirect) {
  ExprPool& pool = context_.pool();
  const ExprNode node = pool.node(id);
  if (node.op == v1::EXPR_CONST) return Intern(v1::EXPR_CONST, node.value, {});
  if (node.op == v1::EXPR_VAR) {
    auto it = vars_.find(id);
    if (it == vars_.end()) return absl::InternalError("an index uses a loop variable of another kernel");
    return Intern(v1::EXPR_VAR, it->second, {});
  }
  if (node.op == v1::EXPR_INDIRECT) {
    KILN_ASSIGN_OR_RETURN(uint32_t op, indirect(static_cast<LoopOpId>(node.value)));
    return Intern(v1::EXPR_INDIRECT, op, {});
  }
  if (!context_.HasLoopLeaf(id)) return Symbol(id);

  std::vector<ExprId> args(node.args.begin(), node.args.end());
  if (Commutes(node.op)) {
    std::vector<ExprId> fixed;
    std::vector<std::pair<uint64_t, ExprId>> varying;
    bool symbolic = false;
    for (ExprId arg : args) {
      if (context_.HasLoopLeaf(arg)) {
        KILN_ASSIGN_OR_RETURN(uint64_t structure, StructureOf(arg, indirect));
        varying.push_back({structure, arg});
      } else {
        fixed.push_back(arg);
        symbolic = symbolic || !pool.AsConst(arg);
      }
    }
    std::stable_sort(varying.begin(), varying.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    args.clear();
    for (const auto& [structure, arg] : varying) args.push_back(arg);
    if (symbolic && fixed.size() > 1) {
      args.push_back(node.op == v1::EXPR_ADD ? pool.Sum(fixed) : pool.Product(fixed));
    } else {
      args.insert(args.end(), fixed.begin(), fixed.end());
    }
  }
  std::vector<uint32_t> written;
  for (ExprId arg : args) {
    KILN_ASSIGN_OR_RETURN(uint32_t position, Write(arg, indirect));
    written.push_back(position);
  }
  return Intern(node.op, node.value, written);
}

absl::StatusOr<uint32_t> KernelExprs::WriteSize(ExprId id) {
  return Write(id, [](LoopOpId) -> absl::StatusOr<uint32_t> {
    return absl::InternalError("a loop extent depends on data");
  });
}

}  // namespace kiln
