#include "server/rpc/explanation.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/graph/guard_text.h"
#include "compiler/graph/guards.h"
#include "compiler/graph/key_difference.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "server/build/artifact.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

using MissPtr = MissTable::MissPtr;

constexpr size_t kExplainedDefault = 10;

absl::Status Stopped() { return absl::CancelledError("the caller has gone"); }

// The nearest so far of what was looked at.
struct Nearest {
  using Rank = std::tuple<size_t, bool, int64_t>;  // equal ingredients, the same title, when it was compiled
  bool found = false;
  Rank rank;
  std::string compile_key;
  bool in_tier = false;
  v1::RequestRecord record;

  void Consider(const MissTable::Miss& miss, absl::string_view key, int64_t unix_seconds, bool is_in_tier,
                const v1::RequestRecord& other) {
    if (key == miss.compile_key) return;
    // When another daemon compiled it is not known.
    if (miss.unix_seconds != 0 && unix_seconds > miss.unix_seconds) return;
    const Rank its(EqualIngredients(miss.record, other), miss.record.notes().title() == other.notes().title(),
                   unix_seconds);
    if (found && its <= rank) return;
    found = true;
    rank = its;
    in_tier = is_in_tier;
    compile_key = std::string(key);
    record = other;
    record.mutable_notes()->clear_node_names();
    record.mutable_notes()->clear_source_lines();
    record.mutable_notes()->clear_guards();
  }
};

bool IsKeyOf(const KeyPrefix& prefix, const MissTable::Miss& miss) {
  return prefix.Begins(miss.compile_key) || prefix.Begins(miss.record.request_key());
}

// What only the store knows: the last compile of the key, by its record.
absl::StatusOr<MissPtr> MissOfStored(Store& store, const std::string& compile_key) {
  MissTable::Miss miss;
  miss.compile_key = compile_key;
  KILN_ASSIGN_OR_RETURN(miss.record, ReadRequestRecord(store, compile_key));
  miss.tenant = miss.record.namespace_();
  KILN_ASSIGN_OR_RETURN(const CatalogEntry entry, store.catalog().Find(RequestRecordId(compile_key)));
  miss.unix_seconds = entry.created_unix_seconds;
  KILN_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> variants,
                        store.catalog().Scan(EntryKind::kManifest, compile_key));
  miss.variants_known = variants.empty() ? 0 : variants.size() - 1;  // but the one that it made
  return std::make_shared<const MissTable::Miss>(std::move(miss));
}

absl::StatusOr<MissPtr> MissInTier(const ProgramsInTier& tier, const std::string& compile_key) {
  MissTable::Miss miss;
  miss.compile_key = compile_key;
  KILN_ASSIGN_OR_RETURN(miss.record, tier.find(compile_key));
  miss.tenant = miss.record.namespace_();
  return std::make_shared<const MissTable::Miss>(std::move(miss));
}

// The compile that is meant by the start of a key.
absl::StatusOr<MissPtr> FindByKey(Store& store, const std::vector<MissPtr>& misses, const std::string& hex,
                                  const CallerGone& gone, const ProgramsInTier& tier) {
  KILN_ASSIGN_OR_RETURN(const KeyPrefix prefix, KeyPrefix::Parse(hex));
  absl::btree_set<std::string> keys;
  for (const MissPtr& miss : misses) {
    if (IsKeyOf(prefix, *miss)) keys.insert(miss->compile_key);
  }
  KILN_ASSIGN_OR_RETURN(const ChosenEntries chosen,
                        ChooseEntries(store, prefix, RequestKeys::kElse, /*limit=*/0, gone));
  for (const auto* entries : {&chosen.manifests, &chosen.failures}) {
    for (const CatalogEntry& entry : *entries) keys.insert(entry.id.key.substr(0, kDigestBytes));
  }
  if (keys.empty() && prefix.whole() && tier.find != nullptr) {
    absl::StatusOr<MissPtr> miss = MissInTier(tier, prefix.bytes());
    if (!absl::IsNotFound(miss.status())) return miss;
  }
  if (keys.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no stored program and no compile of late has a key that starts with ", hex,
                     ", and no job has this name"));
  }
  if (keys.size() > 1) {
    return absl::FailedPreconditionError(absl::StrCat("about: ", keys.size(), " keys start with ", hex,
                                                      "; give more digits of the one that is meant"));
  }
  for (const MissPtr& miss : misses) {
    if (miss->compile_key == *keys.begin()) return miss;
  }
  return MissOfStored(store, *keys.begin());
}

absl::Status NoSuchJob(const std::vector<MissPtr>& misses, const std::string& about) {
  absl::btree_set<std::string> jobs;
  for (const MissPtr& miss : misses) {
    if (jobs.size() < kJobsNamedMax && !miss->job.empty()) jobs.insert(miss->job);
  }
  return absl::NotFoundError(absl::StrCat(
      "\"", about,
      "\" is no job (KILN_JOB) that compiled anything since the daemon started, and no start of a key",
      jobs.empty() ? "" : absl::StrCat("; there are ", absl::StrJoin(jobs, ", "))));
}

