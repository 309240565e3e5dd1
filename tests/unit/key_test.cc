#include "compiler/graph/key.h"

#include <functional>
#include <set>

#include "compiler/graph/canonical.h"
#include "compiler/graph/guards.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

v1::Graph Parse(const char* text) {
  v1::Graph graph;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &graph));
  return graph;
}

// y = x + 1.5 over f32[s0, 2*s1]; expressions and symbols are numbered by first use already.
const char* kCanonical = R"(
  format_version: 1 kind: INFERENCE
  symbols { kind: SYMBOL_INT min: 2 max: 100 binding { source: INPUT_SIZE } }
  symbols { kind: SYMBOL_INT min: 2 max: 200 binding { source: INPUT_SIZE dim: 1 } }
  exprs { op: EXPR_SYMBOL value: 0 }
  exprs { op: EXPR_CONST value: 2 }
  exprs { op: EXPR_SYMBOL value: 1 }
  exprs { op: EXPR_MUL args: 1 args: 2 }
  inputs { tensor { dtype: F32 device { type: CPU } sizes { expr: 0 } sizes { expr: 3 }
                    strides { expr: 3 } strides { value: 1 } } }
  nodes { target: "aten.add.Scalar"
          args { name: "self" value { as_tensor: 0 } } args { name: "other" value { as_float: 4609434218613702656 } }
          results { dtype: F32 device { type: CPU } sizes { expr: 0 } sizes { expr: 3 }
                    strides { expr: 3 } strides { value: 1 } } }
  outputs { value: 1 })";

// The same graph with symbols and expressions in another order, duplicates and leftovers.
const char* kPermuted = R"(
  format_version: 1 kind: INFERENCE
  symbols { kind: SYMBOL_INT min: 0 max: 7 }
  symbols { kind: SYMBOL_INT min: 2 max: 200 binding { source: INPUT_SIZE dim: 1 } }
  symbols { kind: SYMBOL_INT min: 2 max: 100 binding { source: INPUT_SIZE } }
  exprs { op: EXPR_CONST value: 2 }
  exprs { op: EXPR_SYMBOL value: 1 }
  exprs { op: EXPR_SYMBOL value: 0 }
  exprs { op: EXPR_SYMBOL value: 1 }
  exprs { op: EXPR_MUL args: 0 args: 1 }
  exprs { op: EXPR_MUL args: 0 args: 3 }
  exprs { op: EXPR_SYMBOL value: 2 }
  exprs { op: EXPR_CONST value: 1 }
  inputs { tensor { dtype: F32 device { type: CPU } sizes { expr: 6 } sizes { expr: 5 }
                    strides { expr: 4 } strides { expr: 7 } storage_offset { value: 0 } } }
  nodes { target: "aten.add.Scalar"
          args { name: "self" value { as_tensor: 0 } } args { name: "other" value { as_float: 4609434218613702656 } }
          results { dtype: F32 device { type: CPU } sizes { expr: 6 } sizes { expr: 4 }
                    strides { expr: 5 } strides { value: 1 } } }
  outputs { value: 1 })";

TEST(Canonical, NormalFormIsAFixedPoint) {
  v1::Graph graph = Parse(kCanonical);
  absl::StatusOr<CanonicalGraph> canonical = Canonicalize(graph);
  ASSERT_TRUE(canonical.ok()) << canonical.status();
  EXPECT_EQ(canonical->bytes, SerializeDeterministic(graph));
  EXPECT_TRUE(CheckCanonical(canonical->bytes).ok());
}

TEST(Canonical, OrderOfSymbolsAndExpressionsDoesNotMatter) {
  absl::StatusOr<CanonicalGraph> canonical = Canonicalize(Parse(kPermuted));
  ASSERT_TRUE(canonical.ok()) << canonical.status();
  EXPECT_EQ(canonical->bytes, Canonicalize(Parse(kCanonical))->bytes);
  EXPECT_EQ(canonical->symbols, (std::vector<uint32_t>{2, 1}));
  v1::Hints hints;
  for (int64_t value : {0, 11, 22}) hints.add_values(value);
  absl::StatusOr<v1::Hints> ordered = CanonicalHints(*canonical, hints);
  ASSERT_TRUE(ordered.ok());
  EXPECT_EQ(ordered->values(0), 22);
  EXPECT_EQ(ordered->values(1), 11);
}

