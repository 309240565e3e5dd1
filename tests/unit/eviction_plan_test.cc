// Which entries an eviction takes, and in which order: by cases, and by drawn stores against the rules.

#include "cache/budget/eviction_plan.h"

#include <map>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

using Groups = std::vector<std::vector<EntryId>>;

CatalogEntry Listed(EntryId id, uint64_t bytes, int64_t last_used, bool pinned = false) {
  CatalogEntry entry;
  entry.id = std::move(id);
  entry.bytes = bytes;
  entry.last_used_unix_seconds = last_used;
  entry.pinned = pinned;
  return entry;
}

Groups All(EvictionPlan* plan, const EvictionLimits& limits) {
  plan->Begin(limits);
  Groups groups;
  if (std::vector<EntryId> unnamed = plan->TakeUnnamed(); !unnamed.empty()) {
    groups.push_back(std::move(unnamed));
  }
  while (plan->Next() != nullptr) groups.push_back(plan->Take());
  return groups;
}

EvictionLimits Limits(uint64_t live, uint64_t wanted) {
  EvictionLimits limits;
  limits.live_bytes = live;
  limits.live_entries = 1'000;
  limits.live_bytes_wanted = wanted;
  limits.keep_if_used_after = 100;
  limits.now_unix_seconds = 1'000;
  return limits;
}

const EntryId kOld = {EntryKind::kManifest, "old"}, kNew = {EntryKind::kManifest, "new"};
const EntryId kShared = {EntryKind::kObject, "shared"}, kOwn = {EntryKind::kObject, "own"};

// "old" names "own" and "shared", "new" names "shared".
void AddTwoManifests(EvictionPlan* plan, bool old_is_pinned = false) {
  plan->AddManifest(Listed(kOld, 10, 1, old_is_pinned), {{kOwn, kShared}, {"k-old"}});
  plan->AddManifest(Listed(kNew, 10, 2), {{kShared}, {}});
  plan->AddNamed(Listed(kShared, 100, 0));
  plan->AddNamed(Listed(kOwn, 100, 0));
  plan->AddNamed(Listed({EntryKind::kKernel, "k-old"}, 10, 0));
}

TEST(EvictionPlanTest, OldestManifestGoesWithWhatOnlyItNames) {
  EvictionPlan plan;
  AddTwoManifests(&plan);
  EXPECT_EQ(All(&plan, Limits(230, 150)), (Groups{{kOld, kOwn, {EntryKind::kKernel, "k-old"}}}));
}

TEST(EvictionPlanTest, PinnedStays) {
  EvictionPlan plan;
  AddTwoManifests(&plan, /*old_is_pinned=*/true);
  EXPECT_EQ(All(&plan, Limits(230, 0)), (Groups{{kNew}}));
}

TEST(EvictionPlanTest, WhatIsSkippedKeepsWhatItNames) {
  EvictionPlan plan;
  AddTwoManifests(&plan);
  plan.Begin(Limits(230, 0));
  ASSERT_NE(plan.Next(), nullptr);
  EXPECT_EQ(plan.Next()->id, kOld);
  plan.Skip();
  EXPECT_EQ(plan.Take(), (std::vector<EntryId>{kNew}));
  EXPECT_EQ(plan.Next(), nullptr);
}

TEST(EvictionPlanTest, UnnamedGoesFirstButNotWithinItsGrace) {
  EvictionPlan plan;
  AddTwoManifests(&plan);
  plan.AddNamed(Listed({EntryKind::kObject, "stray"}, 100, 99));
  plan.AddNamed(Listed({EntryKind::kObject, "fresh"}, 100, 100));
  EXPECT_EQ(All(&plan, Limits(330, 230)), (Groups{{{EntryKind::kObject, "stray"}}}));
}

