#include "cache/budget/eviction_plan.h"

#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "compiler/support/digest.h"

namespace kiln {
namespace {

class Planner {
 public:
  explicit Planner(const EvictionInput& input) : input_(input), live_bytes_(input.live_bytes) {
    for (const CatalogEntry& object : input.objects) named_[object.id].entry = &object;
    for (const CatalogEntry& kernel : input.kernels) named_[kernel.id].entry = &kernel;
    for (const CatalogEntry& meta : input.meta) meta_[CompileKeyOf(meta.id)].entries.push_back(&meta);
    for (const EvictionInput::Manifest& manifest : input.manifests) {
      for (const EntryId& id : NamedBy(manifest)) ++named_[id].count;
      ++meta_[CompileKeyOf(manifest.entry.id)].count;
    }
    for (const CatalogEntry& other : input.others) {
      if (other.id.kind == EntryKind::kFailure) ++meta_[CompileKeyOf(other.id)].count;
    }
  }

  std::vector<std::vector<EntryId>> Plan() {
    CollectUnnamed();
    for (const Root& root : RootsByUse()) {
      if (live_bytes_ <= input_.live_bytes_wanted) break;
      EvictRoot(root);
    }
    return std::move(groups_);
  }

 private:
  struct Named {
    const CatalogEntry* entry = nullptr;  // null: named, but not here
    size_t count = 0;                     // manifests that name it
  };
  struct MetaOfKey {
    std::vector<const CatalogEntry*> entries;
    size_t count = 0;  // manifests and failures of the key
  };
  struct Root {
    const CatalogEntry* entry;
    const EvictionInput::Manifest* manifest;  // null for a failure or tuning record
  };

  static std::string CompileKeyOf(const EntryId& id) { return id.key.substr(0, kDigestBytes); }

  static std::vector<EntryId> NamedBy(const EvictionInput::Manifest& manifest) {
    std::vector<EntryId> ids = manifest.references.objects;
    for (const std::string& key : manifest.references.kernel_keys) ids.push_back({EntryKind::kKernel, key});
    return ids;
  }

  bool MayGo(const CatalogEntry& entry) const {
    return !entry.pinned && entry.last_used_unix_seconds < input_.keep_if_used_after;
  }

  void Take(const CatalogEntry& entry, std::vector<EntryId>* group) {
    live_bytes_ -= std::min(live_bytes_, entry.bytes);
    group->push_back(entry.id);
  }

  void CollectUnnamed() {
    std::vector<EntryId> group;
    for (const std::vector<CatalogEntry>* entries : {&input_.kernels, &input_.objects}) {
      for (const CatalogEntry& entry : *entries) {
        if (named_[entry.id].count == 0 && MayGo(entry)) Take(entry, &group);
      }
    }
    for (const auto& [key, meta] : meta_) {
      for (const CatalogEntry* entry : meta.entries) {
        if (meta.count == 0 && MayGo(*entry)) Take(*entry, &group);
      }
    }
    if (!group.empty()) groups_.push_back(std::move(group));
  }

  std::vector<Root> RootsByUse() const {
    std::vector<Root> roots;
    for (const EvictionInput::Manifest& manifest : input_.manifests) {
      if (!manifest.entry.pinned) roots.push_back({&manifest.entry, &manifest});
    }
    for (const CatalogEntry& other : input_.others) {
      if (!other.pinned) roots.push_back({&other, nullptr});
    }
    auto order = [](const Root& root) {
      bool sound = root.manifest == nullptr || !root.manifest->damaged;
      return std::make_tuple(sound, root.entry->last_used_unix_seconds, root.entry->hits,
                             absl::string_view(root.entry->id.key));
    };
    std::sort(roots.begin(), roots.end(), [&](const Root& a, const Root& b) { return order(a) < order(b); });
    return roots;
  }

  void EvictRoot(const Root& root) {
    std::vector<EntryId> group;
    Take(*root.entry, &group);
    if (root.manifest != nullptr) {
      for (const EntryId& id : NamedBy(*root.manifest)) {
        Named& named = named_[id];
        if (--named.count == 0 && named.entry != nullptr && !named.entry->pinned) Take(*named.entry, &group);
      }
    }
    if (root.manifest != nullptr || root.entry->id.kind == EntryKind::kFailure) {
      MetaOfKey& meta = meta_[CompileKeyOf(root.entry->id)];
      if (--meta.count == 0) {
        for (const CatalogEntry* entry : meta.entries) Take(*entry, &group);
      }
    }
    groups_.push_back(std::move(group));
  }

  const EvictionInput& input_;
  uint64_t live_bytes_;
  absl::flat_hash_map<EntryId, Named> named_;
  absl::flat_hash_map<std::string, MetaOfKey> meta_;
  std::vector<std::vector<EntryId>> groups_;
};

}  // namespace

std::vector<std::vector<EntryId>> PlanEviction(const EvictionInput& input) { return Planner(input).Plan(); }

}  // namespace kiln
