// What a caller can get wrong in a graph, and what import says. Also bombs: small messages that
// claim much.
#include "compiler/frontend/import.h"

#include <functional>

#include "compiler/graph/canonical.h"
#include "compiler/graph/verify_graph.h"
#include "compiler/support/proto_util.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/error/add_graph.h"

namespace kiln {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(Import, TakesWhatIsRight) {
  absl::StatusOr<Graph> graph = ImportGraph(Canonicalize(AddGraph())->bytes, {});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(VerifyGraph(*graph), absl::OkStatus());
  EXPECT_EQ(graph->ToString(),
            "graph INFERENCE\n"
            "symbol s0 in [2, 1000]\n"
            "input %0: f32[s0, 4]\n"
            "%1: f32[s0, 4] = aten.add.Tensor(self=%0, other=%0)\n"
            "output %1\n");
}

struct Case {
  const char* says;
  std::function<void(v1::Graph*)> change;
};

v1::TensorMeta* Result(v1::Graph* g) { return g->mutable_nodes(0)->mutable_results(0); }
v1::Argument* Other(v1::Graph* g) { return g->mutable_nodes(0)->mutable_args(1)->mutable_value(); }

TEST(Import, RefusesWhatIsWrongByName) {
  const Case kCases[] = {
      {"graph format 7", [](v1::Graph* g) { g->set_format_version(7); }},
      {"graph of no kind", [](v1::Graph* g) { g->clear_kind(); }},
      {"symbol 0 of no kind", [](v1::Graph* g) { g->mutable_symbols(0)->clear_kind(); }},
      {"empty range", [](v1::Graph* g) { g->mutable_symbols(0)->set_min(2000); }},
      {"has no binding", [](v1::Graph* g) { g->mutable_symbols(0)->clear_binding(); }},
      {"input that does not exist",
       [](v1::Graph* g) { g->mutable_symbols(0)->mutable_binding()->set_input(5); }},
      {"dimension that does not", [](v1::Graph* g) { g->mutable_symbols(0)->mutable_binding()->set_dim(2); }},
      {"value of a tensor",
       [](v1::Graph* g) {
         g->mutable_symbols(0)->mutable_binding()->set_source(v1::SymbolBinding::INPUT_VALUE);
       }},
      {"graph input of no kind", [](v1::Graph* g) { g->mutable_inputs(0)->clear_kind(); }},
      {"graph input 0: unknown dtype",
       [](v1::Graph* g) { g->mutable_inputs(0)->mutable_tensor()->set_dtype(static_cast<v1::DType>(99)); }},
      {"graph input 0: tensor of no dtype",
       [](v1::Graph* g) { g->mutable_inputs(0)->mutable_tensor()->clear_dtype(); }},
      {"node 0 (aten.add.Tensor): result 0: unknown dtype",
       [](v1::Graph* g) { Result(g)->set_dtype(static_cast<v1::DType>(-1)); }},
      {"result 0: 1 strides for 2", [](v1::Graph* g) { Result(g)->mutable_strides()->RemoveLast(); }},
      {"result 0: negative size", [](v1::Graph* g) { Result(g)->mutable_sizes(1)->set_value(-4); }},
      {"result 0: negative stride", [](v1::Graph* g) { Result(g)->mutable_strides(1)->set_value(-1); }},
      {"negative storage offset", [](v1::Graph* g) { Result(g)->mutable_storage_offset()->set_value(-1); }},
      {"unknown device", [](v1::Graph* g) { Result(g)->clear_device(); }},
      {"tensor of more than", [](v1::Graph* g) { Result(g)->mutable_sizes(1)->set_value(INT64_MAX); }},
      {"tensor of more than", [](v1::Graph* g) { Result(g)->mutable_strides(1)->set_value(INT64_MAX); }},
      {"namespace.name.overload", [](v1::Graph* g) { g->mutable_nodes(0)->set_target("aten.add"); }},
      {"namespace.name.overload", [](v1::Graph* g) { g->mutable_nodes(0)->set_target("aten.add.Ten sor"); }},
      {"node 0 (): operator", [](v1::Graph* g) { g->mutable_nodes(0)->clear_target(); }},
      {"node 0 (unprintable)", [](v1::Graph* g) { g->mutable_nodes(0)->set_target("aten.\x01.x"); }},
      {"argument 'other': uses value 1", [](v1::Graph* g) { Other(g)->set_as_tensor(1); }},
      {"argument 'other': uses value 4000000000", [](v1::Graph* g) { Other(g)->set_as_tensor(4000000000u); }},
      {"argument 'other': of no kind", [](v1::Graph* g) { Other(g)->clear_kind(); }},
      {"two arguments 'self'", [](v1::Graph* g) { g->mutable_nodes(0)->mutable_args(1)->set_name("self"); }},
      {"malformed argument name",
       [](v1::Graph* g) { g->mutable_nodes(0)->mutable_args(1)->set_name("a b"); }},
      {"unknown dtype", [](v1::Graph* g) { Other(g)->set_as_scalar_type(v1::DTYPE_UNSPECIFIED); }},
      {"unknown memory format", [](v1::Graph* g) { Other(g)->set_as_memory_format(4); }},
      {"graph output 0: uses value 9", [](v1::Graph* g) { g->mutable_outputs(0)->set_value(9); }},
      {"graph output 0: of no kind", [](v1::Graph* g) { g->mutable_outputs(0)->clear_kind(); }},
      {"guard of the graph can never hold",
       [](v1::Graph* g) {
         g->add_exprs()->set_op(v1::EXPR_CONST);
         g->add_guards(g->exprs_size() - 1);
       }},
      {"does not exist", [](v1::Graph* g) { g->add_guards(1000); }},
  };
  for (const Case& c : kCases) {
    v1::Graph graph = AddGraph();
    c.change(&graph);
    absl::Status status = Import(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.says << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says));
  }
}

