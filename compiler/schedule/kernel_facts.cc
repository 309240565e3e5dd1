#include "compiler/schedule/kernel_facts.h"

#include <algorithm>
#include <iterator>

#include "compiler/ir/reduce_kinds.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

StageFacts FactsOf(const v1::Stage& stage, uint32_t first_op) {
  StageFacts facts;
  facts.stage = &stage;
  facts.first_op = first_op;
  int exponentials = 0;
  for (const v1::LoopOp& op : stage.ops()) {
    const auto opcode = static_cast<LoopOpcode>(op.op());
    facts.has_scan |= opcode == LoopOpcode::kScan;
    facts.has_reduce |= opcode == LoopOpcode::kReduce;
    const bool cheap = cost::IsCheap(opcode) && !(opcode == LoopOpcode::kReduce &&
                                                  IsArgReduce(static_cast<v1::ReduceKind>(op.mode())));
    facts.cheap &= cheap;
    exponentials += IsExponential(opcode) ? 1 : 0;
    facts.short_body &= cheap || (IsExponential(opcode) && exponentials == 1);
  }
  return facts;
}

}  // namespace

KernelFacts::KernelFacts(const v1::Kernel& kernel) : kernel_(kernel) {
  for (const v1::Stage& stage : kernel.stages()) {
    stages_.push_back(FactsOf(stage, static_cast<uint32_t>(ops_.size())));
    for (const v1::LoopOp& op : stage.ops()) ops_.push_back(&op);
  }
  uses_.resize(ops_.size());
  for (const v1::LoopOp* op : ops_) {
    for (uint32_t arg : op->args()) ++uses_[arg];
  }
  indexes_by_values_ = std::any_of(kernel.exprs().begin(), kernel.exprs().end(),
                                   [](const v1::ExprNode& node) { return node.op() == v1::EXPR_INDIRECT; });
}

bool KernelFacts::IsReduction(uint32_t id, v1::ReduceKind kind) const {
  return opcode(id) == LoopOpcode::kReduce && op(id).mode() == static_cast<uint32_t>(kind);
}

const StageFacts& KernelFacts::StageOf(uint32_t op) const {
  const auto after = [](uint32_t id, const StageFacts& stage) { return id < stage.first_op; };
  return *std::prev(std::upper_bound(stages_.begin(), stages_.end(), op, after));
}

bool KernelFacts::ExpressionsFit() const {
  std::vector<uint64_t> sizes;
  for (const v1::ExprNode& node : kernel_.exprs()) {
    uint64_t size = 1;
    for (uint32_t arg : node.args()) size = std::min(size + sizes[arg], kKernelExpandedNodesMax + 1);
    sizes.push_back(size);
  }
  const auto fits = [&](uint32_t expr) { return sizes[expr] <= kKernelExpandedNodesMax; };
  bool all = std::all_of(kernel_.outer().begin(), kernel_.outer().end(), fits);
  for (const v1::Stage& stage : kernel_.stages()) {
    all = all && std::all_of(stage.inner().begin(), stage.inner().end(), fits);
  }
  return all && std::all_of(ops_.begin(), ops_.end(), [&](const v1::LoopOp* op) {
           const auto opcode = static_cast<LoopOpcode>(op->op());
           const bool indexes = opcode == LoopOpcode::kLoad || opcode == LoopOpcode::kStore ||
                                opcode == LoopOpcode::kIndexExpr || opcode == LoopOpcode::kCheckIndex;
           return !indexes || fits(op->index());
         });
}

std::optional<int64_t> KernelFacts::ConstantExpr(uint32_t expr) const {
  const v1::ExprNode& node = kernel_.exprs(static_cast<int>(expr));
  if (node.op() != v1::EXPR_CONST) return std::nullopt;
  return node.value();
}

std::optional<int64_t> KernelFacts::CoefficientOf(uint32_t expr, uint32_t variable) const {
  return CoefficientOf(expr, variable, [](uint32_t) { return false; });
}