absl::StatusOr<std::vector<MissPtr>> FindMisses(Store& store, const std::vector<MissPtr>& misses,
                                                const v1::WhyRequest& request, const CallerGone& gone,
                                                const ProgramsInTier& tier) {
  const size_t limit =
      request.limit() == 0 ? kExplainedDefault : std::min<size_t>(request.limit(), kExplainedMax);
  std::vector<MissPtr> found;
  for (const MissPtr& miss : misses) {
    if (found.size() < limit && (request.about().empty() || miss->job == request.about()))
      found.push_back(miss);
  }
  if (!found.empty()) return found;
  if (request.about().empty()) return absl::NotFoundError("nothing was compiled since the daemon started");
  if (!KeyPrefix::Parse(request.about()).ok()) return NoSuchJob(misses, request.about());
  KILN_ASSIGN_OR_RETURN(MissPtr miss, FindByKey(store, misses, request.about(), gone, tier));
  found.push_back(std::move(miss));
  return found;
}

void Describe(const MissTable::Miss& miss, v1::Explanation* explanation) {
  v1::ComparedProgram& program = *explanation->mutable_program();
  program.set_compile_key(miss.compile_key);
  program.set_title(miss.record.notes().title());
  program.set_compiled_unix_seconds(miss.unix_seconds);
  program.set_in_tier(miss.unix_seconds == 0);
  explanation->set_tenant(miss.tenant);
  explanation->set_job(miss.job);
  *explanation->mutable_hints() = miss.record.hints();
}

// The variants of the key that do not hold at the sizes of the compile.
absl::Status AddVariants(Store& store, const MissTable::Miss& miss, v1::Explanation* explanation) {
  KILN_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> variants,
                        store.catalog().Scan(EntryKind::kManifest, miss.compile_key));
  for (const CatalogEntry& entry : variants) {
    if (explanation->variants_size() >= kVariantsShownMax) return absl::OkStatus();
    const absl::StatusOr<EntryValue> value = store.inspection().Get(entry.id);
    v1::SignedManifest signed_manifest;
    v1::Manifest manifest;
    if (!value.ok() || !signed_manifest.ParseFromString(**value) ||
        !manifest.ParseFromString(signed_manifest.manifest())) {
      continue;  // gone meanwhile, or damaged, which the store counts
    }
    std::vector<std::string> broken = BrokenGuardTexts(manifest.guards(), miss.record.hints());
    if (broken.empty()) continue;
    v1::VariantMiss& variant = *explanation->add_variants();
    variant.set_variant_id(manifest.variant_id());
    for (std::string& text : broken) variant.add_broken(std::move(text));
  }
  return absl::OkStatus();
}

// Of the stored variants that hold at the sizes of the compile.
struct Holding {
  std::string waits_for;  // the kind of a device; empty: none waits
  bool waits_no_more = false;
};

Holding HoldingVariants(Store& store, const MissTable::Miss& miss) {
  Holding holding;
  const absl::StatusOr<std::vector<CatalogEntry>> variants =
      store.catalog().Scan(EntryKind::kManifest, miss.compile_key);
  if (!variants.ok()) return holding;
  for (const CatalogEntry& entry : *variants) {
    const absl::StatusOr<EntryValue> value = store.inspection().Get(entry.id);
    v1::SignedManifest signed_manifest;
    v1::Manifest manifest;
    if (!value.ok() || !signed_manifest.ParseFromString(**value) ||
        !manifest.ParseFromString(signed_manifest.manifest()) ||
        !GuardsHold(manifest.guards(), miss.record.hints())) {
      continue;
    }
    const std::string& waits_for = manifest.tuning().waits_for();
    if (waits_for.empty()) holding.waits_no_more = true;
    if (!waits_for.empty()) holding.waits_for = waits_for;
  }
  return holding;
}

// When it was compiled before; 0: not since the daemon started, as far as it remembers.
int64_t CompiledBefore(const std::vector<MissPtr>& misses, const MissTable::Miss& miss) {
  const auto itself =
      std::find_if(misses.begin(), misses.end(), [&](const MissPtr& other) { return other.get() == &miss; });
  for (auto earlier = itself; earlier != misses.end(); ++earlier) {
    if (earlier != itself && (*earlier)->compile_key == miss.compile_key && !(*earlier)->debug)
      return (*earlier)->unix_seconds;
  }
  return 0;
}