// %1 has as many rows as the graph's second symbol says, %2 is read as its third.
const char* kUnbacked = R"(
  format_version: 1 kind: INFERENCE
  symbols { kind: SYMBOL_UNBACKED max: 48 binding { source: VALUE_SIZE value: 1 } }
  symbols { kind: SYMBOL_UNBACKED max: 9 binding { source: VALUE_ITEM value: 2 } }
  exprs { op: EXPR_SYMBOL } exprs { op: EXPR_SYMBOL value: 1 }
  inputs { tensor { dtype: F32 device { type: CPU } sizes { value: 48 } strides { value: 1 } } }
  nodes { target: "aten.nonzero.default" args { name: "self" value { as_tensor: 0 } }
          results { dtype: I64 device { type: CPU } sizes { expr: 0 } sizes { value: 1 }
                    strides { value: 1 } strides { expr: 0 } } }
  nodes { target: "aten.sum.default" args { name: "self" value { as_tensor: 1 } }
          results { dtype: I64 device { type: CPU } } }
  nodes { target: "aten.arange.default" args { name: "end" value { as_sym_int { expr: 1 } } }
          results { dtype: I64 device { type: CPU } sizes { expr: 1 } strides { value: 1 } } }
  outputs { value: 3 } outputs { sym_int { expr: 0 } })";

v1::Graph UnbackedGraph() {
  v1::Graph graph;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kUnbacked, &graph));
  return graph;
}

TEST(Import, BindsSymbolsBehindTheirValues) {
  absl::StatusOr<Graph> graph = ImportGraph(Canonicalize(UnbackedGraph())->bytes, {});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(VerifyGraph(*graph), absl::OkStatus());
  std::vector<OperatorName> targets;
  for (const GraphNode& node : graph->nodes) targets.push_back(node.target);
  EXPECT_THAT(targets, testing::ElementsAre("aten.nonzero.default", Op::kSymbolOfSize, "aten.sum.default",
                                            Op::kSymbolOfItem, "aten.arange.default"));
}

// A slice is no library call that could tell: the symbol is what the slice's bounds make.
TEST(Import, KnowsTheLengthOfASlice) {
  v1::Graph graph = UnbackedGraph();
  v1::Node* slice = graph.mutable_nodes(0);
  slice->set_target("aten.slice.Tensor");
  v1::NamedArgument* start = slice->add_args();
  start->set_name("start");
  start->mutable_value()->set_as_int(-40);
  slice->mutable_results(0)->mutable_sizes()->RemoveLast();
  slice->mutable_results(0)->mutable_strides()->RemoveLast();
  absl::StatusOr<Graph> imported = ImportGraph(Canonicalize(graph)->bytes, {});
  ASSERT_TRUE(imported.ok()) << imported.status();
  const GraphNode& node = imported->nodes[1];
  EXPECT_EQ(node.target, Op::kSymbolOfNumber);
  EXPECT_EQ(imported->exprs.AsConst(std::get<IntArg>(*node.Find("number")).value), 40);

  start->mutable_value()->set_as_float(0);
  EXPECT_THAT(std::string(Import(graph).message()), HasSubstr("length of a malformed slice"));
}

