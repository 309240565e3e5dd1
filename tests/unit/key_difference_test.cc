// What of two keys differs, and which guards a call breaks, as text.
#include "compiler/graph/key_difference.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/graph/guard_text.h"
#include "compiler/graph/guards.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

v1::RequestRecord Record() {
  v1::RequestRecord record;
  record.set_namespace_("red");
  record.set_compiler_fingerprint("compiler 1");
  v1::Target target;
  target.set_triple("x86_64-linux-gnu");
  for (const char* feature : {"+avx2", "+fma"}) target.add_features(feature);
  record.mutable_sections()->set_target(target.SerializeAsString());
  v1::Numerics numerics;
  numerics.set_float32_matmul_precision("highest");
  record.mutable_sections()->set_numerics(numerics.SerializeAsString());
  v1::GraphFacts facts;
  for (int i = 0; i < 3; ++i) facts.add_inputs()->set_donated(true);
  record.mutable_sections()->set_facts(facts.SerializeAsString());
  v1::Environment environment;
  environment.set_torch_version("2.13");
  environment.set_decomposition_digest(Sha256("decompositions"));
  record.mutable_sections()->set_environment(environment.SerializeAsString());
  record.mutable_sections()->set_graph_digest(Sha256("graph"));
  return record;
}

template <typename Section>
void Change(std::string* bytes, void (*change)(Section&)) {
  Section section;
  ASSERT_TRUE(section.ParseFromString(*bytes));
  change(section);
  *bytes = section.SerializeAsString();
}

std::string Text(const v1::RequestRecord& here, const v1::RequestRecord& there) {
  std::string text;
  for (const v1::KeyDifference& difference : KeyDifferences(here, there)) {
    absl::StrAppend(&text, difference.ingredient(), ".", difference.field(), ": ", difference.here(), " | ",
                    difference.there(), "\n");
  }
  return text;
}

TEST(KeyDifference, NoneOfTheSame) {
  EXPECT_EQ(Text(Record(), Record()), "");
  EXPECT_EQ(EqualIngredients(Record(), Record()), 8u);
}

TEST(KeyDifference, FieldsOfMessagesByName) {
  v1::RequestRecord other = Record();
  v1::RequestSections& sections = *other.mutable_sections();
  Change<v1::Options>(sections.mutable_options(), [](v1::Options& o) { o.set_mode(v1::MODE_MAX_AUTOTUNE); });
  Change<v1::Numerics>(sections.mutable_numerics(),
                       [](v1::Numerics& n) { n.set_float32_matmul_precision("high"); });
  Change<v1::GraphFacts>(sections.mutable_facts(), [](v1::GraphFacts& facts) {
    facts.mutable_inputs(1)->set_mutated(true);
    facts.add_inputs()->set_is_static(true);
  });
  EXPECT_EQ(Text(Record(), other),
            "options.mode: MODE_DEFAULT | MODE_MAX_AUTOTUNE\n"
            "numerics.float32_matmul_precision: \"highest\" | \"high\"\n"
            "facts.inputs[1].mutated: false | true\n"
            "facts.inputs[3]:  | is_static: true\n");
  EXPECT_EQ(EqualIngredients(Record(), other), 5u);
}

TEST(KeyDifference, AFeatureMoreMovesNoOther) {
  v1::RequestRecord other = Record();
  Change<v1::Target>(other.mutable_sections()->mutable_target(), [](v1::Target& target) {
    target.clear_features();
    for (const char* feature : {"+avx2", "+avx512f", "+fma"}) target.add_features(feature);
  });
  EXPECT_EQ(Text(Record(), other), "target.features[1]:  | \"+avx512f\"\n");
}

TEST(KeyDifference, DigestsAreShort) {
  v1::RequestRecord other = Record();
  other.set_namespace_("blue");
  other.set_compiler_fingerprint("compiler 2");
  other.mutable_sections()->set_graph_digest(Sha256("another"));
  Change<v1::Environment>(other.mutable_sections()->mutable_environment(), [](v1::Environment& environment) {
    environment.set_decomposition_digest(Sha256("others"));
  });
  const auto digest = [](const char* text) { return ToHex(Sha256(text)).substr(0, 12); };
  EXPECT_EQ(Text(Record(), other),
            absl::StrCat("namespace.: red | blue\n", "environment.decomposition_digest: ",
                         digest("decompositions"), " | ", digest("others"), "\n", "graph.: ", digest("graph"),
                         " | ", digest("another"), "\n", "compiler.: compiler 1 | compiler 2\n"));
}

TEST(KeyDifference, WhatIsNoMessageIsBytes) {
  v1::RequestRecord other = Record();
  other.mutable_sections()->set_options("\xff\xff");
  EXPECT_EQ(Text(Record(), other), absl::StrCat("options.: ", ToHex(Sha256("")).substr(0, 12), " | ",
                                                ToHex(Sha256("\xff\xff")).substr(0, 12), "\n"));
}

TEST(KeyDifference, ManyFieldsAreANumber) {
  v1::RequestRecord other = Record();
  Change<v1::GraphFacts>(other.mutable_sections()->mutable_facts(), [](v1::GraphFacts& facts) {
    for (size_t i = 0; i < kFieldsShownMax + 5; ++i) facts.add_inputs()->set_is_static(true);
  });
  const auto found = KeyDifferences(Record(), other);
  ASSERT_EQ(found.size(), kFieldsShownMax + 1);
  EXPECT_EQ(found.back().here(), "5 fields more");
}

v1::Guards EvenUpTo100() {
  v1::Guards guards;
  v1::Symbol& symbol = *guards.add_symbols();
  symbol.set_kind(v1::SYMBOL_INT);
  symbol.set_min(2);
  symbol.set_max(100);
  const auto add = [&](v1::ExprOp op, int64_t value, std::vector<uint32_t> args) {
    v1::ExprNode& node = *guards.add_exprs();
    node.set_op(op);
    node.set_value(value);
    for (const uint32_t arg : args) node.add_args(arg);
  };
  add(v1::EXPR_SYMBOL, 0, {});
  add(v1::EXPR_CONST, 2, {});
  add(v1::EXPR_MOD, 0, {0, 1});
  add(v1::EXPR_CONST, 0, {});
  add(v1::EXPR_EQ, 0, {2, 3});
  guards.add_conditions(4);
  return guards;
}

v1::Hints Size(int64_t value) {
  v1::Hints hints;
  hints.add_values(value);
  return hints;
}

TEST(GuardText, WhatACallBreaksIsNamed) {
  const v1::Guards guards = EvenUpTo100();
  ASSERT_TRUE(CheckGuards(guards).ok());
  const std::string even = GuardTexts(guards).at(0);
  EXPECT_NE(even.find("s0"), std::string::npos) << even;
  EXPECT_TRUE(BrokenGuardTexts(guards, Size(4)).empty());
  EXPECT_EQ(BrokenGuardTexts(guards, Size(5)), std::vector<std::string>{even});
  EXPECT_EQ(BrokenGuardTexts(guards, Size(200)), std::vector<std::string>{"s0 in [2, 100]"});
  EXPECT_EQ(BrokenGuardTexts(guards, Size(201)), (std::vector<std::string>{"s0 in [2, 100]", even}));
  // Whenever something is broken, and only then, the guards do not hold.
  for (int64_t size = 0; size < 110; ++size)
    EXPECT_EQ(BrokenGuardTexts(guards, Size(size)).empty(), GuardsHold(guards, Size(size))) << size;
}

}  // namespace
}  // namespace kiln
