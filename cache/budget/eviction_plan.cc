#include "cache/budget/eviction_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "compiler/support/digest.h"

namespace kiln {
namespace {

constexpr double kKeepFactorMax = 8;

std::string CompileKeyOf(const EntryId& id) { return id.key.substr(0, kDigestBytes); }

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

uint32_t EvictionPlan::IndexOf(const EntryId& id) {
  auto [it, inserted] = index_.try_emplace(id, static_cast<uint32_t>(named_.size()));
  if (inserted) named_.emplace_back();
  return it->second;
}

void EvictionPlan::AddManifest(CatalogEntry entry, const References& references) {
  Root root;
  root.first_name = static_cast<uint32_t>(names_.size());
  for (const EntryId& id : references.objects) names_.push_back(IndexOf(id));
  for (const std::string& key : references.kernel_keys) names_.push_back(IndexOf({EntryKind::kKernel, key}));
  root.names = static_cast<uint32_t>(names_.size()) - root.first_name;
  for (uint32_t i = 0; i < root.names; ++i) ++named_[names_[root.first_name + i]].count;
  ++meta_[CompileKeyOf(entry.id)].count;
  root.entry = std::move(entry);
  roots_.push_back(std::move(root));
}

void EvictionPlan::AddDamagedManifest(CatalogEntry entry) {
  AddManifest(std::move(entry), References());
  roots_.back().damaged = true;
}

void EvictionPlan::AddRoot(CatalogEntry entry) {
  if (entry.id.kind == EntryKind::kFailure) ++meta_[CompileKeyOf(entry.id)].count;
  Root root;
  root.entry = std::move(entry);
  roots_.push_back(std::move(root));
}

void EvictionPlan::AddNamed(CatalogEntry entry) {
  const uint32_t index = IndexOf(entry.id);
  named_[index].entry = std::move(entry);
}

void EvictionPlan::AddMeta(CatalogEntry entry) {
  meta_[CompileKeyOf(entry.id)].entries.push_back(std::move(entry));
}

EvictionPlan::MetaOfKey* EvictionPlan::MetaOf(const CatalogEntry& root) {
  if (root.id.kind == EntryKind::kTuning) return nullptr;
  return &meta_[CompileKeyOf(root.id)];
}

bool EvictionPlan::Expired(const Root& root) const {
  return root.entry.last_used_unix_seconds < limits_.expired_if_used_before;
}

bool EvictionPlan::Stays(const Root& root) const {
  const bool fresh = root.entry.last_used_unix_seconds >= limits_.keep_roots_if_used_after;
  return root.entry.pinned || (fresh && !root.damaged && !Expired(root));
}

// A tuning record belongs to a GPU and its libraries, not to a compiler; whose an entry is may not be known.
bool EvictionPlan::OfAnotherCompiler(const Root& root) const {
  return limits_.compiler != 0 && root.entry.compiler != 0 && root.entry.compiler != limits_.compiler &&
         root.entry.id.kind != EntryKind::kTuning;
}

// What a manifest took to make, a byte that goes with it.
void EvictionPlan::Rate() {
  std::vector<double> costs(roots_.size(), 0);
  std::vector<double> known;
  for (size_t r = 0; r < roots_.size(); ++r) {
    const Root& root = roots_[r];
    if (root.entry.rebuild_ms == 0) continue;
    uint64_t bytes = 1 + root.entry.bytes;
    for (uint32_t i = 0; i < root.names; ++i) {
      const Named& named = named_[names_[root.first_name + i]];
      if (named.count == 1) bytes += named.entry.bytes;
    }
    costs[r] = static_cast<double>(root.entry.rebuild_ms) / static_cast<double>(bytes);
    known.push_back(costs[r]);
  }
  const double median = Median(std::move(known));
  for (size_t r = 0; r < roots_.size(); ++r) {
    if (costs[r] == 0) continue;
    roots_[r].keep_factor = std::clamp(costs[r] / median, 1 / kKeepFactorMax, kKeepFactorMax);
  }
}

void EvictionPlan::Begin(const EvictionLimits& limits) {
  limits_ = limits;
  next_ = 0;
  std::erase_if(roots_, [this](const Root& root) { return Stays(root); });
  Rate();
  const auto order = [this](const Root& root) {
    const double unused = std::max<double>(
        1, static_cast<double>(limits_.now_unix_seconds - root.entry.last_used_unix_seconds));
    return std::make_tuple(!root.damaged, !Expired(root), !OfAnotherCompiler(root),
                           -unused / root.keep_factor, root.entry.hits, absl::string_view(root.entry.id.key));
  };
  std::sort(roots_.begin(), roots_.end(), [&](const Root& a, const Root& b) { return order(a) < order(b); });
}

void EvictionPlan::Uncount(const CatalogEntry& entry) {
  limits_.live_bytes -= std::min(limits_.live_bytes, entry.bytes);
  limits_.live_entries -= std::min<uint64_t>(limits_.live_entries, 1);
}

// Were what stays for its grace counted as live, every root would go in the attempt to be rid of it.
void EvictionPlan::Condemn(const CatalogEntry& entry, std::vector<EntryId>* group) {
  if (entry.pinned || entry.id.key.empty()) return;
  Uncount(entry);
  if (entry.last_used_unix_seconds < limits_.keep_if_used_after) group->push_back(entry.id);
}

std::vector<EntryId> EvictionPlan::TakeUnnamed() {
  std::vector<EntryId> group;
  for (const Named& named : named_) {
    if (named.count == 0) Condemn(named.entry, &group);
  }
  for (const auto& [key, meta] : meta_) {
    for (const CatalogEntry& entry : meta.entries) {
      if (meta.count == 0) Condemn(entry, &group);
    }
  }
  return group;
}

const CatalogEntry* EvictionPlan::Next() const {
  if (next_ == roots_.size()) return nullptr;
  const Root& root = roots_[next_];
  const bool enough =
      limits_.live_bytes <= limits_.live_bytes_wanted && limits_.live_entries <= limits_.live_entries_wanted;
  // Damaged and expired ones come first, so whatever comes after the last of them waits for want of room.
  const bool goes = root.damaged || (Expired(root) && limits_.expired_max > 0);
  return enough && !goes ? nullptr : &root.entry;
}

std::vector<EntryId> EvictionPlan::Take() {
  const Root& root = roots_[next_++];
  if (Expired(root) && limits_.expired_max > 0) --limits_.expired_max;
  std::vector<EntryId> group;
  Uncount(root.entry);
  group.push_back(root.entry.id);
  for (uint32_t i = 0; i < root.names; ++i) {
    Named& named = named_[names_[root.first_name + i]];
    if (--named.count == 0) Condemn(named.entry, &group);
  }
  MetaOfKey* meta = MetaOf(root.entry);
  if (meta != nullptr && --meta->count == 0) {
    for (const CatalogEntry& entry : meta->entries) {
      Uncount(entry);
      group.push_back(entry.id);
    }
  }
  return group;
}

}  // namespace kiln