TEST(Import, RefusesSymbolsThatNoValueBinds) {
  const auto binding = [](v1::Graph* g, int symbol) { return g->mutable_symbols(symbol)->mutable_binding(); };
  const Case kCases[] = {
      {"has no binding", [](v1::Graph* g) { g->mutable_symbols(0)->clear_binding(); }},
      {"bound by a value", [](v1::Graph* g) { g->mutable_symbols(0)->set_kind(v1::SYMBOL_INT); }},
      {"value that does not exist", [&](v1::Graph* g) { binding(g, 0)->set_value(4); }},
      {"value that does not exist", [&](v1::Graph* g) { binding(g, 1)->set_value(UINT32_MAX); }},
      {"uses a symbol before", [&](v1::Graph* g) { binding(g, 1)->set_value(3); }},
      {"uses a symbol before",
       [&](v1::Graph* g) { g->mutable_nodes(0)->mutable_results(0)->mutable_sizes(1)->set_expr(1); }},
      {"uses a symbol before",
       [&](v1::Graph* g) { g->mutable_inputs(0)->mutable_tensor()->mutable_sizes(0)->set_expr(0); }},
      {"element of a tensor of no integers", [&](v1::Graph* g) { binding(g, 1)->set_value(0); }},
      {"one element of several", [&](v1::Graph* g) { binding(g, 1)->set_value(1); }},
      {"size that is declared otherwise", [&](v1::Graph* g) { binding(g, 0)->set_dim(1); }},
      {"size that is declared otherwise", [&](v1::Graph* g) { binding(g, 0)->set_dim(7); }},
      {"size of an input", [&](v1::Graph* g) { binding(g, 0)->set_value(0); }},
      {"guard over an unbacked symbol", [](v1::Graph* g) { g->add_guards(0); }},
      {"binding of no kind",
       [&](v1::Graph* g) { binding(g, 0)->set_source(static_cast<v1::SymbolBinding::Source>(9)); }},
  };
  for (const Case& c : kCases) {
    v1::Graph graph = UnbackedGraph();
    c.change(&graph);
    absl::Status status = Import(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.says << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says));
  }
}

TEST(Import, SaysWhatIsUnsupported) {
  const Case kCases[] = {
      {"node 0 (kiln.add.Tensor): unsupported: operators of namespace 'kiln'",
       [](v1::Graph* g) { g->mutable_nodes(0)->set_target("kiln.add.Tensor"); }},
      {"unsupported: a list of strings",
       [](v1::Graph* g) { Other(g)->mutable_as_strings()->add_values("x"); }},
      {"unsupported: a layout", [](v1::Graph* g) { Other(g)->set_as_layout(1); }},
      {"unsupported: more than one device", [](v1::Graph* g) { Result(g)->mutable_device()->set_index(1); }},
  };
  for (const Case& c : kCases) {
    v1::Graph graph = AddGraph();
    c.change(&graph);
    absl::Status status = Import(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << c.says << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says));
  }
}

