// The limits of graphs in support/compiler_limits.h: at each a graph is imported, and one above it is refused
// by the name of the place and the limit.
//
// More than kExprNodesMax expressions are more than kGraphPartsMax parts; expr_test.cc asks the pool for both
// of its limits.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/graph/canonical.h"
#include "compiler/support/compiler_limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/error/add_graph.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;

// The messages of AddGraph, which has one node of two arguments and one result.
constexpr size_t kPartsOfAdd = 22;

struct Limit {
  std::string says;
  size_t most;
  std::function<void(v1::Graph*, size_t count)> set;
};

void ExpectHeld(const std::vector<Limit>& limits) {
  for (const Limit& limit : limits) {
    v1::Graph graph = AddGraph(), above = graph;
    limit.set(&graph, limit.most);
    EXPECT_EQ(Import(graph), absl::OkStatus()) << limit.says;
    limit.set(&above, limit.most + 1);
    const absl::Status status = Import(above);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << limit.says << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(limit.says));
  }
}

v1::Node* NodeOf(v1::Graph* g) { return g->mutable_nodes(0); }
v1::Argument* Other(v1::Graph* g) { return NodeOf(g)->mutable_args(1)->mutable_value(); }
v1::Argument* AddArgument(v1::Node* node) {
  v1::NamedArgument* arg = node->add_args();
  arg->set_name(absl::StrCat("x", node->args_size()));
  return arg->mutable_value();
}

TEST(GraphLimits, OfAGraph) {
  ExpectHeld({
      {"200001 nodes, limit 200000", kGraphNodesMax,
       [](v1::Graph* g, size_t n) {
         while (g->nodes_size() < static_cast<int>(n)) *g->add_nodes() = g->nodes(0);
       }},
      {"20001 inputs, limit 20000", kGraphInputsMax,
       [](v1::Graph* g, size_t n) {
         while (g->inputs_size() < static_cast<int>(n)) *g->add_inputs() = g->inputs(0);
       }},
      {"65537 outputs, limit 65536", kListMax,
       [](v1::Graph* g, size_t n) {
         while (g->outputs_size() < static_cast<int>(n)) *g->add_outputs() = g->outputs(0);
       }},
      {"65537 guards, limit 65536", kListMax,
       [](v1::Graph* g, size_t n) { g->mutable_guards()->Resize(static_cast<int>(n), 0); }},
      // Of symbols only those that are used are in the canonical form.
      {"4097 symbols, limit 4096", kGraphSymbolsMax,
       [](v1::Graph* g, size_t n) {
         for (size_t i = 1; i < n; ++i) {
           *g->add_symbols() = g->symbols(0);
           v1::ExprNode* node = g->add_exprs();
           node->set_op(v1::EXPR_SYMBOL);
           node->set_value(static_cast<int64_t>(i));
           g->add_guards(g->exprs_size() - 1);
         }
       }},
      // The input is a value, and results without a dtype are.
      {"node 0 (aten.add.Tensor): 800001 values, limit 800000", kGraphValuesMax,
       [](v1::Graph* g, size_t n) {
         while (1 + NodeOf(g)->results_size() < static_cast<int>(n)) NodeOf(g)->add_results();
       }},
  });
}