TEST(EvictionPlanTest, WhatAManifestAloneNamedStaysWithinItsGrace) {
  for (const int64_t used : {99, 100}) {
    EvictionPlan plan;
    plan.AddManifest(Listed(kOld, 10, 1), {{kOwn}, {}});
    plan.AddNamed(Listed(kOwn, 100, used));
    const Groups groups = All(&plan, Limits(110, 0));
    EXPECT_EQ(groups, used < 100 ? (Groups{{kOld, kOwn}}) : (Groups{{kOld}})) << used;
  }
}

// A store that was filled a moment ago: ten manifests with an object each.
EvictionPlan Fresh() {
  EvictionPlan plan;
  for (int i = 0; i < 10; ++i) {
    const EntryId object = {EntryKind::kObject, absl::StrCat("o", i)};
    plan.AddManifest(Listed({EntryKind::kManifest, absl::StrCat("m", i)}, 10, 900 + i), {{object}, {}});
    plan.AddNamed(Listed(object, 90, 900 + i));
  }
  return plan;
}

TEST(EvictionPlanTest, WhatStaysForItsGraceCountsAsGone) {
  EvictionPlan plan = Fresh();
  EXPECT_EQ(All(&plan, Limits(1'000, 900)), (Groups{{{EntryKind::kManifest, "m0"}}}));
  // A later plan, within the grace yet: nobody names the object any more, and nothing else has to go.
  plan = Fresh();
  plan.AddNamed(Listed({EntryKind::kObject, "condemned"}, 90, 900));
  EXPECT_EQ(All(&plan, Limits(1'090, 1'000)), Groups{});
}

TEST(EvictionPlanTest, FreshRootsStayWhereTheLimitsSaySo) {
  EvictionPlan plan = Fresh();
  EvictionLimits limits = Limits(1'000, 0);
  limits.keep_roots_if_used_after = 903;
  EXPECT_EQ(All(&plan, limits).size(), 3u);
  plan = Fresh();
  plan.AddDamagedManifest(Listed(kOld, 10, 999));
  limits.keep_roots_if_used_after = 900;
  limits.expired_if_used_before = 902;
  EXPECT_EQ(All(&plan, limits),
            (Groups{{kOld}, {{EntryKind::kManifest, "m0"}}, {{EntryKind::kManifest, "m1"}}}));
}

TEST(EvictionPlanTest, MetaLivesAsLongAsItsKey) {
  const std::string key(kDigestBytes, 'k');
  const EntryId meta = {EntryKind::kMeta, key + "notes"}, second = {EntryKind::kManifest, key + "2"};
  const auto groups = [&](uint64_t wanted) {
    EvictionPlan plan;
    plan.AddManifest(Listed({EntryKind::kManifest, key + "1"}, 10, 1), {});
    plan.AddManifest(Listed(second, 10, 2), {});
    plan.AddMeta(Listed(meta, 10, 0));
    return All(&plan, Limits(30, wanted));
  };
  ASSERT_EQ(groups(20).size(), 1u);
  EXPECT_EQ(groups(20)[0].size(), 1u);
  ASSERT_EQ(groups(10).size(), 2u);
  EXPECT_EQ(groups(10)[1], (std::vector<EntryId>{second, meta}));
}

TEST(EvictionPlanTest, OtherCompilersGoBeforeAllAndTuningBelongsToNone) {
  const EntryId tuning = {EntryKind::kTuning, "tuning"};
  EvictionPlan plan;
  CatalogEntry theirs = Listed(kNew, 10, 900), ours = Listed(kOld, 10, 1);
  theirs.compiler = 7;
  ours.compiler = 8;
  plan.AddManifest(theirs, {});
  plan.AddManifest(ours, {});
  plan.AddRoot(Listed(tuning, 10, 2));
  EvictionLimits limits = Limits(30, 0);
  limits.compiler = 8;
  EXPECT_EQ(All(&plan, limits), (Groups{{kNew}, {kOld}, {tuning}}));
}

TEST(EvictionPlanTest, ACompilerThatIsNotKnownIsNoOther) {
  const EntryId unknown = {EntryKind::kManifest, "unknown"};
  EvictionPlan plan;
  CatalogEntry ours = Listed(kOld, 10, 1);
  ours.compiler = 8;
  plan.AddManifest(ours, {});
  plan.AddManifest(Listed(unknown, 10, 900), {});
  EvictionLimits limits = Limits(20, 0);
  limits.compiler = 8;
  EXPECT_EQ(All(&plan, limits), (Groups{{kOld}, {unknown}}));
}

TEST(EvictionPlanTest, WhatHasExpiredGoesThoughThereIsRoom) {
  const auto groups = [](int64_t used_before) {
    EvictionPlan plan;
    plan.AddManifest(Listed(kOld, 10, 50), {});
    plan.AddManifest(Listed(kNew, 10, 51), {});
    EvictionLimits limits = Limits(20, 1'000);
    limits.expired_if_used_before = used_before;
    return All(&plan, limits);
  };
  EXPECT_EQ(groups(50), Groups{});
  EXPECT_EQ(groups(51), (Groups{{kOld}}));
}

TEST(EvictionPlanTest, NotAllThatHasExpiredGoesTogether) {
  const auto groups = [](uint64_t most, uint64_t wanted) {
    EvictionPlan plan;
    plan.AddManifest(Listed(kOld, 10, 50), {});
    plan.AddManifest(Listed(kNew, 10, 51), {});
    EvictionLimits limits = Limits(20, wanted);
    limits.expired_if_used_before = 100;
    limits.expired_max = most;
    return All(&plan, limits);
  };
  EXPECT_EQ(groups(2, 1'000), (Groups{{kOld}, {kNew}}));
  EXPECT_EQ(groups(1, 1'000), (Groups{{kOld}}));
  EXPECT_EQ(groups(0, 1'000), Groups{});
  EXPECT_EQ(groups(1, 0), (Groups{{kOld}, {kNew}}));  // for want of room
}

TEST(EvictionPlanTest, EntriesHaveABudgetToo) {
  EvictionPlan plan;
  AddTwoManifests(&plan);
  EvictionLimits limits = Limits(230, 1'000);
  limits.live_entries = 5;
  limits.live_entries_wanted = 4;
  EXPECT_EQ(All(&plan, limits).size(), 1u);
}

// Three that are unused for 900, 800 and 100 seconds; the first took eight times as long to make a byte.
TEST(EvictionPlanTest, WhatWasDearToMakeStaysLonger) {
  const auto first_to_go = [](uint32_t cost_of_the_oldest) {
    EvictionPlan plan;
    int64_t used = 100;
    for (const auto& [key, cost] : {std::pair("a", cost_of_the_oldest), {"b", 100u}, {"c", 100u}}) {
      CatalogEntry entry = Listed({EntryKind::kManifest, key}, 99, used);
      entry.rebuild_ms = cost;
      plan.AddManifest(entry, {});
      used = used == 100 ? 200 : 900;
    }
    return All(&plan, Limits(300, 250)).at(0).at(0).key;
  };
  EXPECT_EQ(first_to_go(100), "a");
  EXPECT_EQ(first_to_go(800), "b");
  EXPECT_EQ(first_to_go(50), "a");
}

// What is left after a plan, and what is wrong with it: an oracle that knows only the rules.
struct Drawn {
  std::map<EntryId, CatalogEntry, bool (*)(const EntryId&, const EntryId&)> all{
      [](const EntryId& a, const EntryId& b) { return std::pair(a.kind, a.key) < std::pair(b.kind, b.key); }};
  std::map<std::string, std::vector<EntryId>> names;  // of each manifest
  EvictionLimits limits;
};

using Gone = std::set<std::pair<EntryKind, std::string>>;

// The bytes of what stays for more than its grace.
uint64_t Live(const Drawn& drawn, const Gone& gone) {
  Gone named;
  for (const auto& [key, objects] : drawn.names) {
    if (gone.contains({EntryKind::kManifest, key})) continue;
    for (const EntryId& object : objects) named.emplace(object.kind, object.key);
  }
  uint64_t live = 0;
  for (const auto& [id, entry] : drawn.all) {
    const bool stays = id.kind == EntryKind::kManifest || entry.pinned || named.contains({id.kind, id.key});
    if (stays && !gone.contains({id.kind, id.key})) live += entry.bytes;
  }
  return live;
}

std::string Broken(const Drawn& drawn, const Groups& groups) {
  Gone gone;
  const auto is_fresh = [&](const CatalogEntry& root) {
    return root.last_used_unix_seconds >= drawn.limits.keep_roots_if_used_after;
  };
  for (const std::vector<EntryId>& group : groups) {
    const bool of_a_root = group[0].kind == EntryKind::kManifest;
    if (of_a_root && Live(drawn, gone) <= drawn.limits.live_bytes_wanted) return "too much goes";
    for (const EntryId& id : group) {
      const auto it = drawn.all.find(id);
      if (it == drawn.all.end()) return "goes, but was never here";
      if (it->second.pinned) return "pinned, but goes";
      if (id.kind == EntryKind::kManifest && is_fresh(it->second)) return "used a moment ago, but goes";
      if (!gone.emplace(id.kind, id.key).second) return "goes twice";
    }
  }
  bool roots_left = false;
  for (const auto& [key, objects] : drawn.names) {
    if (gone.contains({EntryKind::kManifest, key})) continue;
    const CatalogEntry& root = drawn.all.at({EntryKind::kManifest, key});
    roots_left = roots_left || (!root.pinned && !is_fresh(root));
    for (const EntryId& object : objects) {
      if (gone.contains({object.kind, object.key})) return "named by what stays, but goes";
    }
  }
  if (Live(drawn, gone) > drawn.limits.live_bytes_wanted && roots_left) return "too much stays";
  return "";
}

Drawn Draw(std::mt19937_64& random, EvictionPlan* plan) {
  Drawn drawn;
  const int manifests = 1 + static_cast<int>(random() % 12), objects = 1 + static_cast<int>(random() % 20);
  const auto listed = [&](EntryId id) {
    CatalogEntry entry =
        Listed(std::move(id), 1 + random() % 100, static_cast<int64_t>(random() % 150), random() % 8 == 0);
    entry.rebuild_ms = static_cast<uint32_t>(random() % 3 * 500);
    entry.compiler = static_cast<uint32_t>(1 + random() % 2);
    drawn.limits.live_bytes += entry.bytes;
    drawn.all.emplace(entry.id, entry);
    return entry;
  };
  for (int i = 0; i < objects; ++i) plan->AddNamed(listed({EntryKind::kObject, absl::StrCat("o", i)}));
  for (int i = 0; i < manifests; ++i) {
    const CatalogEntry entry = listed({EntryKind::kManifest, absl::StrCat("m", i)});
    References references;
    for (int k = 0; k < objects; ++k) {
      if (random() % 4 == 0) references.objects.push_back({EntryKind::kObject, absl::StrCat("o", k)});
    }
    drawn.names[entry.id.key] = references.objects;
    plan->AddManifest(entry, references);
  }
  drawn.limits.live_bytes_wanted = random() % (drawn.limits.live_bytes + 1);
  drawn.limits.now_unix_seconds = 1'000;
  drawn.limits.keep_if_used_after = 100;
  if (random() % 2 == 0) drawn.limits.keep_roots_if_used_after = 100;
  drawn.limits.compiler = 1;
  return drawn;
}

TEST(EvictionPlanTest, DrawnStoresKeepTheRules) {
  int told = 0;
  for (uint64_t seed = 0; seed < 2'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    EvictionPlan plan;
    const Drawn drawn = Draw(random, &plan);
    Groups groups = All(&plan, drawn.limits);
    ASSERT_EQ(Broken(drawn, groups), "");
    // The control: one more object goes, and the oracle says so wherever somebody names it or it is pinned.
    if (groups.empty() || drawn.names.begin()->second.empty()) continue;
    groups.push_back({drawn.names.begin()->second[0]});
    told += Broken(drawn, groups).empty() ? 0 : 1;
  }
  EXPECT_GT(told, 500);
}

}  // namespace
}  // namespace kiln
