#include "compiler/graph/guard_text.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_print.h"
#include "compiler/graph/guards.h"

namespace kiln {
namespace {

// A pool lists arguments before their users.
std::vector<std::string> ExprTexts(const v1::Guards& guards) {
  std::vector<PrintedExpr> printed;
  std::vector<std::string> texts;
  for (const v1::ExprNode& node : guards.exprs()) {
    std::vector<PrintedExpr> args;
    for (const uint32_t arg : node.args())
      args.push_back(arg < printed.size() ? printed[arg] : PrintedExpr());
    printed.push_back(PrintExpr(node.op(), node.value(), args, ExprLeafNames()));
    texts.push_back(printed.back().text);
  }
  return texts;
}

std::string TextAt(const std::vector<std::string>& texts, uint32_t at) {
  return at < texts.size() ? texts[at] : "?";
}

}  // namespace

std::vector<std::string> GuardTexts(const v1::Guards& guards) {
  const std::vector<std::string> exprs = ExprTexts(guards);
  std::vector<std::string> texts;
  for (const uint32_t condition : guards.conditions()) texts.push_back(TextAt(exprs, condition));
  for (const uint32_t condition : guards.given())
    texts.push_back(absl::StrCat(TextAt(exprs, condition), "  (the graph's own)"));
  return texts;
}

std::string RangeText(const v1::Guards& guards, int symbol) {
  const v1::Symbol& range = guards.symbols(symbol);
  return absl::StrCat("s", symbol, " in [", range.min(), ", ",
                      range.max() == INT64_MAX ? std::string("inf") : absl::StrCat(range.max()), "]");
}

std::vector<std::string> BrokenGuardTexts(const v1::Guards& guards, const v1::Hints& hints) {
  const BrokenGuards broken = BrokenBy(guards, hints);
  std::vector<std::string> texts;
  for (const int symbol : broken.symbols) texts.push_back(RangeText(guards, symbol));
  const std::vector<std::string> exprs = broken.conditions.empty() ? texts : ExprTexts(guards);
  for (const uint32_t condition : broken.conditions) texts.push_back(TextAt(exprs, condition));
  return texts;
}

}  // namespace kiln
