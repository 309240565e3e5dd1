#include "server/flight/hit_index.h"

namespace kiln {
namespace {

constexpr uint64_t kEntryOverhead = 512;  // lists, maps, counts

uint64_t BytesOf(const KnownKey& known) {
  uint64_t bytes = kEntryOverhead;
  for (const KnownVariant& variant : known.variants) {
    bytes += sizeof(KnownVariant) + variant.reply->size() + variant.guards.SpaceUsedLong();
  }
  return bytes;
}

}  // namespace

HitIndex::Shard& HitIndex::ShardOf(absl::string_view compile_key) {
  // Keys are digests: any byte is as good as a hash.
  return shards_[compile_key.empty() ? 0 : static_cast<unsigned char>(compile_key[0]) % kShards];
}

KnownKeyPtr HitIndex::Find(absl::string_view compile_key) {
  Shard& shard = ShardOf(compile_key);
  absl::MutexLock lock(&shard.mutex);
  const auto found = shard.entries.find(compile_key);
  if (found == shard.entries.end()) return nullptr;
  shard.by_use.splice(shard.by_use.begin(), shard.by_use, found->second);
  return found->second->known;
}

KnownKeyPtr HitIndex::Load(const std::string& compile_key, const std::function<KnownKeyPtr()>& read,
                           Keep keep) {
  Shard& shard = ShardOf(compile_key);
  uint64_t erased = 0;
  {
    absl::MutexLock lock(&shard.mutex);
    Reading& reading = shard.reading[compile_key];
    ++reading.readers;
    erased = reading.erased;
  }
  KnownKeyPtr known = read();
  absl::MutexLock lock(&shard.mutex);
  const auto reading = shard.reading.find(compile_key);
  const bool worth_it = keep == Keep::kAll || !known->variants.empty();
  if (reading->second.erased == erased && worth_it) Add(shard, compile_key, known);
  if (--reading->second.readers == 0) shard.reading.erase(reading);
  return known;
}

void HitIndex::Add(Shard& shard, const std::string& compile_key, const KnownKeyPtr& known) {
  Drop(shard, compile_key);
  const uint64_t bytes = BytesOf(*known);
  if (bytes > shard_bytes_max_) return;
  shard.by_use.push_front({compile_key, known, bytes});
  shard.entries[compile_key] = shard.by_use.begin();
  shard.bytes += bytes;
  while (shard.bytes > shard_bytes_max_) Drop(shard, std::string(shard.by_use.back().key));
}

void HitIndex::Drop(Shard& shard, absl::string_view compile_key) {
  const auto found = shard.entries.find(compile_key);
  if (found == shard.entries.end()) return;
  shard.bytes -= found->second->bytes;
  const auto entry = found->second;
  shard.entries.erase(found);
  shard.by_use.erase(entry);
}

void HitIndex::Erase(absl::string_view compile_key) {
  Shard& shard = ShardOf(compile_key);
  absl::MutexLock lock(&shard.mutex);
  Drop(shard, compile_key);
  if (const auto reading = shard.reading.find(compile_key); reading != shard.reading.end()) {
    ++reading->second.erased;
  }
}

void HitIndex::Clear() {
  for (Shard& shard : shards_) {
    absl::MutexLock lock(&shard.mutex);
    shard.entries.clear();
    shard.by_use.clear();
    shard.bytes = 0;
    for (auto& [key, reading] : shard.reading) ++reading.erased;
  }
}

uint64_t HitIndex::bytes() const {
  uint64_t bytes = 0;
  for (const Shard& shard : shards_) {
    absl::MutexLock lock(&shard.mutex);
    bytes += shard.bytes;
  }
  return bytes;
}

uint64_t HitIndex::entries() const {
  uint64_t entries = 0;
  for (const Shard& shard : shards_) {
    absl::MutexLock lock(&shard.mutex);
    entries += shard.entries.size();
  }
  return entries;
}

}  // namespace kiln