TEST(Canonical, RefusesWhatIsNotNormal) {
  std::string bytes = SerializeDeterministic(Parse(kPermuted));
  EXPECT_EQ(CheckCanonical(bytes).code(), absl::StatusCode::kInvalidArgument);
  std::string good = SerializeDeterministic(Parse(kCanonical));
  EXPECT_EQ(CheckCanonical(good + std::string("\xa2\x06\x01x", 4)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckCanonical(good.substr(0, good.size() - 1)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Canonical, RefusesCyclesAndMissingParts) {
  for (const char* expr :
       {"exprs { op: EXPR_ADD args: 0 args: 0 }", "exprs { op: EXPR_ADD args: 9 args: 9 }",
        "exprs { op: EXPR_SYMBOL value: 3 }", "exprs { op: EXPR_VAR }", "exprs { op: EXPR_ADD }"}) {
    v1::Graph graph = Parse(expr);
    graph.add_guards(0);
    EXPECT_EQ(Canonicalize(graph).status().code(), absl::StatusCode::kInvalidArgument) << expr;
  }
}

TEST(Canonical, EveryChangedFieldGivesOtherBytes) {
  std::set<std::string> seen = {Canonicalize(Parse(kCanonical))->bytes};
  std::vector<std::function<void(v1::Graph*)>> changes = {
      [](v1::Graph* g) { g->set_kind(v1::FORWARD); },
      [](v1::Graph* g) { g->set_format_version(2); },
      [](v1::Graph* g) { g->mutable_symbols(0)->set_max(101); },
      [](v1::Graph* g) { g->mutable_symbols(0)->set_min(3); },
      [](v1::Graph* g) { g->mutable_symbols(0)->set_kind(v1::SYMBOL_UNBACKED); },
      [](v1::Graph* g) {
        g->mutable_symbols(1)->mutable_binding()->set_source(v1::SymbolBinding::INPUT_STRIDE);
      },
      [](v1::Graph* g) { g->mutable_exprs(1)->set_value(3); },
      [](v1::Graph* g) { g->mutable_exprs(3)->set_op(v1::EXPR_ADD); },
      [](v1::Graph* g) { g->mutable_inputs(0)->mutable_tensor()->set_dtype(v1::F64); },
      [](v1::Graph* g) { g->mutable_inputs(0)->mutable_tensor()->mutable_device()->set_type(v1::CUDA); },
      [](v1::Graph* g) { g->mutable_inputs(0)->mutable_tensor()->mutable_storage_offset()->set_value(4); },
      [](v1::Graph* g) { g->mutable_inputs(0)->mutable_tensor()->mutable_strides(1)->set_value(2); },
      [](v1::Graph* g) { g->mutable_nodes(0)->set_target("aten.sub.Scalar"); },
      [](v1::Graph* g) { g->mutable_nodes(0)->mutable_args(1)->set_name("alpha"); },
      [](v1::Graph* g) { g->mutable_nodes(0)->mutable_args(1)->mutable_value()->set_as_float(1); },
      [](v1::Graph* g) { g->mutable_nodes(0)->mutable_args(1)->mutable_value()->set_as_int(1); },
      [](v1::Graph* g) { g->mutable_nodes(0)->mutable_args(1)->mutable_value()->set_as_bool(true); },
      [](v1::Graph* g) { g->mutable_outputs(0)->set_value(0); },
      [](v1::Graph* g) { g->add_guards(0); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    v1::Graph graph = Parse(kCanonical);
    changes[i](&graph);
    absl::StatusOr<CanonicalGraph> canonical = Canonicalize(graph);
    ASSERT_TRUE(canonical.ok()) << i << canonical.status();
    EXPECT_TRUE(seen.insert(canonical->bytes).second) << "change " << i;
  }
}

TEST(Key, EverySectionCounts) {
  v1::RequestSections base;
  std::set<std::string> seen = {RequestKey(base)};
  for (int field = 1; field <= 6; ++field) {
    v1::RequestSections sections;
    const auto* descriptor = sections.GetDescriptor()->FindFieldByNumber(field);
    sections.GetReflection()->SetString(&sections, descriptor, "x");
    EXPECT_TRUE(seen.insert(RequestKey(sections)).second) << descriptor->name();
    auto changed = SectionDigests(sections), before = SectionDigests(base);
    for (size_t i = 0; i < changed.size(); ++i) EXPECT_EQ(changed[i] != before[i], i + 1 == field);
  }
}

TEST(Key, EveryIngredientCounts) {
  v1::Target target, other_target;
  other_target.add_features("avx2");
  v1::Guards guards, other_guards;
  other_guards.add_conditions(0);
  v1::Tunable tunable, other_tunable;
  other_tunable.mutable_gemm()->set_bias(true);
  v1::GpuFacts gpu, other_gpu;
  other_gpu.set_cublas_lt_version(1);
  std::set<std::string> keys = {CompileKey("a", "k", 1, "f"),
                                CompileKey("b", "k", 1, "f"),
                                CompileKey("a", "l", 1, "f"),
                                CompileKey("a", "k", 2, "f"),
                                CompileKey("a", "k", 1, "g"),
                                KernelKey("a", "k", target, 1, "f"),
                                KernelKey("b", "k", target, 1, "f"),
                                KernelKey("a", "l", target, 1, "f"),
                                KernelKey("a", "k", other_target, 1, "f"),
                                KernelKey("a", "k", target, 2, "f"),
                                KernelKey("a", "k", target, 1, "g"),
                                VariantId("k", guards, ""),
                                VariantId("l", guards, ""),
                                VariantId("k", other_guards, ""),
                                VariantId("k", guards, "t"),
                                TuningKey("n", tunable, gpu, "p"),
                                TuningKey("n", other_tunable, gpu, "p"),
                                TuningKey("n", tunable, other_gpu, "p"),
                                TuningKey("n", tunable, gpu, "q"),
                                TuningKey("m", tunable, gpu, "p")};
  EXPECT_EQ(keys.size(), 20u);
  for (const std::string& key : keys) EXPECT_EQ(key.size(), kDigestBytes);
}

TEST(Key, GoldenValues) {  // a change here makes every stored artifact unreachable
  EXPECT_EQ(ToHex(RequestKey({})), "29262a399e45ba8536851d50cc14c7172571c871b2dd6e198e760039c037e99c");
  EXPECT_EQ(ToHex(CompileKey("ns", "key", 1, "fp")),
            "9853f154f5441fb5e8aebf0986990dc4c6f79c2be9306adad077f58fd8c25127");
  EXPECT_EQ(ToHex(Sha256(Canonicalize(Parse(kCanonical))->bytes)),
            "162b299b0b08626657dea4ad82494e8cfff4d1dc9ff10c0c235b1c4a3e85a93a");
}

v1::Guards MakeGuards(const char* text) {
  v1::Guards guards;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &guards));
  return guards;
}

v1::Hints MakeHints(const std::vector<int64_t>& values) {
  v1::Hints hints;
  for (int64_t value : values) hints.add_values(value);
  return hints;
}

TEST(Guards, ConditionsAndRanges) {
  v1::Guards guards = MakeGuards(R"(
    symbols { kind: SYMBOL_INT min: 2 max: 64 }
    exprs { op: EXPR_SYMBOL } exprs { op: EXPR_CONST value: 8 } exprs { op: EXPR_CONST }
    exprs { op: EXPR_MOD args: 0 args: 1 } exprs { op: EXPR_EQ args: 3 args: 2 } conditions: 4)");
  EXPECT_TRUE(GuardsHold(guards, MakeHints({16})));
  EXPECT_FALSE(GuardsHold(guards, MakeHints({17})));
  EXPECT_FALSE(GuardsHold(guards, MakeHints({72}))) << "beyond the range";
  EXPECT_FALSE(GuardsHold(guards, MakeHints({0}))) << "below the range";
  EXPECT_FALSE(GuardsHold(guards, MakeHints({}))) << "no hint";
  guards.mutable_given()->Swap(guards.mutable_conditions());
  EXPECT_TRUE(GuardsHold(guards, MakeHints({16})));
  EXPECT_FALSE(GuardsHold(guards, MakeHints({17}))) << "a call that contradicts its own graph";
}

TEST(Guards, NoValueIsFalse) {
  for (const char* text :
       {"symbols { kind: SYMBOL_INT max: 9223372036854775807 } exprs { op: EXPR_SYMBOL } exprs { op: "
        "EXPR_MUL args: "
        "0 args: 0 args: 0 } exprs { op: EXPR_NE args: 1 args: 0 } conditions: 2",
        "symbols { kind: SYMBOL_INT max: 9223372036854775807 } exprs { op: EXPR_SYMBOL } exprs { op: "
        "EXPR_CONST } "
        "exprs { op: EXPR_FLOORDIV args: 0 args: 1 } exprs { op: EXPR_EQ args: 2 args: 2 } conditions: 3",
        "symbols { kind: SYMBOL_UNBACKED max: 9223372036854775807 } exprs { op: EXPR_SYMBOL } conditions: "
        "0"}) {
    EXPECT_TRUE(CheckGuards(MakeGuards(text)).ok());
    EXPECT_FALSE(GuardsHold(MakeGuards(text), MakeHints({int64_t{1} << 40}))) << text;
  }
}

TEST(Guards, MalformedIsFalse) {
  for (const char* text : {"exprs { op: EXPR_ADD args: 0 args: 0 } conditions: 0", "conditions: 0",
                           "given: 0", "exprs { op: EXPR_SYMBOL value: 1 } conditions: 0",
                           "exprs { op: EXPR_VAR } conditions: 0", "exprs { op: EXPR_NOT } conditions: 0"}) {
    EXPECT_FALSE(CheckGuards(MakeGuards(text)).ok()) << text;
    EXPECT_FALSE(GuardsHold(MakeGuards(text), MakeHints({1, 1}))) << text;
  }
  EXPECT_TRUE(GuardsHold({}, {}));
}

}  // namespace
}  // namespace kiln
