#include "compiler/passes/common_subexpressions.h"

#include <cstring>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/passes/dead_code.h"
#include "compiler/passes/graph_rewrite.h"

namespace kiln {
namespace {

template <typename T>
void Append(std::string& key, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  key.append(bytes, sizeof(T));
}

template <typename List>
void AppendList(std::string& key, const List& list) {
  Append<uint32_t>(key, list.size());
  for (const auto& item : list) Append(key, item);
}

struct ArgumentKey {
  std::string& key;
  void operator()(const NoneArg&) {}
  void operator()(const TensorArg& a) { Append(key, a.value); }
  void operator()(const TensorListArg& a) { AppendList(key, a.values); }
  void operator()(const IntArg& a) { Append(key, a.value); }
  void operator()(const IntListArg& a) { AppendList(key, a.values); }
  void operator()(const FloatArg& a) { Append(key, a.value); }  // by bit pattern
  void operator()(const FloatListArg& a) { AppendList(key, a.values); }
  void operator()(const BoolArg& a) { Append(key, a.value); }
  void operator()(const BoolListArg& a) {
    Append<uint32_t>(key, a.values.size());
    for (bool value : a.values) Append(key, value);
  }
  void operator()(const StringArg& a) { absl::StrAppend(&key, a.value, "\n"); }
  void operator()(const DTypeArg& a) { Append(key, a.value); }
  void operator()(const MemoryFormatArg& a) { Append(key, a.value); }
  void operator()(const LayoutArg& a) { Append(key, a.value); }
  void operator()(const DeviceArg& a) { Append(key, a.value); }
};

std::string KeyOf(const Graph& graph, const GraphNode& node) {
  std::string key = absl::StrCat(node.target.text(), "(");
  for (const auto& [name, argument] : node.args) {
    absl::StrAppend(&key, name, "=");
    Append<uint32_t>(key, argument.index());
    std::visit(ArgumentKey{key}, argument);
  }
  key += ")";
  for (ValueId result : node.results) {
    if (result == kNoValue) {
      key += "-";
      continue;
    }
    const TensorType& type = graph.type(result);
    Append(key, type.dtype);
    AppendList(key, type.sizes);
    AppendList(key, type.strides);
  }
  return key;
}

}  // namespace

absl::Status MergeCommonSubexpressions(Graph& graph) {
  std::vector<bool> escaping = EscapingValues(graph);
  std::vector<ValueId> replacement = IdentityReplacement(graph);
  absl::flat_hash_map<std::string, size_t> first;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    GraphNode& node = graph.nodes[i];
    ForEachOperand(node, [&](ValueId& value) { value = replacement[value]; });
    if (IsMutation(node) || IsRandom(node)) continue;
    auto [found, inserted] = first.try_emplace(KeyOf(graph, node), i);
    if (inserted) continue;
    const GraphNode& earlier = graph.nodes[found->second];
    bool separate = false;
    for (size_t k = 0; k < node.results.size(); ++k) {
      if (node.results[k] == kNoValue || earlier.results[k] == kNoValue) continue;
      separate = separate || (escaping[node.results[k]] && escaping[earlier.results[k]] && !IsViewNode(node));
    }
    if (separate) continue;
    for (size_t k = 0; k < node.results.size(); ++k) {
      if (node.results[k] == kNoValue || earlier.results[k] == kNoValue) continue;
      replacement[node.results[k]] = earlier.results[k];
      // What stands for an escaping value escapes itself: a third one must not be merged with both.
      escaping[earlier.results[k]] = escaping[earlier.results[k]] || escaping[node.results[k]];
    }
  }
  ReplaceUses(graph, replacement);
  return RemoveDeadCode(graph);
}

}  // namespace kiln