std::optional<int64_t> KernelFacts::CoefficientOf(uint32_t expr, uint32_t variable, Varies varies) const {
  const v1::ExprNode& node = kernel_.exprs(static_cast<int>(expr));
  switch (node.op()) {
    case v1::EXPR_CONST:
    case v1::EXPR_SYMBOL: return 0;
    case v1::EXPR_VAR: return static_cast<uint32_t>(node.value()) == variable ? 1 : 0;
    case v1::EXPR_INDIRECT:
      if (varies(static_cast<uint32_t>(node.value()))) return std::nullopt;
      return 0;
    case v1::EXPR_ADD: {
      int64_t sum = 0;
      for (uint32_t arg : node.args()) {
        const std::optional<int64_t> coefficient = CoefficientOf(arg, variable, varies);
        if (!coefficient) return std::nullopt;
        sum += *coefficient;
      }
      return sum;
    }
    case v1::EXPR_MUL: {
      int64_t factor = 1;
      int64_t varying = 0;
      bool moves = false;
      bool constant = true;
      for (uint32_t arg : node.args()) {
        const std::optional<int64_t> coefficient = CoefficientOf(arg, variable, varies);
        if (!coefficient || (*coefficient != 0 && moves)) return std::nullopt;
        if (*coefficient != 0) {
          moves = true;
          varying = *coefficient;
        } else if (const std::optional<int64_t> value = ConstantExpr(arg)) {
          factor *= *value;
        } else {
          constant = false;
        }
      }
      if (!moves) return 0;
      if (!constant) return std::nullopt;
      return factor * varying;
    }
    default:
      for (uint32_t arg : node.args()) {
        if (CoefficientOf(arg, variable, varies) != 0) return std::nullopt;
      }
      return 0;
  }
}

bool KernelFacts::DependsOnOps(uint32_t expr) const {
  const v1::ExprNode& node = kernel_.exprs(static_cast<int>(expr));
  return node.op() == v1::EXPR_INDIRECT ||
         std::any_of(node.args().begin(), node.args().end(), [&](uint32_t arg) { return DependsOnOps(arg); });
}

bool KernelFacts::IsSourceLoad(const v1::LoopOp& op) const {
  return static_cast<LoopOpcode>(op.op()) == LoopOpcode::kLoad &&
         kernel_.buffers(static_cast<int>(op.buffer())).access() == v1::READ && !DependsOnOps(op.index());
}

bool KernelFacts::SameValue(uint32_t a, uint32_t b) const {
  int budget = kComparedOpsMax;
  return SameValue(a, b, &budget);
}

bool KernelFacts::SameValue(uint32_t a, uint32_t b, int* budget) const {
  if (a == b) return true;
  const v1::LoopOp& x = *ops_[a];
  const v1::LoopOp& y = *ops_[b];
  if (--*budget < 0 || x.op() != y.op() || x.dtype() != y.dtype() || x.mode() != y.mode() ||
      x.bits() != y.bits() || x.index() != y.index() || x.buffer() != y.buffer() ||
      x.args_size() != y.args_size()) {
    return false;
  }
  switch (static_cast<LoopOpcode>(x.op())) {
    case LoopOpcode::kReduce:
    case LoopOpcode::kScan:
    case LoopOpcode::kStore:
    case LoopOpcode::kCheckIndex: return false;
    case LoopOpcode::kLoad:
      if (!IsSourceLoad(x)) return false;
      break;
    case LoopOpcode::kIndexExpr:
      if (DependsOnOps(x.index())) return false;
      break;
    default: break;
  }
  for (int k = 0; k < x.args_size(); ++k) {
    if (!SameValue(x.args(k), y.args(k), budget)) return false;
  }
  return true;
}

bool KernelFacts::SameRow(const StageFacts& stage, uint32_t op) const {
  const StageFacts& other = StageOf(op);
  return other.IsRowPass() && other.stage->inner(0) == stage.stage->inner(0);
}

}  // namespace kiln
