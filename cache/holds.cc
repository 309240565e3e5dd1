#include "cache/holds.h"

#include <algorithm>

#include "absl/hash/hash.h"

namespace kiln {
namespace {

uint64_t HashOf(const EntryId& id) { return absl::Hash<EntryId>()(id); }

}  // namespace

Holds::Hold& Holds::Hold::operator=(Hold&& other) noexcept {
  std::swap(holds_, other.holds_);
  std::swap(hashes_, other.hashes_);
  std::swap(late_, other.late_);
  return *this;
}

void Holds::Hold::End() {
  for (uint64_t hash : hashes_) {
    Shard& shard = holds_->ShardOf(hash);
    absl::MutexLock lock(&shard.mutex);
    --shard.uses[hash].holds;
  }
  hashes_.clear();
}

void Holds::Prune(Shard* shard, int64_t now) {
  if (shard->uses.size() < shard->prune_at) return;
  absl::erase_if(shard->uses, [&](const auto& item) { return !CountedOn(item.second, now); });
  shard->prune_at = std::max<size_t>(1024, 2 * shard->uses.size());
}

std::vector<EntryId> Holds::Touch(absl::Span<const EntryId> ids) {
  const int64_t now = now_unix_seconds_();
  std::vector<EntryId> going;
  for (const EntryId& id : ids) {
    const uint64_t hash = HashOf(id);
    Shard& shard = ShardOf(hash);
    absl::MutexLock lock(&shard.mutex);
    Prune(&shard, now);
    Use& use = shard.uses[hash];
    use.stays_until = now + grace_seconds_;
    if (use.claimed) going.push_back(id);
  }
  return going;
}

Holds::Hold Holds::Keep(absl::Span<const EntryId> ids) {
  Hold hold;
  hold.holds_ = this;
  hold.hashes_.reserve(ids.size());
  for (const EntryId& id : ids) {
    const uint64_t hash = HashOf(id);
    hold.hashes_.push_back(hash);
    Shard& shard = ShardOf(hash);
    absl::MutexLock lock(&shard.mutex);
    Use& use = shard.uses[hash];
    ++use.holds;
    hold.late_ = hold.late_ || use.claimed;
  }
  return hold;
}

void Holds::Written(absl::Span<const EntryId> ids) {
  const uint64_t sweep = sweep_.load();
  if (!Sweeping(sweep)) return;
  for (const EntryId& id : ids) {
    const uint64_t hash = HashOf(id);
    Shard& shard = ShardOf(hash);
    absl::MutexLock lock(&shard.mutex);
    shard.uses[hash].written_in = sweep;
  }
}

bool Holds::Claim(const EntryId& id, Standing standing) {
  const int64_t now = now_unix_seconds_();
  const uint64_t hash = HashOf(id);
  Shard& shard = ShardOf(hash);
  absl::MutexLock lock(&shard.mutex);
  Use& use = shard.uses[hash];
  if (use.holds > 0 || use.claimed || Sweeping(use.written_in)) return false;
  if (standing == Standing::kNamed && use.stays_until > now) return false;
  use.claimed = true;
  return true;
}

void Holds::Release(absl::Span<const EntryId> ids) {
  const int64_t now = now_unix_seconds_();
  for (const EntryId& id : ids) {
    const uint64_t hash = HashOf(id);
    Shard& shard = ShardOf(hash);
    absl::MutexLock lock(&shard.mutex);
    auto it = shard.uses.find(hash);
    if (it == shard.uses.end()) continue;
    it->second.claimed = false;
    if (!CountedOn(it->second, now)) shard.uses.erase(it);
  }
}

}  // namespace kiln
