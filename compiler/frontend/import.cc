#include "compiler/frontend/import.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "compiler/graph/canonical.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/graph/expr_proto.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

absl::Status Invalid(absl::string_view what) { return absl::InvalidArgumentError(what); }
absl::Status Unsupported(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat("unsupported: ", what));
}

absl::Status TooMany(absl::string_view what, size_t count, size_t limit) {
  return Invalid(absl::StrCat(count, " ", what, ", limit ", limit));
}

bool IsIdentifier(absl::string_view text) {
  return !text.empty() && !absl::ascii_isdigit(text[0]) &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

absl::Status CheckTarget(absl::string_view target) {
  if (target.size() > kNameMax) return TooMany("characters of an operator's name", target.size(), kNameMax);
  std::vector<absl::string_view> parts = absl::StrSplit(target, '.');
  bool formed = parts.size() == 3 && std::all_of(parts.begin(), parts.end(), IsIdentifier);
  if (!formed) return Invalid("operator is not of the form namespace.name.overload");
  if (parts[0] == "kiln") return Unsupported("operators of namespace 'kiln', which is the compiler's own");
  return absl::OkStatus();
}

// What an error calls a node: its target only if that is fit to be printed.
std::string NodeName(size_t index, absl::string_view target) {
  bool printable =
      target.size() <= kNameMax && std::all_of(target.begin(), target.end(), absl::ascii_isprint);
  return absl::StrCat("node ", index, " (", printable ? target : absl::string_view("unprintable"), ")");
}

class Importer {
 public:
  Importer(const v1::Graph& from, const v1::GraphFacts& facts) : from_(from), facts_(facts) {}

  absl::StatusOr<Graph> Run() {
    KILN_RETURN_IF_ERROR(CheckCounts());
    KILN_RETURN_IF_ERROR(ReadSymbols());
    KILN_RETURN_IF_ERROR(FindSymbolsOfValues());
    for (int i = 0; i < from_.inputs_size(); ++i) {
      KILN_RETURN_IF_ERROR(StatusWrap(ReadInput(i), absl::StrCat("graph input ", i)));
    }
    for (int i = 0; i < from_.symbols_size(); ++i) {
      KILN_RETURN_IF_ERROR(StatusWrap(CheckBinding(from_.symbols(i)), absl::StrCat("symbol ", i)));
    }
    graph_.nodes.reserve(from_.nodes_size());
    KILN_RETURN_IF_ERROR(BindSymbols(0));
    for (int i = 0; i < from_.nodes_size(); ++i) {
      absl::Status status = ReadNode(from_.nodes(i), static_cast<uint32_t>(i));
      if (status.ok()) status = BindSymbols(i + 1);
      if (!status.ok()) return StatusWrap(status, NodeName(i, from_.nodes(i).target()));
    }
    now_ = from_.nodes_size() + 1;
    for (int i = 0; i < from_.outputs_size(); ++i) {
      KILN_RETURN_IF_ERROR(StatusWrap(ReadOutput(i), absl::StrCat("graph output ", i)));
    }
    KILN_RETURN_IF_ERROR(ReadGuards());
    KILN_RETURN_IF_ERROR(graph_.exprs.status());
    return std::move(graph_);
  }

 private:
  absl::Status CheckCounts() {
    if (from_.format_version() != kGraphFormatVersion) {
      return Invalid(
          absl::StrCat("graph format ", from_.format_version(), ", this build knows ", kGraphFormatVersion));
    }
    if (!v1::GraphKind_IsValid(from_.kind()) || from_.kind() == v1::GRAPH_UNSPECIFIED)
      return Invalid("graph of no kind");
    size_t nodes = from_.nodes_size(), inputs = from_.inputs_size(), outputs = from_.outputs_size();
    if (nodes > kGraphNodesMax) return TooMany("nodes", nodes, kGraphNodesMax);
    if (inputs > kGraphInputsMax) return TooMany("inputs", inputs, kGraphInputsMax);
    if (outputs > kListMax) return TooMany("outputs", outputs, kListMax);
    if (static_cast<size_t>(from_.symbols_size()) > kGraphSymbolsMax) {
      return TooMany("symbols", from_.symbols_size(), kGraphSymbolsMax);
    }
    if (static_cast<size_t>(from_.exprs_size()) > kExprNodesMax) {
      return TooMany("expressions", from_.exprs_size(), kExprNodesMax);
    }
    if (static_cast<size_t>(from_.guards_size()) > kListMax)
      return TooMany("guards", from_.guards_size(), kListMax);
    size_t facts = facts_.inputs_size() + facts_.outputs_size();
    if (facts != 0 && (static_cast<size_t>(facts_.inputs_size()) != inputs ||
                       static_cast<size_t>(facts_.outputs_size()) != outputs)) {
      return Invalid("facts do not fit the graph's inputs and outputs");
    }
    return absl::OkStatus();
  }

  absl::Status ReadSymbols() {
    for (int i = 0; i < from_.symbols_size(); ++i) {
      const v1::Symbol& symbol = from_.symbols(i);
      if (!v1::SymbolKind_IsValid(symbol.kind()) || symbol.kind() == v1::SYMBOL_UNSPECIFIED) {
        return Invalid(absl::StrCat("symbol ", i, " of no kind"));
      }
      if (symbol.min() > symbol.max()) return Invalid(absl::StrCat("symbol ", i, " has an empty range"));
      if (IsBoundByValue(symbol) && !IsUnbacked(symbol))
        return Invalid(absl::StrCat("symbol ", i, " is bound by a value, as unbacked ones are"));
      graph_.symbols.push_back(symbol);
    }
    graph_.kind = from_.kind();
    auto leaf = [this](v1::ExprOp op, int64_t number) -> std::optional<ExprId> {
      if (op != v1::EXPR_SYMBOL || number < 0 || number >= from_.symbols_size()) return std::nullopt;
      return graph_.exprs.Symbol(static_cast<uint32_t>(number),
                                 SymbolRange(from_.symbols(static_cast<int>(number))));
    };
    KILN_ASSIGN_OR_RETURN(exprs_, ReadExprs(from_.exprs(), &graph_.exprs, leaf));
    return absl::OkStatus();
  }

  // When each expression is known: after so many nodes, where symbols are in it that values bind; -1 before a
  // call.
  absl::Status FindSymbolsOfValues() {
    std::vector<uint32_t> first;  // by node: how many values are defined before it
    uint64_t values = from_.inputs_size();
    for (const v1::Node& node : from_.nodes()) {
      first.push_back(static_cast<uint32_t>(values));
      values = std::min<uint64_t>(values + node.results_size(), UINT32_MAX);
    }
    std::vector<int> known(from_.symbols_size(), -1);
    for (int i = 0; i < from_.symbols_size(); ++i) {
      if (!IsBoundByValue(from_.symbols(i))) continue;
      const uint32_t value = from_.symbols(i).binding().value();
      if (value >= values)
        return Invalid(absl::StrCat("symbol ", i, " is bound to a value that does not exist"));
      known[i] = static_cast<int>(std::upper_bound(first.begin(), first.end(), value) - first.begin());
      if (value < static_cast<uint32_t>(from_.inputs_size())) known[i] = 0;
      bound_[known[i]].push_back(static_cast<uint32_t>(i));
    }
    known_.reserve(from_.exprs_size());
    sizes_known_.reserve(from_.exprs_size());
    for (const v1::ExprNode& node : from_.exprs()) {  // well formed, as ReadExprs has seen
      int when = -1, in_sizes = -1;
      if (node.op() == v1::EXPR_SYMBOL) {
        const auto symbol = static_cast<int>(node.value());
        when = in_sizes = known[symbol];
        // Its node's results have the size.
        if (from_.symbols(symbol).binding().source() == v1::SymbolBinding::VALUE_SIZE) --in_sizes;
      }
      for (uint32_t arg : node.args()) {
        when = std::max(when, known_[arg]);
        in_sizes = std::max(in_sizes, sizes_known_[arg]);
      }
      known_.push_back(when);
      sizes_known_.push_back(in_sizes);
    }
    return absl::OkStatus();
  }

  // The symbols that are known after so many nodes.
  absl::Status BindSymbols(int nodes) {
    now_ = nodes;
    const auto found = bound_.find(nodes);
    if (found == bound_.end()) return absl::OkStatus();
    for (uint32_t symbol : found->second) {
      KILN_RETURN_IF_ERROR(
          StatusWrap(BindSymbol(symbol, nodes == 0 ? 0 : nodes - 1), absl::StrCat("symbol ", symbol)));
    }
    return absl::OkStatus();
  }

  absl::Status BindSymbol(uint32_t symbol, uint32_t origin) {
    const v1::SymbolBinding& binding = graph_.symbols[symbol].binding();
    KILN_ASSIGN_OR_RETURN(ValueId value, ReadValue(binding.value()));
    const TensorType& type = graph_.type(value);
    GraphNode node;
    node.origin = origin;
    node.args = {{"self", TensorArg{value}}, {"symbol", IntArg{graph_.exprs.Const(symbol)}}};
    if (binding.source() == v1::SymbolBinding::VALUE_ITEM) {
      if (!IsInteger(type.dtype) && type.dtype != v1::BOOL)
        return Invalid("is the element of a tensor of no integers");
      if (graph_.exprs.AsConst(graph_.exprs.Product(type.sizes)) != 1)
        return Invalid("is one element of several");
      node.target = Op::kSymbolOfItem;
    } else {
      if (value < graph_.inputs.size())
        return Invalid("is bound to the size of an input as to that of a result");
      const ExprId self = graph_.exprs.Symbol(symbol, SymbolRange(graph_.symbols[symbol]));
      if (binding.dim() >= type.rank() || type.sizes[binding.dim()] != self)
        return Invalid("is bound to a size that is declared otherwise");
      const auto made = std::find_if(graph_.nodes.rbegin(), graph_.nodes.rend(),
                                     [](const GraphNode& other) { return !other.results.empty(); });
      if (made->target == Op::kSliceTensor) {
        KILN_ASSIGN_OR_RETURN(const ExprId length, SliceLength(*made, binding.dim()));
        node.target = Op::kSymbolOfNumber;
        node.args[0] = {"number", IntArg{length}};
      } else {
        node.target = Op::kSymbolOfSize;
        node.args.emplace_back("dim", IntArg{graph_.exprs.Const(binding.dim())});
      }
    }
    graph_.nodes.push_back(std::move(node));
    return absl::OkStatus();
  }

  // Where torch can't tell what a slice's bounds make of its length, the length is a symbol of its own.
  absl::StatusOr<ExprId> SliceLength(const GraphNode& node, uint32_t dim) {
    ExprPool& exprs = graph_.exprs;
    const auto number = [&](absl::string_view name, int64_t otherwise) -> std::optional<ExprId> {
      const Argument* argument = node.Find(name);
      if (argument == nullptr) return exprs.Const(otherwise);
      const auto* value = std::get_if<IntArg>(argument);
      return value == nullptr ? std::nullopt : std::optional<ExprId>(value->value);
    };
    const Argument* self = node.Find("self");
    const auto* tensor = self == nullptr ? nullptr : std::get_if<TensorArg>(self);
    const std::optional<ExprId> along = number("dim", 0), start = number("start", 0),
                                end = number("end", INT64_MAX), step = number("step", 1);
    if (tensor == nullptr || !along || !start || !end || !step)
      return Invalid("is the length of a malformed slice");
    const TensorType& type = graph_.type(tensor->value);
    const int64_t rank = static_cast<int64_t>(type.rank()), at = exprs.AsConst(*along).value_or(rank);
    if (dim >= type.rank() || (at < 0 ? at + rank : at) != dim || exprs.AsConst(*step).value_or(0) < 1)
      return Invalid("is the length of a malformed slice");
    const ExprId size = type.sizes[dim], zero = exprs.Const(0);
    const auto bound = [&](ExprId value) {
      return exprs.Where(exprs.Lt(value, zero), exprs.Max(exprs.Add(value, size), zero),
                         exprs.Min(value, size));
    };
    return exprs.Max(exprs.CeilDiv(exprs.Sub(bound(*end), bound(*start)), *step), zero);
  }

  // Where a symbol's value is read from must exist.
  absl::Status CheckBinding(const v1::Symbol& symbol) {
    if (!symbol.has_binding()) return Invalid("has no binding");
    if (IsBoundByValue(symbol)) return absl::OkStatus();  // looked at where the value is
    const v1::SymbolBinding& binding = symbol.binding();
    if (binding.input() >= graph_.inputs.size()) return Invalid("is bound to an input that does not exist");
    const GraphInput& input = graph_.inputs[binding.input()];
    switch (binding.source()) {
      case v1::SymbolBinding::INPUT_VALUE:
        if (!input.sym_int) return Invalid("is bound to the value of a tensor");
        return absl::OkStatus();
      case v1::SymbolBinding::INPUT_SIZE:
      case v1::SymbolBinding::INPUT_STRIDE:
        if (input.sym_int) return Invalid("is bound to the size of an integer");
        if (binding.dim() >= graph_.type(input.value).rank())
          return Invalid("is bound to a dimension that does not exist");
        return absl::OkStatus();
      default: return Invalid("has a binding of no kind");
    }
  }

  absl::StatusOr<ExprId> ReadInt(const v1::SymInt& value, bool in_result = false) {
    if (value.has_value()) return graph_.exprs.Const(value.value());
    if (!value.has_expr() || value.expr() >= exprs_.size())
      return Invalid("names an expression that does not exist");
    if ((in_result ? sizes_known_ : known_)[value.expr()] > now_)
      return Invalid("uses a symbol before the value that binds it");
    return exprs_[value.expr()];
  }

  absl::Status ReadSizes(const google::protobuf::RepeatedPtrField<v1::SymInt>& from, absl::string_view what,
                         std::vector<ExprId>* to) {
    to->reserve(from.size());
    for (const v1::SymInt& value : from) {
      KILN_ASSIGN_OR_RETURN(ExprId id, ReadInt(value, /*in_result=*/true));
      if (graph_.exprs.Range(id).max < 0) return Invalid(absl::StrCat("negative ", what));
      to->push_back(id);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<TensorType> ReadTensor(const v1::TensorMeta& meta, bool may_be_undefined) {
    TensorType type;
    if (meta.dtype() == v1::DTYPE_UNSPECIFIED) {
      if (!may_be_undefined || meta.sizes_size() > 0 || meta.strides_size() > 0)
        return Invalid("tensor of no dtype");
      return type;
    }
    if (ByteSize(meta.dtype()) == 0)
      return Invalid(absl::StrCat("unknown dtype ", static_cast<int>(meta.dtype())));
    if (static_cast<size_t>(meta.sizes_size()) > kRankMax)
      return TooMany("dimensions", meta.sizes_size(), kRankMax);
    if (meta.strides_size() != meta.sizes_size()) {
      return Invalid(absl::StrCat(meta.strides_size(), " strides for ", meta.sizes_size(), " dimensions"));
    }
    KILN_ASSIGN_OR_RETURN(type.device, ReadDevice(meta.device()));
    type.dtype = meta.dtype();
    KILN_RETURN_IF_ERROR(ReadSizes(meta.sizes(), "size", &type.sizes));
    KILN_RETURN_IF_ERROR(ReadSizes(meta.strides(), "stride", &type.strides));
    if (meta.has_storage_offset()) {
      KILN_ASSIGN_OR_RETURN(type.offset, ReadInt(meta.storage_offset(), /*in_result=*/true));
      if (graph_.exprs.Range(type.offset).max < 0) return Invalid("negative storage offset");
    }
    KILN_RETURN_IF_ERROR(CheckBytes(type));
    return type;
  }

  // The least that the tensor can need, in elements and in storage, is within the limit.
  absl::Status CheckBytes(const TensorType& type) {
    __int128 elements = 1, reach = std::max<int64_t>(graph_.exprs.Range(type.offset).min, 0) + __int128{1};
    constexpr __int128 kMost = kTensorBytesMax;
    for (size_t i = 0; i < type.rank(); ++i) {
      __int128 size = std::max<int64_t>(graph_.exprs.Range(type.sizes[i]).min, 0);
      __int128 stride = std::max<int64_t>(graph_.exprs.Range(type.strides[i]).min, 0);
      elements = std::min(elements * size, kMost + 1);
      reach = std::min(reach + (size > 0 ? (size - 1) * stride : 0), kMost + 1);
    }
    __int128 bytes = ByteSize(type.dtype) * (elements == 0 ? 0 : std::max(elements, reach));
    if (bytes > kMost) return Invalid(absl::StrCat("tensor of more than ", kTensorBytesMax, " bytes"));
    return absl::OkStatus();
  }

  absl::StatusOr<v1::DeviceType> ReadDevice(const v1::Device& device) {
    if (!v1::DeviceType_IsValid(device.type()) || device.type() == v1::DEVICE_UNSPECIFIED)
      return Invalid("unknown device");
    if (device.index() != 0) return Unsupported("more than one device");
    return device.type();
  }

  absl::Status ReadInput(int i) {
    GraphInput input;
    if (facts_.inputs_size() > 0) input.fact = facts_.inputs(i);
    if (from_.inputs(i).has_sym_int()) {
      KILN_ASSIGN_OR_RETURN(ExprId value, ReadInt(from_.inputs(i).sym_int()));
      input.sym_int = value;
      if (input.fact.mutated() || input.fact.donated())
        return Invalid("an integer is not mutated or donated");
      graph_.NewValue(TensorType());  // holds the number; nothing may use it
    } else {
      KILN_ASSIGN_OR_RETURN(TensorType type,
                            ReadTensor(from_.inputs(i).tensor(), /*may_be_undefined=*/false));
      input.value = graph_.NewValue(std::move(type));
      if (input.fact.is_static() && input.fact.donated()) return Invalid("a static input is not donated");
    }
    graph_.inputs.push_back(std::move(input));
    return absl::OkStatus();
  }

  absl::StatusOr<ValueId> ReadValue(int64_t value) {
    if (value < 0 || value >= static_cast<int64_t>(graph_.values.size())) {
      return Invalid(absl::StrCat("uses value ", value, ", which is not defined before it"));
    }
    if (graph_.type(static_cast<ValueId>(value)).dtype == v1::DTYPE_UNSPECIFIED) {
      return Invalid(absl::StrCat("uses value ", value, ", which is no tensor"));
    }
    return static_cast<ValueId>(value);
  }

  absl::Status ReadNode(const v1::Node& from, uint32_t index) {
    KILN_RETURN_IF_ERROR(CheckTarget(from.target()));
    if (static_cast<size_t>(from.args_size()) > kNodeArgsMax)
      return TooMany("arguments", from.args_size(), kNodeArgsMax);
    if (const size_t values = graph_.values.size() + from.results_size(); values > kGraphValuesMax)
      return TooMany("values", values, kGraphValuesMax);
    GraphNode node;
    node.target = from.target();
    node.origin = index;
    for (const v1::NamedArgument& arg : from.args()) {
      if (arg.name().size() > kNameMax)
        return TooMany("characters of an argument's name", arg.name().size(), kNameMax);
      if (!IsIdentifier(arg.name())) return Invalid("malformed argument name");
      for (const auto& [name, value] : node.args) {
        if (name == arg.name()) return Invalid(absl::StrCat("two arguments '", name, "'"));
      }
      absl::StatusOr<Argument> value = ReadArgument(arg.value());
      if (!value.ok()) return StatusWrap(value.status(), absl::StrCat("argument '", arg.name(), "'"));
      node.args.emplace_back(arg.name(), *std::move(value));
    }
    for (int i = 0; i < from.results_size(); ++i) {
      absl::StatusOr<TensorType> type = ReadTensor(from.results(i), /*may_be_undefined=*/true);
      if (!type.ok()) return StatusWrap(type.status(), absl::StrCat("result ", i));
      node.results.push_back(graph_.NewValue(*std::move(type)));
    }
    graph_.nodes.push_back(std::move(node));
    return absl::OkStatus();
  }

  static absl::Status CheckList(size_t count) {
    return count > kListMax ? TooMany("elements", count, kListMax) : absl::OkStatus();
  }

  absl::StatusOr<Argument> ReadArgument(const v1::Argument& from) {
    switch (from.kind_case()) {
      case v1::Argument::kAsNone: return NoneArg{};
      case v1::Argument::kAsTensor: {
        KILN_ASSIGN_OR_RETURN(ValueId value, ReadValue(from.as_tensor()));
        return TensorArg{value};
      }
      case v1::Argument::kAsTensors: return ReadTensors(from.as_tensors(), /*optional=*/false);
      case v1::Argument::kAsOptionalTensors:
        return ReadTensors(from.as_optional_tensors(), /*optional=*/true);
      case v1::Argument::kAsInt: return IntArg{graph_.exprs.Const(from.as_int())};
      case v1::Argument::kAsInts: return ReadInts(from.as_ints());
      case v1::Argument::kAsFloat: return FloatArg{Double(from.as_float())};
      case v1::Argument::kAsFloats: return ReadFloats(from.as_floats());
      case v1::Argument::kAsBool: return BoolArg{from.as_bool()};
      case v1::Argument::kAsBools: return ReadBools(from.as_bools());
      case v1::Argument::kAsString:
        if (from.as_string().size() > kStringMax)
          return TooMany("characters", from.as_string().size(), kStringMax);
        return StringArg{from.as_string()};
      case v1::Argument::kAsStrings: return Unsupported("a list of strings");
      case v1::Argument::kAsSymInt: {
        KILN_ASSIGN_OR_RETURN(ExprId value, ReadInt(from.as_sym_int()));
        return IntArg{value};
      }
      case v1::Argument::kAsSymInts: return ReadSymInts(from.as_sym_ints());
      case v1::Argument::kAsScalarType:
        if (ByteSize(from.as_scalar_type()) == 0) return Invalid("unknown dtype");
        return DTypeArg{from.as_scalar_type()};
      case v1::Argument::kAsMemoryFormat:
        if (from.as_memory_format() > 3) return Invalid("unknown memory format");
        return MemoryFormatArg{from.as_memory_format()};
      case v1::Argument::kAsLayout:
        if (from.as_layout() != 0) return Unsupported("a layout that is not strided");
        return LayoutArg{from.as_layout()};
      case v1::Argument::kAsDevice: {
        KILN_ASSIGN_OR_RETURN(v1::DeviceType device, ReadDevice(from.as_device()));
        return DeviceArg{device};
      }
      default: return Invalid("of no kind");
    }
  }

  template <typename List>
  absl::StatusOr<Argument> ReadTensors(const List& from, bool optional) {
    KILN_RETURN_IF_ERROR(CheckList(from.values_size()));
    TensorListArg list;
    for (int64_t value : from.values()) {
      if (optional && value == -1) {
        list.values.push_back(kNoValue);
        continue;
      }
      KILN_ASSIGN_OR_RETURN(ValueId id, ReadValue(value));
      list.values.push_back(id);
    }
    return list;
  }

  absl::StatusOr<Argument> ReadInts(const v1::Argument::Ints& from) {
    KILN_RETURN_IF_ERROR(CheckList(from.values_size()));
    IntListArg list;
    for (int64_t value : from.values()) list.values.push_back(graph_.exprs.Const(value));
    return list;
  }

  absl::StatusOr<Argument> ReadSymInts(const v1::Argument::SymInts& from) {
    KILN_RETURN_IF_ERROR(CheckList(from.values_size()));
    IntListArg list;
    for (const v1::SymInt& value : from.values()) {
      KILN_ASSIGN_OR_RETURN(ExprId id, ReadInt(value));
      list.values.push_back(id);
    }
    return list;
  }

  static absl::StatusOr<Argument> ReadFloats(const v1::Argument::Floats& from) {
    KILN_RETURN_IF_ERROR(CheckList(from.bits_size()));
    FloatListArg list;
    for (uint64_t bits : from.bits()) list.values.push_back(Double(bits));
    return list;
  }

  static absl::StatusOr<Argument> ReadBools(const v1::Argument::Bools& from) {
    KILN_RETURN_IF_ERROR(CheckList(from.values_size()));
    return BoolListArg{{from.values().begin(), from.values().end()}};
  }

  static double Double(uint64_t bits) {
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  absl::Status ReadOutput(int i) {
    const v1::Output& from = from_.outputs(i);
    GraphOutput output;
    if (facts_.outputs_size() > 0) output.fact = facts_.outputs(i);
    if (from.has_sym_int()) {
      KILN_ASSIGN_OR_RETURN(ExprId value, ReadInt(from.sym_int()));
      output.sym_int = value;
    } else if (from.has_value()) {
      bool undefined = from.value() < graph_.values.size() &&
                       graph_.type(from.value()).dtype == v1::DTYPE_UNSPECIFIED &&
                       from.value() >= graph_.inputs.size();
      if (!undefined) {  // an undefined result is None
        KILN_ASSIGN_OR_RETURN(output.value, ReadValue(from.value()));
      }
      if (from.has_storage_offset() && !undefined) {
        KILN_ASSIGN_OR_RETURN(output.offset, ReadInt(from.storage_offset(), /*in_result=*/true));
        if (graph_.exprs.Range(*output.offset).max < 0) return Invalid("negative storage offset");
      }
    } else if (!from.has_none()) {
      return Invalid("of no kind");
    }
    graph_.outputs.push_back(std::move(output));
    return absl::OkStatus();
  }

  absl::Status ReadGuards() {
    for (uint32_t guard : from_.guards()) {
      if (guard >= exprs_.size()) return Invalid("guard names an expression that does not exist");
      for (ExprId leaf : LeavesOf(graph_.exprs, exprs_[guard])) {
        if (IsUnbacked(graph_.symbols[graph_.exprs.node(leaf).value]))
          return Invalid("guard over an unbacked symbol");
      }
      std::optional<int64_t> known = graph_.exprs.AsConst(exprs_[guard]);
      if (known == 0) return Invalid("a guard of the graph can never hold");
      if (!known) graph_.guards.push_back(exprs_[guard]);
    }
    return absl::OkStatus();
  }

  const v1::Graph& from_;
  const v1::GraphFacts& facts_;
  std::vector<ExprId> exprs_;  // by position in the message's pool
  std::vector<int> known_,
      sizes_known_;  // likewise: after how many nodes it may be used, and be in a result's sizes
  absl::flat_hash_map<int, std::vector<uint32_t>>
      bound_;     // symbols, by the number of nodes after which they are known
  int now_ = -1;  // the number of nodes that are read; -1: not even the inputs
  Graph graph_;
};

}  // namespace

absl::StatusOr<Graph> ImportGraph(absl::string_view canonical, const v1::GraphFacts& facts) {
  KILN_ASSIGN_OR_RETURN(v1::Graph message, ParseCanonical(canonical));
  return Importer(message, facts).Run();
}

}  // namespace kiln
