#include "compiler/graph/expr_print.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/graph/expr.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

using Printed = PrintedExpr;

// Tighter binds with a higher number.
enum Precedence { kLowest = 0, kCompare = 1, kSum = 2, kProduct = 3, kAtom = 4 };

std::string Wrapped(const Printed& part, int at_least) {
  return part.precedence >= at_least ? part.text : absl::StrCat("(", part.text, ")");
}

Printed Join(const std::vector<Printed>& args, const char* op, int precedence) {
  return {absl::StrJoin(args, op,
                        [&](std::string* out, const Printed& arg) {
                          absl::StrAppend(out, Wrapped(arg, precedence + 1));
                        }),
          precedence};
}

Printed PrintSum(const std::vector<Printed>& args) {
  Printed sum{"", kSum};
  for (const Printed& arg : args) {
    bool minus = !sum.text.empty() && arg.precedence >= kProduct && arg.text.front() == '-';
    if (!sum.text.empty()) absl::StrAppend(&sum.text, minus ? " - " : " + ");
    sum.text += minus ? arg.text.substr(1) : Wrapped(arg, kProduct);
  }
  return sum;
}

Printed PrintProduct(const std::vector<Printed>& args) {
  if (args[0].text != "-1") return Join(args, "*", kProduct);
  std::vector<Printed> rest(args.begin() + 1, args.end());
  return {absl::StrCat("-", rest.size() == 1 ? Wrapped(rest[0], kAtom) : Join(rest, "*", kProduct).text),
          kProduct};
}

Printed Call(const char* name, const std::vector<Printed>& args) {
  auto text = [](std::string* out, const Printed& arg) { absl::StrAppend(out, arg.text); };
  return {absl::StrCat(name, "(", absl::StrJoin(args, ", ", text), ")"), kAtom};
}

Printed PrintOp(v1::ExprOp op, int64_t value, const std::vector<Printed>& args, const ExprLeafNames& names) {
  switch (op) {
    case v1::EXPR_CONST: return {absl::StrCat(value), kAtom};
    case v1::EXPR_SYMBOL: return {absl::StrCat("s", value), kAtom};
    case v1::EXPR_VAR: return {absl::StrCat(names.variable, value), kAtom};
    case v1::EXPR_INDIRECT: return {absl::StrCat(names.indirect, value), kAtom};
    case v1::EXPR_ADD: return PrintSum(args);
    case v1::EXPR_MUL: return PrintProduct(args);
    case v1::EXPR_FLOORDIV: return {absl::StrCat("(", Join(args, " // ", kProduct).text, ")"), kAtom};
    case v1::EXPR_MOD: return {absl::StrCat("(", Join(args, " % ", kProduct).text, ")"), kAtom};
    case v1::EXPR_MIN: return Call("min", args);
    case v1::EXPR_MAX: return Call("max", args);
    case v1::EXPR_CEILDIV: return Call("ceildiv", args);
    case v1::EXPR_POW: return Call("pow", args);
    case v1::EXPR_WHERE: return Call("where", args);
    case v1::EXPR_EQ: return Join(args, " == ", kCompare);
    case v1::EXPR_NE: return Join(args, " != ", kCompare);
    case v1::EXPR_LT: return Join(args, " < ", kCompare);
    case v1::EXPR_LE: return Join(args, " <= ", kCompare);
    case v1::EXPR_AND: return Join(args, " and ", kLowest);
    case v1::EXPR_OR: return Join(args, " or ", kLowest);
    case v1::EXPR_NOT: return {absl::StrCat("not ", Wrapped(args[0], kAtom)), kLowest};
    default: return {};
  }
}

}  // namespace

PrintedExpr PrintExpr(v1::ExprOp op, int64_t value, const std::vector<PrintedExpr>& args,
                      const ExprLeafNames& names) {
  Printed printed = PrintOp(op, value, args, names);
  if (printed.text.size() > kPrintedExprBytesMax) return {"(…)", kAtom};
  return printed;
}

std::string ExprPool::ToString(ExprId id) const {
  absl::flat_hash_map<ExprId, Printed> done;
  for (ExprId at : ReachableExprs(*this, id, /*extents=*/false)) {
    std::vector<Printed> args;
    for (ExprId arg : nodes_[at].args) args.push_back(done.at(arg));
    done[at] = PrintExpr(nodes_[at].op, nodes_[at].value, args, {});
  }
  return done.at(id).text;
}

}  // namespace kiln