TEST(GraphLimits, OfANode) {
  const std::string at = "node 0 (aten.add.Tensor): ", other = absl::StrCat(at, "argument 'other': "),
                    elements = absl::StrCat(other, "65537 elements, limit 65536");
  ExpectHeld({
      {"257 characters of an operator's name, limit 256", kNameMax,
       [](v1::Graph* g, size_t n) { NodeOf(g)->mutable_target()->resize(n, 'x'); }},
      {at + "257 characters of an argument's name, limit 256", kNameMax,
       [](v1::Graph* g, size_t n) { NodeOf(g)->mutable_args(1)->set_name(std::string(n, 'x')); }},
      {at + "65 arguments, limit 64", kNodeArgsMax,
       [](v1::Graph* g, size_t n) {
         while (NodeOf(g)->args_size() < static_cast<int>(n)) AddArgument(NodeOf(g))->mutable_as_none();
       }},
      {at + "result 0: 17 dimensions, limit 16", kRankMax,
       [](v1::Graph* g, size_t n) {
         v1::TensorMeta* result = NodeOf(g)->mutable_results(0);
         while (result->sizes_size() < static_cast<int>(n)) {
           result->add_sizes()->set_value(1);
           result->add_strides()->set_value(1);
         }
       }},
      {other + "4097 characters, limit 4096", kStringMax,
       [](v1::Graph* g, size_t n) { Other(g)->set_as_string(std::string(n, 'x')); }},
      {elements, kListMax,
       [](v1::Graph* g, size_t n) {
         Other(g)->mutable_as_tensors()->mutable_values()->Resize(static_cast<int>(n), 0);
       }},
      {elements, kListMax,
       [](v1::Graph* g, size_t n) {
         Other(g)->mutable_as_optional_tensors()->mutable_values()->Resize(static_cast<int>(n), -1);
       }},
      {elements, kListMax,
       [](v1::Graph* g, size_t n) {
         Other(g)->mutable_as_ints()->mutable_values()->Resize(static_cast<int>(n), 1);
       }},
      {elements, kListMax,
       [](v1::Graph* g, size_t n) {
         Other(g)->mutable_as_floats()->mutable_bits()->Resize(static_cast<int>(n), 1);
       }},
      {elements, kListMax,
       [](v1::Graph* g, size_t n) {
         Other(g)->mutable_as_bools()->mutable_values()->Resize(static_cast<int>(n), true);
       }},
      {elements, kListMax,
       [](v1::Graph* g, size_t n) {
         for (size_t i = 0; i < n; ++i) Other(g)->mutable_as_sym_ints()->add_values()->set_expr(0);
       }},
  });
}

TEST(GraphLimits, OfAnExpression) {
  ExpectHeld({{"expression 1: 65 arguments, limit 64", kExprArgsMax, [](v1::Graph* g, size_t n) {
                 v1::ExprNode* sum = g->add_exprs();
                 sum->set_op(v1::EXPR_ADD);
                 sum->mutable_args()->Resize(static_cast<int>(n), 0);
                 g->add_guards(1);
               }}});
}

// By lists of sizes, where each element is a message.
TEST(GraphLimits, OfParts) {
  ExpectHeld({{"graph of more than 4000000 parts", kGraphPartsMax, [](v1::Graph* g, size_t n) {
                 constexpr size_t kPartsOfList = 3;  // the argument, its value and the list
                 for (size_t left = n - kPartsOfAdd; left > 0;) {
                   v1::Argument::SymInts* list = AddArgument(NodeOf(g))->mutable_as_sym_ints();
                   const size_t elements = std::min(left - kPartsOfList, kListMax);
                   for (size_t i = 0; i < elements; ++i) list->add_values()->set_expr(0);
                   left -= kPartsOfList + elements;
                 }
               }}});
}

// By strings of some 4,000 bytes: one more in a string is one more in the graph.
TEST(GraphLimits, OfBytes) {
  v1::Graph graph = AddGraph();
  std::vector<std::string*> texts;
  for (int n = 0; n < 256; ++n) {
    v1::Node* node = graph.add_nodes();
    node->set_target("aten.add.Tensor");
    for (size_t i = 0; i < kNodeArgsMax; ++i) texts.push_back(AddArgument(node)->mutable_as_string());
  }
  for (std::string* text : texts) text->resize(4'000, 'x');
  const size_t left = kGraphBytesMax - Canonicalize(graph)->bytes.size();
  for (size_t i = 0; i < texts.size(); ++i)
    texts[i]->append(left / texts.size() + (i < left % texts.size() ? 1 : 0), 'x');
  EXPECT_EQ(Canonicalize(graph)->bytes.size(), kGraphBytesMax);
  EXPECT_EQ(Import(graph), absl::OkStatus());
  texts.back()->push_back('x');
  const absl::Status status = Import(graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "graph of 67108865 bytes, limit 67108864");
}

TEST(GraphLimits, OfATensor) {
  v1::Graph graph = AddGraph();
  v1::TensorMeta* result = NodeOf(&graph)->mutable_results(0);
  const int64_t most = kTensorBytesMax / 4 / 2;  // the symbol is 2 at least, 4 bytes each
  result->mutable_strides(0)->set_value(most);
  result->mutable_sizes(1)->set_value(most);
  EXPECT_EQ(Import(graph), absl::OkStatus());
  result->mutable_sizes(1)->set_value(most + 1);
  const absl::Status status = Import(graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "node 0 (aten.add.Tensor): result 0: tensor of more than 70368744177664 bytes");
}

}  // namespace
}  // namespace kiln
