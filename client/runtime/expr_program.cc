#include "client/runtime/expr_program.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kiln::runtime {
namespace {

constexpr ExprValue kInvalid{0, false};

ExprValue FloorDivide(int64_t a, int64_t b) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return kInvalid;
  int64_t quotient = a / b;
  if (a % b != 0 && ((a < 0) != (b < 0))) --quotient;
  return {quotient, true};
}

ExprValue Modulo(int64_t a, int64_t b) {
  if (b == 0) return kInvalid;
  if (b == -1) return {0, true};
  int64_t rest = a % b;
  if (rest != 0 && ((rest < 0) != (b < 0))) rest += b;
  return {rest, true};
}

ExprValue CeilDivide(int64_t a, int64_t b) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return kInvalid;
  int64_t quotient = a / b;
  if (a % b != 0 && ((a < 0) == (b < 0))) ++quotient;
  return {quotient, true};
}

ExprValue Power(int64_t base, int64_t exponent) {
  if (exponent < 0) return kInvalid;
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return kInvalid;
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return kInvalid;
  }
  return {result, true};
}

bool ArityOk(v1::ExprOp op, size_t count) {
  switch (op) {
    case v1::EXPR_CONST:
    case v1::EXPR_SYMBOL: return count == 0;
    case v1::EXPR_ADD:
    case v1::EXPR_MUL:
    case v1::EXPR_MIN:
    case v1::EXPR_MAX:
    case v1::EXPR_AND:
    case v1::EXPR_OR: return count >= 2;
    case v1::EXPR_NOT: return count == 1;
    case v1::EXPR_WHERE: return count == 3;
    case v1::EXPR_FLOORDIV:
    case v1::EXPR_MOD:
    case v1::EXPR_CEILDIV:
    case v1::EXPR_POW:
    case v1::EXPR_EQ:
    case v1::EXPR_NE:
    case v1::EXPR_LT:
    case v1::EXPR_LE: return count == 2;
    default: return false;
  }
}

}  // namespace

ExprValue ExprProgram::Apply(const Node& node, const ExprFrame& frame) {
  if (node.op == v1::EXPR_CONST) return {node.value, true};
  if (node.op == v1::EXPR_SYMBOL) return {frame.symbols[node.value], true};
  const std::vector<ExprValue>& values = frame.exprs;
  if (node.op == v1::EXPR_WHERE) {
    const ExprValue condition = values[node.args[0]];
    if (!condition.valid) return kInvalid;
    return values[node.args[condition.value != 0 ? 1 : 2]];
  }
  for (uint32_t arg : node.args) {
    if (!values[arg].valid) return kInvalid;
  }
  int64_t a = values[node.args[0]].value;
  if (node.op == v1::EXPR_NOT) return {a == 0, true};
  for (size_t i = 1; i < node.args.size(); ++i) {
    const int64_t b = values[node.args[i]].value;
    ExprValue step{0, true};
    switch (node.op) {
      case v1::EXPR_ADD: step.valid = !__builtin_add_overflow(a, b, &step.value); break;
      case v1::EXPR_MUL: step.valid = !__builtin_mul_overflow(a, b, &step.value); break;
      case v1::EXPR_FLOORDIV: step = FloorDivide(a, b); break;
      case v1::EXPR_MOD: step = Modulo(a, b); break;
      case v1::EXPR_CEILDIV: step = CeilDivide(a, b); break;
      case v1::EXPR_POW: step = Power(a, b); break;
      case v1::EXPR_MIN: step.value = std::min(a, b); break;
      case v1::EXPR_MAX: step.value = std::max(a, b); break;
      case v1::EXPR_EQ: step.value = a == b; break;
      case v1::EXPR_NE: step.value = a != b; break;
      case v1::EXPR_LT: step.value = a < b; break;
      case v1::EXPR_LE: step.value = a <= b; break;
      case v1::EXPR_AND: step.value = a != 0 && b != 0; break;
      case v1::EXPR_OR: step.value = a != 0 || b != 0; break;
      default: return kInvalid;
    }
    if (!step.valid) return kInvalid;
    a = step.value;
  }
  return {a, true};
}