absl::Status Decide(Store& store, const std::vector<MissPtr>& misses, const MissTable::Miss& miss,
                    const Nearest& nearest, v1::Explanation* explanation) {
  Describe(miss, explanation);
  const Holding holding = HoldingVariants(store, miss);
  if (!holding.waits_no_more) explanation->set_waits_for(holding.waits_for);
  if (nearest.found) {
    v1::ComparedProgram& program = *explanation->mutable_nearest();
    program.set_compile_key(nearest.compile_key);
    program.set_title(nearest.record.notes().title());
    program.set_compiled_unix_seconds(std::get<int64_t>(nearest.rank));
    program.set_in_tier(nearest.in_tier);
    for (v1::KeyDifference& difference : KeyDifferences(miss.record, nearest.record))
      *explanation->add_differences() = std::move(difference);
  }
  if (miss.debug) {
    explanation->set_why(v1::WHY_DEBUG);
    return absl::OkStatus();
  }
  if (miss.variants_known > 0) KILN_RETURN_IF_ERROR(AddVariants(store, miss, explanation));
  if (explanation->variants_size() > 0) {
    explanation->set_why(v1::WHY_SIZES);
  } else if (const int64_t before = CompiledBefore(misses, miss);
             before != 0 && (miss.variants_known == 0 || !holding.waits_for.empty())) {
    explanation->set_why(v1::WHY_GONE);
    explanation->set_compiled_before_unix_seconds(before);
  } else {
    explanation->set_why(nearest.found ? v1::WHY_INGREDIENT : v1::WHY_FIRST);
  }
  return absl::OkStatus();
}

absl::Status CompareWithStored(Store& store, const std::vector<MissPtr>& asked, const CallerGone& gone,
                               std::vector<Nearest>* nearest, v1::WhyReply* reply) {
  uint64_t stored = 0;
  KILN_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> latest,
                        LatestEntries(store.catalog(), EntryKind::kMeta, kComparedMax, gone, &stored));
  reply->set_stored(stored);
  uint64_t bytes = 0;
  for (const CatalogEntry& entry : latest) {
    if (gone()) return Stopped();
    if (bytes += entry.bytes; bytes > kComparedBytesMax) break;
    const std::string key = entry.id.key.substr(0, kDigestBytes);
    if (!(RequestRecordId(key) == entry.id)) continue;
    const absl::StatusOr<v1::RequestRecord> record = ReadRequestRecord(store, key);
    if (!record.ok()) continue;  // gone meanwhile, or damaged, which the store counts
    reply->set_compared(reply->compared() + 1);
    for (size_t i = 0; i < asked.size(); ++i)
      (*nearest)[i].Consider(*asked[i], key, entry.created_unix_seconds, /*is_in_tier=*/false, *record);
  }
  return absl::OkStatus();
}

// What is stored here too was compared by what the store says of it.
void CompareWithTier(Store& store, const ProgramsInTier& tier, const std::vector<MissPtr>& asked,
                     const CallerGone& gone, std::vector<Nearest>* nearest, v1::WhyReply* reply) {
  uint64_t bytes = 0;
  const absl::Status status = tier.each_latest([&](const TierRecords::Record& there) {
    if (gone()) return false;
    if (bytes += there.bytes; bytes > kComparedBytesMax || reply->compared_in_tier() >= kComparedMax) {
      reply->set_tier_message(absl::StrCat("it has more than the latest ", reply->compared_in_tier()));
      return false;
    }
    if (store.catalog().Find(RequestRecordId(there.compile_key)).ok()) return true;
    reply->set_compared_in_tier(reply->compared_in_tier() + 1);
    for (size_t i = 0; i < asked.size(); ++i) {
      (*nearest)[i].Consider(*asked[i], there.compile_key, there.unix_seconds, /*is_in_tier=*/true,
                             there.record);
    }
    return true;
  });
  if (!status.ok()) reply->set_tier_message(std::string(status.message()));
}

}  // namespace

absl::StatusOr<v1::RequestRecord> ReadRequestRecord(Store& store, const std::string& compile_key) {
  KILN_ASSIGN_OR_RETURN(const EntryValue value, store.inspection().Get(RequestRecordId(compile_key)));
  v1::RequestRecord record;
  KILN_RETURN_IF_ERROR(ParseProto(*value, "request record", &record));
  return record;
}

absl::Status Explain(Store& store, const std::vector<MissPtr>& misses, const v1::WhyRequest& request,
                     const CallerGone& gone, const ProgramsInTier& tier, v1::WhyReply* reply) {
  KILN_ASSIGN_OR_RETURN(const std::vector<MissPtr> asked, FindMisses(store, misses, request, gone, tier));
  std::vector<Nearest> nearest(asked.size());
  KILN_RETURN_IF_ERROR(CompareWithStored(store, asked, gone, &nearest, reply));
  if (tier.each_latest != nullptr) CompareWithTier(store, tier, asked, gone, &nearest, reply);
  for (size_t i = 0; i < asked.size(); ++i) {
    if (gone()) return Stopped();
    KILN_RETURN_IF_ERROR(Decide(store, misses, *asked[i], nearest[i], reply->add_explanations()));
  }
  return absl::OkStatus();
}

}  // namespace kiln
