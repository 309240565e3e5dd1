// Members of one gang at several daemons, in any order: each step of each decision, each reply of the tier
// and each daemon's death comes when the seed says. Equal hints get one variant, and nobody a program where
// another falls back. The controls break one rule each, and the same histories find it.
//   KILN_SEED=N, KILN_CASES=N, KILN_FULL=1
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/flight/gang_decision.h"
#include "tests/property/campaign.h"

namespace kiln {
namespace {

using testing::Campaign;
using testing::CampaignFromEnv;

enum class Broken {
  kNothing,
  kNoGang,        // each is told what is proposed
  kNoTier,        // each daemon decides by itself
  kBlindReplace,  // the tier replaces whatever stands there
};

const GangName& TheName() {
  static const GangName& name = *new GangName{"train", std::string(16, 'g'), std::string(32, 'k')};
  return name;
}

struct FakeTier {
  std::string sealed;
  v1::GangVerdict verdict;
  uint64_t writes = 0;
};

class History {
 public:
  History(uint64_t seed, Broken broken) : random_(seed), broken_(broken) {
    daemons_.resize(1 + Draw(4));
    for (Daemon& daemon : daemons_) daemon.table = std::make_unique<GangTable>(&clock_);
    for (uint64_t members = 5 + Draw(60); members > 0; --members) members_.push_back(NewMember());
  }

  // What did not hold; empty: all did.
  std::string Run() {
    while (!members_.empty() && violation_.empty()) {
      if (Draw(40) == 0) Die(Draw(daemons_.size()));
      if (members_.empty()) break;
      const size_t which = Draw(members_.size());
      Step(&members_[which]);
      if (members_[which].done) members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(which));
    }
    return violation_;
  }
  size_t variants() const { return variants_.size(); }
  bool refused() const { return refused_; }
  bool unknown() const { return unknown_; }

 private:
  struct Daemon {
    std::unique_ptr<GangTable> table;
  };
  struct Member {
    size_t daemon = 0;
    int64_t hint = 0;
    GangProposal proposal;
    std::unique_ptr<GangDecision> decision;
    std::optional<GangDecision::Question> question;
    std::optional<std::pair<std::string, v1::GangVerdict>> reply;  // on its way
    bool done = false;
  };
  class Clock final : public kiln::Clock {
   public:
    MonotonicTime Now() const override { return {}; }
    absl::Time WallNow() const override { return absl::UnixEpoch(); }
  };

  uint64_t Draw(uint64_t below) { return std::uniform_int_distribution<uint64_t>(0, below - 1)(random_); }

  Member NewMember() {
    Member member;
    member.daemon = Draw(daemons_.size());
    member.hint = static_cast<int64_t>(Draw(10));
    const uint64_t kind = Draw(20);
    if (kind == 0) {
      member.proposal.refusal = absl::DeadlineExceededError("too slow");
    } else if (kind > 2) {  // else it looks up, and there is nothing
      // Daemons have variants of their own, of several widths.
      const int64_t low = std::max<int64_t>(0, member.hint - static_cast<int64_t>(Draw(4)));
      const int64_t high = member.hint + static_cast<int64_t>(Draw(4));
      member.proposal.variant_id = absl::StrCat(low, "-", high);
      v1::Symbol* symbol = member.proposal.guards.add_symbols();
      symbol->set_kind(v1::SYMBOL_INT);
      symbol->set_min(low);
      symbol->set_max(high);
    }
    return member;
  }

  // Its members are answered no more, and what it held is forgotten.
  void Die(size_t daemon) {
    daemons_[daemon].table = std::make_unique<GangTable>(&clock_);
    std::erase_if(members_, [&](const Member& member) {
      return member.daemon == daemon && member.decision != nullptr;
    });
  }

