#include "compiler/graph/caller_notes.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "compiler/graph/expr_eval.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

size_t BytesInMemory(const v1::GraphNotes& notes) {
  size_t bytes = notes.title().size();
  for (const auto* texts : {&notes.node_names(), &notes.source_lines(), &notes.guards()}) {
    for (const std::string& text : *texts) bytes += sizeof(std::string) + text.size();
  }
  return bytes;
}

}  // namespace

BytesMoved::BytesMoved(const google::protobuf::RepeatedPtrField<v1::ExprNode>& exprs,
                       const v1::Hints& hints) {
  std::vector<ExprValue> values, args;
  for (const v1::ExprNode& node : exprs) {
    ExprValue& value = values.emplace_back();
    if (node.op() == v1::EXPR_CONST) {
      value = node.value();
    } else if (node.op() == v1::EXPR_SYMBOL) {
      if (node.value() >= 0 && node.value() < hints.values_size())
        value = hints.values(static_cast<int>(node.value()));
    } else if (ExprArityIsValid(node.op(), node.args_size())) {
      args.clear();
      for (uint32_t arg : node.args()) args.push_back(arg + 1 < values.size() ? values[arg] : std::nullopt);
      value = ApplyExprOp(node.op(), args);
    }
  }
  for (const ExprValue& value : values) {
    values_.push_back(static_cast<uint64_t>(std::max<int64_t>(value.value_or(0), 0)));
  }
}

uint64_t BytesMoved::Of(const v1::SymInt& bytes) const {
  if (bytes.has_expr()) return bytes.expr() < values_.size() ? values_[bytes.expr()] : 0;
  return static_cast<uint64_t>(std::max<int64_t>(bytes.value(), 0));
}

std::vector<std::string> SourcesOf(const v1::KernelNotes& kernel,
                                   const google::protobuf::RepeatedPtrField<std::string>& lines) {
  std::vector<std::string> sources;
  absl::flat_hash_set<absl::string_view> known = {""};
  for (uint32_t node : kernel.origins()) {
    if (node >= static_cast<uint32_t>(lines.size())) continue;
    const std::string& line = lines.Get(static_cast<int>(node));
    if (known.insert(line).second) sources.push_back(line);
  }
  return sources;
}

v1::KernelNotes WithSources(v1::KernelNotes kernel,
                            const google::protobuf::RepeatedPtrField<std::string>& lines) {
  kernel.clear_sources();
  for (std::string& line : SourcesOf(kernel, lines)) kernel.add_sources(std::move(line));
  return kernel;
}

void LimitNotes(v1::GraphNotes* notes) {
  std::string& title = *notes->mutable_title();
  if (title.size() > kTitleBytesMax) {
    size_t end = kTitleBytesMax;
    while (end > 0 && (static_cast<unsigned char>(title[end]) & 0xC0) == 0x80) --end;  // a character whole
    title.resize(end);
  }
  const auto too_many = [&] { return BytesInMemory(*notes) > kNotesBytesMax; };
  // Swapped away: what is cleared alone stays in memory for the next use.
  google::protobuf::RepeatedPtrField<std::string> names, lines, guards;
  if (too_many()) names.Swap(notes->mutable_node_names());
  if (too_many()) lines.Swap(notes->mutable_source_lines());
  if (too_many()) guards.Swap(notes->mutable_guards());
}

}  // namespace kiln