TEST(Import, FactsMustFit) {
  v1::GraphFacts facts;
  facts.add_inputs()->set_is_static(true);
  EXPECT_EQ(Import(AddGraph(), facts).code(), absl::StatusCode::kInvalidArgument);
  facts.add_outputs();
  EXPECT_EQ(Import(AddGraph(), facts), absl::OkStatus());
  facts.mutable_inputs(0)->set_donated(true);
  EXPECT_EQ(Import(AddGraph(), facts).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Import, UndefinedResults) {
  v1::Graph graph = AddGraph();
  graph.mutable_nodes(0)->add_results();
  graph.add_outputs()->set_value(2);
  EXPECT_EQ(Import(graph), absl::OkStatus()) << "an undefined result that is returned is None";
  *graph.add_nodes() = graph.nodes(0);
  graph.mutable_nodes(1)->mutable_args(0)->mutable_value()->set_as_tensor(2);
  EXPECT_THAT(std::string(Import(graph).message()),
              HasSubstr("node 1 (aten.add.Tensor): argument 'self': uses value 2"));
}

TEST(ImportBombs, NotCanonicalBytes) {
  std::string good = Canonicalize(AddGraph())->bytes;
  EXPECT_TRUE(ImportGraph(good, {}).ok());
  for (const std::string& bytes : {std::string(), std::string("\xff\xff\xff"), good + good,
                                   good + std::string("\0", 1), good.substr(0, good.size() / 2)}) {
    EXPECT_EQ(ImportGraph(bytes, {}).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ImportBombs, LengthsThatLie) {
  // A node that says it is 4 GiB long.
  std::string bytes("\x08\x01\x10\x03\x32\xff\xff\xff\xff\x0f", 10);
  EXPECT_EQ(ImportGraph(bytes, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ImportBombs, MillionsOfEmptyParts) {
  std::string bytes("\x08\x01\x10\x03", 4);
  for (int i = 0; i < 20'000'000; ++i) bytes.append("\x32\x00", 2);  // empty nodes, two bytes each
  absl::Status status = ImportGraph(bytes, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 4000000 parts"));
}

TEST(ImportBombs, CyclicExpressions) {
  v1::Graph graph = AddGraph();
  v1::ExprNode* node = graph.add_exprs();
  node->set_op(v1::EXPR_ADD);
  node->add_args(1);
  node->add_args(1);
  Result(&graph)->mutable_sizes(0)->set_expr(1);
  EXPECT_THAT(std::string(Import(graph).message()), HasSubstr("not before it"));
}

TEST(ImportBombs, DeepExpressions) {
  v1::Graph graph = AddGraph();
  for (int i = 0; i < 300'000; ++i) {
    v1::ExprNode* node = graph.add_exprs();
    node->set_op(i % 2 == 0 ? v1::EXPR_FLOORDIV : v1::EXPR_MAX);
    node->add_args(graph.exprs_size() - 2);
    node->add_args(0);
  }
  Result(&graph)->mutable_sizes(0)->set_expr(graph.exprs_size() - 1);
  EXPECT_EQ(Import(graph), absl::OkStatus());
}

TEST(ImportBombs, ExpressionsThatExplodeWhenExpanded) {
  // ((s0 + 1)^2 + 1)^2 …, and sums that double their own number of terms.
  v1::Graph graph = AddGraph();
  v1::ExprNode* one = graph.add_exprs();
  one->set_op(v1::EXPR_CONST);
  one->set_value(1);
  for (int i = 0; i < 2'000; ++i) {
    uint32_t last = i == 0 ? 0 : graph.exprs_size() - 1;
    v1::ExprNode* node = graph.add_exprs();
    node->set_op(i % 2 == 0 ? v1::EXPR_MUL : v1::EXPR_ADD);
    node->add_args(last);
    node->add_args(i % 2 == 0 ? last : 1);
  }
  Result(&graph)->mutable_sizes(0)->set_expr(graph.exprs_size() - 1);
  EXPECT_THAT(Import(graph).code(), AnyOf(absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument));
}

TEST(VerifyGraph, NamesTheNodeThatIsWrong) {
  auto fresh = [] { return *ImportGraph(Canonicalize(AddGraph())->bytes, {}); };
  Graph graph = fresh();
  std::get<TensorArg>(graph.nodes[0].args[0].second).value = 1;
  EXPECT_THAT(std::string(VerifyGraph(graph).message()),
              HasSubstr("node 0 (aten.add.Tensor): self: uses %1"));
  graph = fresh();
  graph.nodes.push_back(graph.nodes[0]);
  EXPECT_THAT(std::string(VerifyGraph(graph).message()),
              HasSubstr("node 1 (aten.add.Tensor): defines %1 a second time"));
  graph = fresh();
  graph.values[1].strides.pop_back();
  EXPECT_THAT(std::string(VerifyGraph(graph).message()), HasSubstr("%1: has another number of strides"));
  graph = fresh();
  graph.values[1].sizes[0] = 1'000'000;
  EXPECT_THAT(std::string(VerifyGraph(graph).message()), HasSubstr("expression that does not exist"));
  graph = fresh();
  graph.outputs[0].value = 5;
  EXPECT_EQ(VerifyGraph(graph).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace kiln