  void Step(Member* member) {
    GangTable* const table = daemons_[member->daemon].table.get();
    v1::Hints hints;
    hints.add_values(member->hint);
    if (broken_ == Broken::kNoGang || broken_ == Broken::kNoTier) {
      GangTable alone(&clock_);
      Tell(member, (broken_ == Broken::kNoGang ? &alone : table)->Decide(TheName(), hints, member->proposal));
      return;
    }
    if (member->decision == nullptr)
      member->decision = std::make_unique<GangDecision>(table, TheName(), hints, member->proposal);
    if (member->reply.has_value()) {
      if (Draw(10) > 0) member->decision->Told(member->reply->first, member->reply->second);
      member->reply.reset();  // some are lost
      member->question.reset();
    } else if (member->question.has_value()) {
      member->reply = AskTier(*member->question);
    } else if (member->question = member->decision->Next(); !member->question.has_value()) {
      Tell(member, member->decision->answer());
    }
  }

  std::pair<std::string, v1::GangVerdict> AskTier(const GangDecision::Question& question) {
    if (question.wanted.has_value() && (broken_ == Broken::kBlindReplace || question.seen == tier_.sealed)) {
      tier_.verdict = *question.wanted;
      tier_.sealed = absl::StrCat("sealed ", ++tier_.writes);
    }
    return {tier_.sealed, tier_.verdict};
  }

  void Tell(Member* member, const GangAnswer& answer) {
    member->done = true;
    switch (answer.kind) {
      case GangAnswer::Kind::kOpen:
        if (!member->proposal.empty()) violation_ = "a proposal was not taken";
        break;
      case GangAnswer::Kind::kVariant: variants_[member->hint].insert(answer.variant_id); break;
      case GangAnswer::Kind::kRefused: refused_ = true; break;
      case GangAnswer::Kind::kUnknown:
        unknown_ = true;
        if (member->proposal.refusal.ok()) violation_ = absl::StrCat("no verdict: ", answer.status.message());
        break;
    }
    if (refused_ && !variants_.empty()) violation_ = "a program beside a fallback";
    if (variants_.contains(member->hint) && variants_[member->hint].size() > 1)
      violation_ = "two variants of equal hints";
  }

  std::mt19937_64 random_;
  const Broken broken_;
  const Clock clock_;
  FakeTier tier_;
  std::vector<Daemon> daemons_;
  std::vector<Member> members_;
  std::map<int64_t, std::set<std::string>> variants_;  // by hint
  bool refused_ = false;
  bool unknown_ = false;
  std::string violation_;
};

const Campaign& TheCampaign() {
  static const Campaign& campaign = *new Campaign(CampaignFromEnv(1, 2'000, 200'000));
  return campaign;
}

TEST(GangsProperty, OneVerdictInEveryHistory) {
  const Campaign& campaign = TheCampaign();
  uint64_t several = 0, refused = 0, unknown = 0;
  for (uint64_t seed = campaign.first; seed < campaign.first + campaign.cases; ++seed) {
    History history(seed, Broken::kNothing);
    ASSERT_EQ(history.Run(), "") << "seed " << seed;
    several += history.variants() > 1;
    refused += history.refused();
    unknown += history.unknown();
  }
  std::printf(
      "%llu histories: %llu with several hints served, %llu refused, %llu with a member without a verdict\n",
      static_cast<unsigned long long>(campaign.cases), static_cast<unsigned long long>(several),
      static_cast<unsigned long long>(refused), static_cast<unsigned long long>(unknown));
  if (campaign.cases == 1) return;
  EXPECT_GT(several, 0u);
  EXPECT_GT(refused, 0u);
  EXPECT_GT(unknown, 0u);
}

TEST(GangsProperty, EachRuleThatIsBrokenIsFound) {
  for (const Broken broken : {Broken::kNoGang, Broken::kNoTier, Broken::kBlindReplace}) {
    std::set<std::string> found;
    for (uint64_t seed = 1; seed <= 2'000; ++seed) found.insert(History(seed, broken).Run());
    EXPECT_TRUE(found.contains("two variants of equal hints")) << static_cast<int>(broken);
    EXPECT_TRUE(found.contains("a program beside a fallback")) << static_cast<int>(broken);
  }
}

}  // namespace
}  // namespace kiln
