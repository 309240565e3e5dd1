// What gangs are served: a pure function of the list and the hints, for an hour, within limits.
#include "server/flight/gang_table.h"

#include <string>

#include "compiler/support/compiler_limits.h"
#include "gtest/gtest.h"
#include "server/flight/gang_verdict.h"

namespace kiln {
namespace {

using Kind = GangAnswer::Kind;

class HandClock final : public Clock {
 public:
  MonotonicTime Now() const override { return now; }
  absl::Time WallNow() const override { return absl::UnixEpoch(); }
  MonotonicTime now;
};

v1::Hints HintsOf(int64_t value) {
  v1::Hints hints;
  hints.add_values(value);
  return hints;
}

// Holds for sizes from `low` to `high`.
GangProposal Variant(const std::string& id, int64_t low, int64_t high) {
  GangProposal proposal;
  proposal.variant_id = id;
  v1::Symbol* symbol = proposal.guards.add_symbols();
  symbol->set_kind(v1::SYMBOL_INT);
  symbol->set_min(low);
  symbol->set_max(high);
  return proposal;
}

GangProposal Refusal(const std::string& why) {
  GangProposal proposal;
  proposal.refusal = absl::UnimplementedError(why);
  return proposal;
}

class GangTableTest : public testing::Test {
 protected:
  static GangName Name(const std::string& gang = std::string(16, 'g'),
                       const std::string& key = std::string(32, 'k'), const std::string& ns = "train") {
    return {ns, gang, key};
  }
  GangAnswer Decide(int64_t hint, const GangProposal& proposal) {
    return table_.Decide(Name(), HintsOf(hint), proposal);
  }
  HandClock clock_;
  GangTable table_{&clock_};
};

TEST_F(GangTableTest, TheFirstThatFitsIsEverybodysWhateverIsProposedLater) {
  EXPECT_EQ(Decide(5, {}).kind, Kind::kOpen);
  EXPECT_EQ(Decide(5, Variant("a", 0, 10)).variant_id, "a");
  EXPECT_EQ(Decide(5, Variant("b", 0, 20)).variant_id, "a");
  EXPECT_EQ(Decide(15, Variant("b", 0, 20)).variant_id, "b");
  // Both hold for it, and the list is in the order of need.
  EXPECT_EQ(Decide(5, Variant("b", 0, 20)).variant_id, "a");
  EXPECT_EQ(table_.Find(Name(), HintsOf(5)).variant_id, "a");
  EXPECT_EQ(table_.Find(Name(), HintsOf(15)).variant_id, "b");
  EXPECT_EQ(table_.Find(Name(), HintsOf(25)).kind, Kind::kOpen);
}

TEST_F(GangTableTest, ARefusalIsEverybodys) {
  EXPECT_EQ(Decide(5, Refusal("no such operator")).status.code(), absl::StatusCode::kUnimplemented);
  const GangAnswer told = Decide(15, Variant("a", 0, 20));
  EXPECT_EQ(told.kind, Kind::kRefused);
  EXPECT_EQ(told.status.message(), "no such operator");
}

TEST_F(GangTableTest, ARefusalAfterAVariantIsNoVerdict) {
  Decide(5, Variant("a", 0, 10));
  EXPECT_EQ(Decide(5, Refusal("too slow")).variant_id, "a");
  const GangAnswer told = Decide(15, Refusal("too slow"));
  EXPECT_EQ(told.kind, Kind::kUnknown);
  EXPECT_NE(told.status.message().find("too slow"), absl::string_view::npos) << told.status;
  EXPECT_EQ(Decide(15, Variant("b", 0, 20)).variant_id, "b");
}

TEST_F(GangTableTest, GangsGraphsAndTenantsAreApart) {
  Decide(5, Refusal("too slow"));
  const std::string gang(16, 'g'), key(32, 'k');
  for (const GangName& other :
       {Name(std::string(16, 'h')), Name(gang, std::string(32, 'l')), Name(gang, key, "eval")}) {
    EXPECT_EQ(table_.Decide(other, HintsOf(5), Variant("a", 0, 10)).variant_id, "a");
  }
}

TEST_F(GangTableTest, AVerdictEndsAnHourAfterTheLastCall) {
  Decide(5, Refusal("too slow"));
  clock_.now += std::chrono::minutes(59);
  EXPECT_EQ(table_.Find(Name(), HintsOf(5)).kind, Kind::kRefused);
  clock_.now += std::chrono::minutes(59);
  EXPECT_EQ(table_.Find(Name(), HintsOf(5)).kind, Kind::kRefused);
  clock_.now += std::chrono::minutes(60);
  EXPECT_EQ(table_.Find(Name(), HintsOf(5)).kind, Kind::kOpen);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(GangTableTest, ATenantHasSoManyVerdictsAndKeepsThem) {
  const auto name = [](size_t i) {
    std::string key = std::to_string(i);
    key.resize(32, ' ');
    return Name(std::string(16, 'g'), key);
  };
  for (size_t i = 0; i < kGangVerdictsPerTenantMax; ++i)
    ASSERT_EQ(table_.Decide(name(i), HintsOf(5), Variant("a", 0, 10)).variant_id, "a") << i;
  const GangAnswer more = table_.Decide(name(kGangVerdictsPerTenantMax), HintsOf(5), Variant("a", 0, 10));
  EXPECT_EQ(more.kind, Kind::kUnknown);
  EXPECT_TRUE(absl::IsResourceExhausted(more.status)) << more.status;
  EXPECT_EQ(table_.Find(name(0), HintsOf(5)).variant_id, "a");
  EXPECT_EQ(table_.Decide(name(0), HintsOf(15), Variant("b", 0, 20)).variant_id, "b") << "no verdict more";
  // Another tenant's is not.
  GangName others = name(0);
  others.ns = "eval";
  EXPECT_EQ(table_.Decide(others, HintsOf(5), Variant("a", 0, 10)).variant_id, "a");
  clock_.now += std::chrono::hours(1);
  EXPECT_EQ(table_.Decide(name(kGangVerdictsPerTenantMax), HintsOf(5), Variant("a", 0, 10)).variant_id, "a");
}

TEST_F(GangTableTest, AListHasSoManyVariants) {
  for (size_t i = 0; i < kGangVariantsMax; ++i) {
    const int64_t size = static_cast<int64_t>(i);
    EXPECT_EQ(Decide(size, Variant(std::to_string(i), size, size)).variant_id, std::to_string(i));
  }
  const int64_t beyond = kGangVariantsMax;
  const GangAnswer more = Decide(beyond, Variant("more", beyond, beyond));
  EXPECT_EQ(more.kind, Kind::kUnknown);
  EXPECT_TRUE(absl::IsResourceExhausted(more.status)) << more.status;
  EXPECT_EQ(table_.Find(Name(), HintsOf(0)).variant_id, "0");
}

TEST_F(GangTableTest, AListHasSoManyBytes) {
  GangProposal large = Variant(std::string(kGangVerdictBytesMax / 2, 'a'), 0, 10);
  large.variant_id.append(kGangVerdictBytesMax - Extended({}, large)->ByteSizeLong(), 'a');
  ASSERT_EQ(Extended({}, large)->ByteSizeLong(), kGangVerdictBytesMax);
  GangProposal above = large;
  above.variant_id.push_back('a');
  const GangAnswer more = Decide(5, above);
  EXPECT_EQ(more.kind, Kind::kUnknown);
  EXPECT_TRUE(absl::IsResourceExhausted(more.status)) << more.status;
  EXPECT_EQ(Decide(5, large).variant_id, large.variant_id);
}

// Verdicts of nearly a MiB each, with what the table itself takes for one.
TEST_F(GangTableTest, ATenantAndAllHaveSoManyBytes) {
  const GangProposal large = Variant(std::string((1 << 20) - 4096, 'a'), 0, 10);
  constexpr size_t kOfTenant = kGangBytesPerTenantMax >> 20,
                   kTenants = kGangBytesMax / kGangBytesPerTenantMax;
  const auto decide = [&](size_t tenant, size_t i) {
    std::string key = std::to_string(i);
    key.resize(32, ' ');
    return table_.Decide(Name(std::string(16, 'g'), key, std::to_string(tenant)), HintsOf(5), large);
  };
  for (size_t tenant = 0; tenant < kTenants; ++tenant) {
    for (size_t i = 0; i < kOfTenant; ++i) ASSERT_EQ(decide(tenant, i).kind, Kind::kVariant) << i;
    EXPECT_TRUE(absl::IsResourceExhausted(decide(tenant, kOfTenant).status)) << "more of one tenant's";
  }
  EXPECT_TRUE(absl::IsResourceExhausted(decide(kTenants, 0).status)) << "more of all";
  EXPECT_EQ(decide(0, 0).kind, Kind::kVariant) << "what is held stays";
}

// ---- What other daemons hold -----------------------------------------------------------------

v1::GangVerdict VerdictOf(const std::vector<GangProposal>& proposals) {
  v1::GangVerdict verdict;
  for (const GangProposal& proposal : proposals) verdict = *Extended(verdict, proposal);
  return verdict;
}

TEST_F(GangTableTest, WhatIsLaterIsTakenAndWhatIsEarlierIsNot) {
  const GangProposal a = Variant("a", 0, 10), b = Variant("b", 0, 20);
  EXPECT_TRUE(table_.Adopt(Name(), VerdictOf({a})).ok());
  EXPECT_TRUE(table_.Adopt(Name(), VerdictOf({a, b})).ok());
  EXPECT_TRUE(table_.Adopt(Name(), VerdictOf({a})).ok());
  EXPECT_TRUE(table_.Adopt(Name(), {}).ok());
  EXPECT_EQ(table_.Held(Name()).variants_size(), 2);
  EXPECT_EQ(table_.List().size(), 1u);
}

TEST_F(GangTableTest, WhatContradictsIsAnsweredToNobody) {
  const GangProposal a = Variant("a", 0, 10), b = Variant("b", 0, 20);
  EXPECT_TRUE(table_.Adopt(Name(), VerdictOf({a})).ok());
  EXPECT_TRUE(absl::IsAborted(table_.Adopt(Name(), VerdictOf({b, a}))));
  EXPECT_EQ(table_.Find(Name(), HintsOf(5)).kind, Kind::kUnknown);
  EXPECT_EQ(Decide(5, a).kind, Kind::kUnknown);
  EXPECT_TRUE(absl::IsAborted(table_.Adopt(Name(), VerdictOf({a, b})))) << "nor ever again";
  EXPECT_TRUE(table_.List().empty());
}

TEST_F(GangTableTest, ARefusalContradictsAVariantAndNoOtherRefusal) {
  EXPECT_TRUE(table_.Adopt(Name(), VerdictOf({Refusal("too slow")})).ok());
  EXPECT_TRUE(table_.Adopt(Name(), VerdictOf({Refusal("too large")})).ok());
  EXPECT_TRUE(absl::IsAborted(table_.Adopt(Name(), VerdictOf({Variant("a", 0, 10)}))));
}

}  // namespace
}  // namespace kiln
