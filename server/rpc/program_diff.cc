#include "server/rpc/program_diff.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "compiler/graph/key_difference.h"
#include "server/rpc/listing_diff.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

using Listing = std::vector<ListingLine>;

// "add_12" and "add_13" are calls of one operator, which a node before them renumbers.
std::string WithoutNumber(absl::string_view name) {
  absl::string_view stem = name;
  while (!stem.empty() && absl::ascii_isdigit(static_cast<unsigned char>(stem.back()))) stem.remove_suffix(1);
  if (stem.size() == name.size() || stem.empty() || stem.back() != '_') return std::string(name);
  stem.remove_suffix(1);
  return std::string(stem);
}

Listing NodesOf(const v1::GraphNotes& notes) {
  Listing lines;
  for (int i = 0; i < notes.node_names_size(); ++i) {
    const std::string source = i < notes.source_lines_size() ? notes.source_lines(i) : "";
    lines.push_back({absl::StrCat(notes.node_names(i), source.empty() ? "" : "  # ", source),
                     WithoutNumber(notes.node_names(i))});
  }
  return lines;
}

std::set<std::string> KernelKeysOf(const v1::ShownEntry& entry) {
  std::set<std::string> keys;
  for (const v1::ShownKernel& kernel : entry.kernels()) keys.insert(kernel.kernel().kernel_key());
  return keys;
}

// Of kernels that the other does not have.
Listing LoopsOf(const v1::ShownEntry& entry, const std::set<std::string>& others) {
  Listing lines;
  for (const v1::ShownKernel& kernel : entry.kernels()) {
    if (others.contains(kernel.kernel().kernel_key())) continue;
    for (const absl::string_view line : absl::StrSplit(kernel.loop_ir(), '\n', absl::SkipWhitespace()))
      lines.push_back({std::string(line), std::string(line)});
  }
  return lines;
}

void CompareListings(const char* what, const Listing& a, const Listing& b,
                     google::protobuf::RepeatedPtrField<std::string>* diff, v1::DiffReply* reply) {
  if (a.size() > kListingLinesMax || b.size() > kListingLinesMax) {
    reply->add_not_compared(
        absl::StrCat(what, ": ", a.size(), " and ", b.size(), " lines are more than ", kListingLinesMax));
    return;
  }
  for (std::string& line : UnifiedDiff(a, b)) diff->Add(std::move(line));
}

void CompareNodes(const ComparedEntry& a, const ComparedEntry& b, v1::DiffReply* reply) {
  if (a.record.sections().graph_digest() == b.record.sections().graph_digest()) return;
  const Listing nodes_a = NodesOf(a.record.notes()), nodes_b = NodesOf(b.record.notes());
  if (nodes_a.empty() || nodes_b.empty()) {
    reply->add_not_compared("nodes: no names of nodes came with the graph, or they were too many to be kept");
    return;
  }
  CompareListings("nodes", nodes_a, nodes_b, reply->mutable_nodes(), reply);
  if (reply->nodes().empty() && reply->not_compared().empty()) {
    reply->add_not_compared(
        "nodes: both graphs have the same operators in the same order; they differ in shapes, strides, "
        "dtypes or "
        "constants, which are not kept of a graph and show in the kernels' loops");
  }
}

void AddFact(const std::string& name, uint64_t a, uint64_t b, v1::DiffReply* reply) {
  v1::FactDifference& fact = *reply->add_facts();
  fact.set_name(name);
  fact.set_a(absl::StrCat(a));
  fact.set_b(absl::StrCat(b));
}

void CompareFacts(const ComparedEntry& a, const ComparedEntry& b, v1::DiffReply* reply) {
  const v1::CompileStatistics &stats_a = a.shown.manifest().statistics(),
                              &stats_b = b.shown.manifest().statistics();
  AddFact("nodes", stats_a.nodes(), stats_b.nodes(), reply);
  AddFact("nodes after decomposition", stats_a.nodes_decomposed(), stats_b.nodes_decomposed(), reply);
  AddFact("kernels", a.shown.kernels_size(), b.shown.kernels_size(), reply);
  uint64_t shared = 0;
  const std::set<std::string> keys_b = KernelKeysOf(b.shown);
  for (const std::string& key : KernelKeysOf(a.shown)) shared += keys_b.contains(key) ? 1 : 0;
  AddFact("kernels that both have", shared, shared, reply);
  std::map<std::string, std::pair<uint64_t, uint64_t>> calls;
  for (const v1::LibraryCall& call : stats_a.calls()) calls[call.target()].first += call.count();
  for (const v1::LibraryCall& call : stats_b.calls()) calls[call.target()].second += call.count();
  for (const auto& [target, counts] : calls)
    AddFact(absl::StrCat("calls of ", target), counts.first, counts.second, reply);
}

v1::ComparedProgram Described(const ComparedEntry& entry) {
  v1::ComparedProgram program;
  program.set_compile_key(entry.shown.info().compile_key());
  program.set_title(entry.shown.info().title());
  program.set_compiled_unix_seconds(entry.shown.info().created_unix_seconds());
  program.set_in_tier(entry.shown.info().created_unix_seconds() == 0);
  return program;
}

}  // namespace

void CompareEntries(const ComparedEntry& a, const ComparedEntry& b, v1::DiffReply* reply) {
  *reply->mutable_a() = Described(a);
  *reply->mutable_b() = Described(b);
  for (v1::KeyDifference& difference : KeyDifferences(a.record, b.record))
    *reply->add_differences() = std::move(difference);
  CompareFacts(a, b, reply);
  CompareNodes(a, b, reply);
  CompareListings("kernels", LoopsOf(a.shown, KernelKeysOf(b.shown)), LoopsOf(b.shown, KernelKeysOf(a.shown)),
                  reply->mutable_kernels(), reply);
}

}  // namespace kiln
