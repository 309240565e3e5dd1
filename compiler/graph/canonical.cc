#include "compiler/graph/canonical.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_eval.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace kiln {
namespace {

constexpr uint32_t kUnused = UINT32_MAX;

// Rewrites one graph in place; the message it reads expressions and symbols from stays as it was.
class Canonicalizer {
 public:
  explicit Canonicalizer(const v1::Graph& from)
      : from_(from), exprs_(from.exprs_size(), kUnused), symbols_(from.symbols_size(), kUnused) {}

  absl::StatusOr<CanonicalGraph> Run() {
    to_ = from_;
    to_.DiscardUnknownFields();
    to_.clear_exprs();
    to_.clear_symbols();
    for (v1::Input& input : *to_.mutable_inputs()) KILN_RETURN_IF_ERROR(RewriteInput(&input));
    for (v1::Node& node : *to_.mutable_nodes()) KILN_RETURN_IF_ERROR(RewriteNode(&node));
    for (v1::Output& output : *to_.mutable_outputs()) {
      if (output.has_sym_int()) KILN_RETURN_IF_ERROR(RewriteInt(output.mutable_sym_int()));
      if (output.has_storage_offset()) KILN_RETURN_IF_ERROR(RewriteInt(output.mutable_storage_offset()));
    }
    for (uint32_t& guard : *to_.mutable_guards()) {
      KILN_ASSIGN_OR_RETURN(guard, Use(guard));
    }
    canonical_.bytes = SerializeDeterministic(to_);
    return std::move(canonical_);
  }

 private:
  absl::Status RewriteInput(v1::Input* input) {
    if (input->has_tensor()) return RewriteTensor(input->mutable_tensor());
    if (input->has_sym_int()) return RewriteInt(input->mutable_sym_int());
    return absl::InvalidArgumentError("graph input of no kind");
  }

  absl::Status RewriteNode(v1::Node* node) {
    for (v1::NamedArgument& arg : *node->mutable_args()) {
      KILN_RETURN_IF_ERROR(RewriteArgument(arg.mutable_value()));
    }
    for (v1::TensorMeta& result : *node->mutable_results()) KILN_RETURN_IF_ERROR(RewriteTensor(&result));
    return absl::OkStatus();
  }

  absl::Status RewriteTensor(v1::TensorMeta* tensor) {
    for (v1::SymInt& size : *tensor->mutable_sizes()) KILN_RETURN_IF_ERROR(RewriteInt(&size));
    for (v1::SymInt& stride : *tensor->mutable_strides()) KILN_RETURN_IF_ERROR(RewriteInt(&stride));
    if (!tensor->has_storage_offset()) return absl::OkStatus();
    KILN_RETURN_IF_ERROR(RewriteInt(tensor->mutable_storage_offset()));
    const v1::SymInt& offset = tensor->storage_offset();
    if (offset.has_value() && offset.value() == 0) tensor->clear_storage_offset();
    return absl::OkStatus();
  }

  absl::Status RewriteArgument(v1::Argument* argument) {
    if (argument->has_as_sym_int()) {
      KILN_RETURN_IF_ERROR(RewriteInt(argument->mutable_as_sym_int()));
      if (argument->as_sym_int().has_value()) argument->set_as_int(int64_t{argument->as_sym_int().value()});
      return absl::OkStatus();
    }
    if (!argument->has_as_sym_ints()) return absl::OkStatus();
    bool literal = true;
    for (v1::SymInt& value : *argument->mutable_as_sym_ints()->mutable_values()) {
      KILN_RETURN_IF_ERROR(RewriteInt(&value));
      literal = literal && value.has_value();
    }
    if (!literal) return absl::OkStatus();
    v1::Argument ints;
    for (const v1::SymInt& value : argument->as_sym_ints().values()) {
      ints.mutable_as_ints()->add_values(value.value());
    }
    if (argument->as_sym_ints().values_size() == 0) ints.mutable_as_ints();
    *argument = std::move(ints);
    return absl::OkStatus();
  }

  absl::Status RewriteInt(v1::SymInt* value) {
    if (value->has_value()) return absl::OkStatus();
    if (!value->has_expr()) return absl::InvalidArgumentError("size of no kind");
    uint32_t expr = value->expr();
    if (expr < static_cast<uint32_t>(from_.exprs_size()) && from_.exprs(expr).op() == v1::EXPR_CONST &&
        from_.exprs(expr).args_size() == 0) {
      value->set_value(from_.exprs(expr).value());
      return absl::OkStatus();
    }
    KILN_ASSIGN_OR_RETURN(uint32_t used, Use(expr));
    value->set_expr(used);
    return absl::OkStatus();
  }

  // The canonical number of an expression; writes it and what it needs on first use.
  absl::StatusOr<uint32_t> Use(uint32_t root) {
    KILN_RETURN_IF_ERROR(CheckExpr(root, UINT32_MAX));
    std::vector<std::pair<uint32_t, int>> stack = {{root, 0}};
    while (!stack.empty()) {
      auto& [expr, next] = stack.back();
      const v1::ExprNode& node = from_.exprs(static_cast<int>(expr));
      if (exprs_[expr] != kUnused) {
        stack.pop_back();
      } else if (next < node.args_size()) {
        uint32_t arg = node.args(next++);
        KILN_RETURN_IF_ERROR(CheckExpr(arg, expr));
        if (exprs_[arg] == kUnused) stack.push_back({arg, 0});
      } else {
        KILN_ASSIGN_OR_RETURN(exprs_[expr], Write(node));
        stack.pop_back();
      }
    }
    return exprs_[root];
  }

