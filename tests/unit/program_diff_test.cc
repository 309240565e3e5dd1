// The difference of two programs: listings as a unified diff, and what is said where something is not known.
#include "server/rpc/program_diff.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "server/rpc/listing_diff.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

std::vector<ListingLine> Lines(const std::vector<std::string>& texts) {
  std::vector<ListingLine> lines;
  for (const std::string& text : texts) lines.push_back({text, text});
  return lines;
}

TEST(ListingDiff, IsUnified) {
  EXPECT_TRUE(UnifiedDiff(Lines({"a", "b"}), Lines({"a", "b"})).empty());
  EXPECT_EQ(absl::StrJoin(UnifiedDiff(Lines({"a", "b", "c"}), Lines({"a", "x", "c"})), "\n"),
            "@@ -1,3 +1,3 @@\n a\n-b\n+x\n c");
  EXPECT_EQ(UnifiedDiff({}, Lines({"a"})).back(), "+a");
  EXPECT_EQ(UnifiedDiff(Lines({"a"}), {}).back(), "-a");
}

TEST(ListingDiff, LargeListingsThatShareNothingEnd) {
  std::vector<std::string> a, b;
  for (size_t i = 0; i < kListingLinesMax; ++i) {
    a.push_back(absl::StrCat("a", i));
    b.push_back(absl::StrCat("b", i));
  }
  EXPECT_EQ(UnifiedDiff(Lines(a), Lines(b)).size(), 2 * kListingLinesMax + 1);
}

ComparedEntry Entry(const std::string& graph, const std::vector<std::string>& nodes,
                    const std::vector<std::pair<std::string, std::string>>& kernels) {
  ComparedEntry entry;
  entry.record.mutable_sections()->set_graph_digest(graph);
  for (const std::string& node : nodes) {
    entry.record.mutable_notes()->add_node_names(node);
    entry.record.mutable_notes()->add_source_lines("model.py:1 in forward");
  }
  for (const auto& [key, loops] : kernels) {
    v1::ShownKernel& kernel = *entry.shown.add_kernels();
    kernel.mutable_kernel()->set_kernel_key(key);
    kernel.set_loop_ir(loops);
  }
  return entry;
}

TEST(ProgramDiff, NodesByOperatorAndKernelsThatOneLacks) {
  v1::DiffReply reply;
  CompareEntries(
      Entry("g1", {"mul", "add", "add_1"}, {{"k1", "loop\n  x\n"}, {"shared", "loop\n  s\n"}}),
      Entry("g2", {"mul", "relu", "add_2", "add_3"}, {{"k2", "loop\n  y\n"}, {"shared", "loop\n  s\n"}}),
      &reply);
  EXPECT_EQ(absl::StrJoin(reply.nodes(), "\n"),
            "@@ -1,3 +1,4 @@\n mul  # model.py:1 in forward\n+relu  # model.py:1 in forward\n"
            " add  # model.py:1 in forward\n add_1  # model.py:1 in forward");
  EXPECT_EQ(absl::StrJoin(reply.kernels(), "\n"), "@@ -1,2 +1,2 @@\n loop\n-  x\n+  y");
  ASSERT_EQ(reply.differences_size(), 1);
  EXPECT_EQ(reply.differences(0).ingredient(), "graph");
  std::string shared;
  for (const v1::FactDifference& fact : reply.facts())
    shared += fact.name() == "kernels that both have" ? fact.a() : "";
  EXPECT_EQ(shared, "1");
  EXPECT_TRUE(reply.not_compared().empty());
}

TEST(ProgramDiff, SaysWhatItCannotCompare) {
  v1::DiffReply same_operators, no_names, same_graph, long_loops;
  CompareEntries(Entry("g1", {"add", "add_1"}, {}), Entry("g2", {"add", "add_7"}, {}), &same_operators);
  ASSERT_EQ(same_operators.not_compared_size(), 1);
  EXPECT_TRUE(absl::StrContains(same_operators.not_compared(0), "shapes")) << same_operators.not_compared(0);
  CompareEntries(Entry("g1", {}, {}), Entry("g2", {"add"}, {}), &no_names);
  ASSERT_EQ(no_names.not_compared_size(), 1);
  EXPECT_TRUE(absl::StrContains(no_names.not_compared(0), "no names")) << no_names.not_compared(0);
  CompareEntries(Entry("g1", {"add"}, {}), Entry("g1", {"mul"}, {}), &same_graph);
  EXPECT_TRUE(same_graph.nodes().empty() && same_graph.not_compared().empty())
      << "names are no part of a graph";
  std::string loops;
  for (size_t i = 0; i <= kListingLinesMax; ++i) absl::StrAppend(&loops, "loop ", i, "\n");
  CompareEntries(Entry("g1", {}, {{"k1", loops}}), Entry("g1", {}, {{"k2", "loop"}}), &long_loops);
  ASSERT_EQ(long_loops.not_compared_size(), 1);
  EXPECT_TRUE(long_loops.kernels().empty());
}

}  // namespace
}  // namespace kiln
