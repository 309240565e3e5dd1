#include "tests/sim/cluster.h"

#include "tests/sim/cluster_checks.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_stories.h"

namespace kiln::sim {

v1::Hints HintsOfSize(int size) {
  v1::Hints hints;
  hints.add_values(size);
  return hints;
}

KnownKeyPtr Disk::Known(const std::string& key) const {
  auto known = std::make_shared<KnownKey>();
  if (const auto found = refusals.find(key); found != refusals.end()) known->refusal = found->second;
  const auto found = variants.find(key);
  if (found == variants.end()) return known;
  for (const auto& [id, variant] : found->second) {
    KnownVariant& made = known->variants.emplace_back();
    made.variant_id = id;
    made.guards = variant.artifact->guards;
    made.reply = std::make_shared<const std::string>(HitReply(variant.artifact->signed_manifest));
    made.durable = variant.durable;
  }
  return known;
}

void Disk::Put(const std::shared_ptr<const Artifact>& artifact, bool durable, MonotonicTime now) {
  Variant& variant = variants[artifact->compile_key][artifact->variant_id];
  if (variant.artifact == nullptr) variant.since = now;
  variant.artifact = artifact;
  variant.durable = variant.durable || durable;
  if (durable) ever_durable.insert(artifact->variant_id);
}

void Disk::ForgetMemory() {
  for (auto& [key, of_key] : variants)
    std::erase_if(of_key, [](const auto& variant) { return !variant.second.durable; });
}

Cluster::Cluster(uint64_t seed, ClusterFault planted, ClusterCoverage* counted)
    : fault(planted),
      coverage(counted),
      draw(seed),
      checks(std::make_unique<ClusterChecks>(this)),
      stories(std::make_unique<SimStories>(this)) {
  tier.blind = planted == ClusterFault::kNoCompare;
}

Cluster::~Cluster() = default;

void Cluster::At(microseconds delay, std::function<void()> what) {
  // Later ones of the same instant come in any order.
  agenda_.emplace(Due{clock.now + delay, (static_cast<uint64_t>(draw.Below(1 << 20)) << 32) + ++scheduled_},
                  std::move(what));
}

void Cluster::Fail(std::string what) {
  if (outcome.violation.empty()) outcome.violation = std::move(what);
}

void Cluster::Run() {
  while (!agenda_.empty() && outcome.violation.empty()) {
    auto next = agenda_.extract(agenda_.begin());
    clock.now = next.key().first;
    next.mapped()();
  }
}

}  // namespace kiln::sim
