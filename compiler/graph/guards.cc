#include "compiler/graph/guards.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_eval.h"

namespace kiln {
namespace {

bool InRange(const v1::Symbol& symbol, int64_t value) {
  return symbol.kind() != v1::SYMBOL_INT || (symbol.min() <= value && value <= symbol.max());
}

// By expression; nothing where it overflows, divides by zero or needs a symbol that has no hint.
std::vector<ExprValue> ValuesOf(const v1::Guards& guards, const v1::Hints& hints) {
  std::vector<ExprValue> values(guards.exprs_size());
  std::vector<ExprValue> args;
  for (int i = 0; i < guards.exprs_size(); ++i) {
    const v1::ExprNode& node = guards.exprs(i);
    if (node.op() == v1::EXPR_CONST) {
      values[i] = node.value();
    } else if (node.op() == v1::EXPR_SYMBOL) {
      bool known = node.value() < hints.values_size() &&
                   guards.symbols(static_cast<int>(node.value())).kind() != v1::SYMBOL_UNBACKED;
      if (known) values[i] = hints.values(static_cast<int>(node.value()));
    } else {
      args.clear();
      for (uint32_t arg : node.args()) args.push_back(values[arg]);
      values[i] = ApplyExprOp(node.op(), args);
    }
  }
  return values;
}

}  // namespace

absl::Status CheckGuards(const v1::Guards& guards) {
  for (int i = 0; i < guards.exprs_size(); ++i) {
    const v1::ExprNode& node = guards.exprs(i);
    bool valid = node.op() != v1::EXPR_VAR && node.op() != v1::EXPR_INDIRECT &&
                 ExprArityIsValid(node.op(), node.args_size());
    if (node.op() == v1::EXPR_SYMBOL)
      valid = valid && node.value() >= 0 && node.value() < guards.symbols_size();
    for (uint32_t arg : node.args()) valid = valid && arg < static_cast<uint32_t>(i);
    if (!valid) return absl::InvalidArgumentError(absl::StrCat("guards: expression ", i, " is malformed"));
  }
  auto exists = [&](uint32_t condition) { return condition < static_cast<uint32_t>(guards.exprs_size()); };
  if (!absl::c_all_of(guards.conditions(), exists) || !absl::c_all_of(guards.given(), exists)) {
    return absl::InvalidArgumentError("guards: a condition does not exist");
  }
  return absl::OkStatus();
}

bool GuardsHold(const v1::Guards& guards, const v1::Hints& hints) {
  if (!CheckGuards(guards).ok()) return false;
  for (int i = 0; i < guards.symbols_size() && i < hints.values_size(); ++i) {
    if (!InRange(guards.symbols(i), hints.values(i))) return false;
  }
  const std::vector<ExprValue> values = ValuesOf(guards, hints);
  auto holds = [&](uint32_t condition) { return values[condition].value_or(0) != 0; };
  return absl::c_all_of(guards.conditions(), holds) && absl::c_all_of(guards.given(), holds);
}

BrokenGuards BrokenBy(const v1::Guards& guards, const v1::Hints& hints) {
  BrokenGuards broken;
  if (!CheckGuards(guards).ok()) return broken;
  for (int i = 0; i < guards.symbols_size() && i < hints.values_size(); ++i) {
    if (!InRange(guards.symbols(i), hints.values(i))) broken.symbols.push_back(i);
  }
  const std::vector<ExprValue> values = ValuesOf(guards, hints);
  for (const auto* conditions : {&guards.conditions(), &guards.given()}) {
    for (const uint32_t condition : *conditions) {
      if (values[condition].value_or(0) == 0) broken.conditions.push_back(condition);
    }
  }
  return broken;
}

}  // namespace kiln
