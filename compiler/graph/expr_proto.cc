#include "compiler/graph/expr_proto.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_eval.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {

uint32_t ExprWriter::Append(const ExprNode& node, absl::Span<const uint32_t> args) {
  v1::ExprNode* written = to_.Add();
  written->set_op(node.op);
  if (args.empty()) written->set_value(node.value);
  for (uint32_t arg : args) written->add_args(arg);
  return static_cast<uint32_t>(to_.size() - 1);
}

uint32_t ExprWriter::Write(ExprId root) {
  std::vector<std::pair<ExprId, size_t>> stack = {{root, 0}};
  while (!stack.empty()) {
    auto& [id, next] = stack.back();
    const ExprNode& node = pool_.node(id);
    if (written_.contains(id)) {
      stack.pop_back();
    } else if (next < node.args.size()) {
      ExprId arg = node.args[next++];
      if (!written_.contains(arg)) stack.push_back({arg, 0});
    } else {
      std::vector<uint32_t> args;
      for (ExprId arg : node.args) args.push_back(written_.at(arg));
      while (args.size() > kExprArgsMax) {
        std::vector<uint32_t> groups;
        for (size_t i = 0; i < args.size(); i += kExprArgsMax) {
          absl::Span<const uint32_t> group = absl::MakeConstSpan(args).subspan(i, kExprArgsMax);
          groups.push_back(group.size() == 1 ? group[0] : Append(node, group));
        }
        args = std::move(groups);
      }
      written_.emplace(id, Append(node, args));
      stack.pop_back();
    }
  }
  return written_.at(root);
}

v1::SymInt ExprWriter::WriteInt(ExprId id) {
  v1::SymInt value;
  if (std::optional<int64_t> constant = pool_.AsConst(id)) {
    value.set_value(*constant);
  } else {
    value.set_expr(Write(id));
  }
  return value;
}

absl::StatusOr<std::vector<ExprId>> ReadExprs(
    const google::protobuf::RepeatedPtrField<v1::ExprNode>& from, ExprPool* pool,
    absl::FunctionRef<std::optional<ExprId>(v1::ExprOp op, int64_t number)> leaf) {
  std::vector<ExprId> ids;
  ids.reserve(from.size());
  std::vector<ExprId> args;
  for (int i = 0; i < from.size(); ++i) {
    const v1::ExprNode& node = from[i];
    auto wrong = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("expression ", i, ": ", what));
    };
    if (static_cast<size_t>(node.args_size()) > kExprArgsMax)
      return wrong(absl::StrCat(node.args_size(), " arguments, limit ", kExprArgsMax));
    if (!ExprArityIsValid(node.op(), node.args_size())) return wrong("wrong operator or number of arguments");
    args.clear();
    for (uint32_t arg : node.args()) {
      if (arg >= static_cast<uint32_t>(i)) return wrong("uses an expression that is not before it");
      args.push_back(ids[arg]);
    }
    if (node.op() == v1::EXPR_CONST) {
      ids.push_back(pool->Const(node.value()));
    } else if (args.empty()) {
      std::optional<ExprId> id = leaf(node.op(), node.value());
      if (!id) return wrong("names a symbol or variable that does not exist");
      ids.push_back(*id);
    } else {
      ids.push_back(pool->Apply(node.op(), args));
    }
    if (!pool->status().ok()) return wrong(pool->status().message());
  }
  return ids;
}

ExprRange SymbolRange(const v1::Symbol& symbol) {
  switch (symbol.kind()) {
    case v1::SYMBOL_BOOL: return {0, 1};
    case v1::SYMBOL_FLOAT: return {};
    default: break;
  }
  int64_t max = symbol.max();
  const v1::SymbolBinding::Source source = symbol.binding().source();
  const bool size = source == v1::SymbolBinding::INPUT_SIZE || source == v1::SymbolBinding::VALUE_SIZE;
  if (size && symbol.min() <= kTensorBytesMax) max = std::min(max, kTensorBytesMax);
  return {symbol.min(), max};
}

}  // namespace kiln