  absl::Status CheckExpr(uint32_t expr, uint32_t user) {
    if (expr >= static_cast<uint32_t>(from_.exprs_size())) {
      return absl::InvalidArgumentError(absl::StrCat("expression ", expr, " does not exist"));
    }
    if (expr >= user) {
      return absl::InvalidArgumentError(
          absl::StrCat("expression ", user, " uses ", expr, ", which is not before it"));
    }
    const v1::ExprNode& node = from_.exprs(static_cast<int>(expr));
    if (node.op() == v1::EXPR_VAR || node.op() == v1::EXPR_INDIRECT ||
        !ExprArityIsValid(node.op(), node.args_size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("expression ", expr, " has a wrong operator or number of arguments"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> Write(const v1::ExprNode& node) {
    v1::ExprNode written;
    written.set_op(node.op());
    if (node.op() == v1::EXPR_CONST) written.set_value(node.value());
    if (node.op() == v1::EXPR_SYMBOL) {
      KILN_ASSIGN_OR_RETURN(uint32_t symbol, UseSymbol(node.value()));
      written.set_value(symbol);
    }
    for (uint32_t arg : node.args()) written.add_args(exprs_[arg]);
    auto [at, fresh] = written_.try_emplace(SerializeDeterministic(written), to_.exprs_size());
    if (fresh) *to_.add_exprs() = std::move(written);
    return at->second;
  }

  absl::StatusOr<uint32_t> UseSymbol(int64_t symbol) {
    if (symbol < 0 || symbol >= from_.symbols_size()) {
      return absl::InvalidArgumentError(absl::StrCat("symbol ", symbol, " does not exist"));
    }
    if (symbols_[symbol] == kUnused) {
      symbols_[symbol] = static_cast<uint32_t>(to_.symbols_size());
      *to_.add_symbols() = from_.symbols(static_cast<int>(symbol));
      to_.mutable_symbols(to_.symbols_size() - 1)->DiscardUnknownFields();
      canonical_.symbols.push_back(static_cast<uint32_t>(symbol));
    }
    return symbols_[symbol];
  }

  const v1::Graph& from_;
  v1::Graph to_;
  std::vector<uint32_t> exprs_, symbols_;  // canonical number by given number
  absl::flat_hash_map<std::string, uint32_t> written_;
  CanonicalGraph canonical_;
};

// Messages and the memory they would take are counted on the wire before they are parsed: an empty
// message is two bytes there and some hundred in memory.
class WireCounter {
 public:
  absl::Status Count(absl::string_view bytes) { return Walk(bytes, *v1::Graph::descriptor()); }

 private:
  absl::Status Walk(absl::string_view bytes, const google::protobuf::Descriptor& type) {
    google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                                              static_cast<int>(bytes.size()));
    while (uint32_t tag = in.ReadTag()) {
      const auto* field =
          type.FindFieldByNumber(google::protobuf::internal::WireFormatLite::GetTagFieldNumber(tag));
      bool ok = field != nullptr;
      switch (google::protobuf::internal::WireFormatLite::GetTagWireType(tag)) {
        case google::protobuf::internal::WireFormatLite::WIRETYPE_VARINT: {
          uint64_t value;
          ok = ok && in.ReadVarint64(&value);
          break;
        }
        case google::protobuf::internal::WireFormatLite::WIRETYPE_FIXED64: ok = ok && in.Skip(8); break;
        case google::protobuf::internal::WireFormatLite::WIRETYPE_LENGTH_DELIMITED: {
          uint32_t size = 0;
          ok = ok && in.ReadVarint32(&size) && size <= bytes.size() - in.CurrentPosition();
          if (!ok) break;
          if (field->message_type() != nullptr) {
            if (++messages_ > kGraphPartsMax) {
              return absl::InvalidArgumentError(
                  absl::StrCat("graph of more than ", kGraphPartsMax, " parts"));
            }
            KILN_RETURN_IF_ERROR(Walk(bytes.substr(in.CurrentPosition(), size), *field->message_type()));
          }
          ok = in.Skip(static_cast<int>(size));
          break;
        }
        default: ok = false;
      }
      if (!ok) return absl::InvalidArgumentError("graph: not a valid message");
    }
    return in.ConsumedEntireMessage() ? absl::OkStatus()
                                      : absl::InvalidArgumentError("graph: not a valid message");
  }

  size_t messages_ = 0;
};

}  // namespace

absl::StatusOr<CanonicalGraph> Canonicalize(const v1::Graph& graph) { return Canonicalizer(graph).Run(); }

absl::StatusOr<v1::Graph> ParseCanonical(absl::string_view bytes) {
  if (bytes.size() > kGraphBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("graph of ", bytes.size(), " bytes, limit ", kGraphBytesMax));
  }
  KILN_RETURN_IF_ERROR(WireCounter().Count(bytes));
  v1::Graph graph;
  KILN_RETURN_IF_ERROR(ParseProto(bytes, "graph", &graph));
  KILN_ASSIGN_OR_RETURN(CanonicalGraph canonical, Canonicalize(graph));
  if (canonical.bytes != bytes) return absl::InvalidArgumentError("graph is not in canonical form");
  return graph;
}

absl::Status CheckCanonical(absl::string_view bytes) { return ParseCanonical(bytes).status(); }

absl::StatusOr<v1::Hints> CanonicalHints(const CanonicalGraph& canonical, const v1::Hints& hints) {
  v1::Hints ordered;
  for (uint32_t symbol : canonical.symbols) {
    if (symbol >= static_cast<uint32_t>(hints.values_size())) {
      return absl::InvalidArgumentError(absl::StrCat("no hint for symbol ", symbol));
    }
    ordered.add_values(hints.values(static_cast<int>(symbol)));
  }
  return ordered;
}

}  // namespace kiln