absl::StatusOr<ExprProgram> ExprProgram::Load(const v1::Program& program) {
  ExprProgram result;
  result.symbols_ = program.symbols_size();
  // The stage at which each symbol gets its value.
  std::vector<uint32_t> symbol_stage(program.symbols_size(), 0);
  for (int i = 0; i < program.steps_size(); ++i) {
    const v1::Step& step = program.steps(i);
    for (const v1::Call::Bind& bind : step.call().binds()) {
      if (bind.symbol() >= symbol_stage.size())
        return absl::InvalidArgumentError("a call sets an unknown symbol");
      symbol_stage[bind.symbol()] = i + 1;
    }
    if (step.kind_case() != v1::Step::kLet) continue;
    const uint32_t symbol = step.let().symbol();
    if (symbol >= symbol_stage.size()) return absl::InvalidArgumentError("a step sets an unknown symbol");
    symbol_stage[symbol] = i + 1;
  }
  const int count = program.exprs_size();
  ExprFrame frame;
  frame.symbols.assign(program.symbols_size(), 0);
  frame.exprs.resize(count);
  std::vector<uint32_t> stage(count, 0);
  result.nodes_.reserve(count);
  result.folded_.assign(count, false);
  for (int i = 0; i < count; ++i) {
    const v1::ExprNode& from = program.exprs(i);
    Node node{from.op(), from.value(), {from.args().begin(), from.args().end()}};
    if (!ArityOk(node.op, node.args.size())) {
      return absl::InvalidArgumentError(absl::StrCat("expression ", i, " is not well formed"));
    }
    bool folded = node.op != v1::EXPR_SYMBOL;
    if (node.op == v1::EXPR_SYMBOL) {
      if (node.value < 0 || node.value >= program.symbols_size()) {
        return absl::InvalidArgumentError(absl::StrCat("expression ", i, " names an unknown symbol"));
      }
      stage[i] = symbol_stage[node.value];
    }
    for (uint32_t arg : node.args) {
      if (arg >= static_cast<uint32_t>(i)) {
        return absl::InvalidArgumentError(absl::StrCat("expression ", i, " uses a later one"));
      }
      folded = folded && result.folded_[arg];
      stage[i] = std::max(stage[i], stage[arg]);
    }
    result.folded_[i] = folded;
    if (folded) {
      frame.exprs[i] = Apply(node, frame);
    } else {
      if (result.stages_.size() <= stage[i]) result.stages_.resize(stage[i] + 1);
      result.stages_[stage[i]].push_back(i);
    }
    result.nodes_.push_back(std::move(node));
  }
  result.start_ = std::move(frame.exprs);
  result.stage_ = std::move(stage);
  return result;
}

absl::StatusOr<Dim> ExprProgram::ResolveExpr(uint32_t expr) const {
  if (expr >= nodes_.size()) return absl::InvalidArgumentError("a size names an unknown expression");
  if (folded_[expr]) {
    if (!start_[expr].valid) return absl::InvalidArgumentError("a constant size overflows");
    return Dim{start_[expr].value, -1};
  }
  return Dim{0, static_cast<int32_t>(expr)};
}

absl::StatusOr<Dim> ExprProgram::Resolve(const v1::SymInt& value) const {
  if (value.kind_case() == v1::SymInt::kExpr) return ResolveExpr(value.expr());
  return Dim{value.value(), -1};
}

std::vector<uint32_t> ExprProgram::SymbolsOf(absl::Span<const Dim> dims) const {
  std::vector<bool> needed(nodes_.size(), false);
  for (const Dim& dim : dims) {
    if (dim.expr >= 0) needed[dim.expr] = true;
  }
  std::vector<bool> used(symbols_, false);
  for (size_t i = nodes_.size(); i-- > 0;) {  // an expression's arguments come before it
    if (!needed[i]) continue;
    if (nodes_[i].op == v1::EXPR_SYMBOL) used[nodes_[i].value] = true;
    for (uint32_t arg : nodes_[i].args) needed[arg] = true;
  }
  std::vector<uint32_t> symbols;
  for (uint32_t s = 0; s < used.size(); ++s) {
    if (used[s]) symbols.push_back(s);
  }
  return symbols;
}

void ExprProgram::Start(ExprFrame& frame) const {
  frame.symbols.assign(symbols_, 0);
  if (!constant()) frame.exprs = start_;
}

bool ExprProgram::HasStage(uint32_t stage) const { return stage < stages_.size() && !stages_[stage].empty(); }

void ExprProgram::Evaluate(uint32_t stage, ExprFrame& frame) const {
  if (stage >= stages_.size()) return;
  for (uint32_t expr : stages_[stage]) frame.exprs[expr] = Apply(nodes_[expr], frame);
}

}  // namespace kiln::runtime
