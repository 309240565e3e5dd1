#include "cache/engine/usage_index.h"

#include "absl/strings/match.h"

namespace kiln {
namespace {

constexpr char kRecordVersion = 2;
constexpr size_t kRecordBytes = 1 + 5 * 8 + 1;
// Without the last number, which holds what making the entry took and by whom it was made.
constexpr char kFirstVersion = 1;
constexpr size_t kFirstBytes = 1 + 4 * 8 + 1;

void AppendNumber(uint64_t number, std::string* out) {
  for (int shift = 0; shift < 64; shift += 8) out->push_back(static_cast<char>(number >> shift));
}

uint64_t NumberAt(absl::string_view bytes, size_t offset) {
  uint64_t number = 0;
  for (int i = 7; i >= 0; --i) number = number << 8 | static_cast<uint8_t>(bytes[offset + i]);
  return number;
}

}  // namespace

std::string UsageIndex::EncodeKey(const EntryId& id) {
  std::string key(1, static_cast<char>(id.kind));
  return key += id.key;
}

std::string UsageIndex::EncodeRecord(const CatalogEntry& entry) {
  std::string record(1, kRecordVersion);
  AppendNumber(entry.bytes, &record);
  AppendNumber(static_cast<uint64_t>(entry.created_unix_seconds), &record);
  AppendNumber(static_cast<uint64_t>(entry.last_used_unix_seconds), &record);
  AppendNumber(entry.hits, &record);
  record.push_back(entry.pinned ? 1 : 0);
  AppendNumber(uint64_t{entry.rebuild_ms} << 32 | entry.compiler, &record);
  return record;
}

absl::StatusOr<CatalogEntry> UsageIndex::Decode(absl::string_view key, absl::string_view record) {
  const bool first = record.size() == kFirstBytes && record[0] == kFirstVersion;
  const bool whole = first || (record.size() == kRecordBytes && record[0] == kRecordVersion);
  if (key.size() < 2 || static_cast<uint8_t>(key[0]) >= kEntryKinds || !whole) {
    return absl::DataLossError("record of uses does not parse");
  }
  CatalogEntry entry;
  entry.id = {static_cast<EntryKind>(key[0]), std::string(key.substr(1))};
  entry.bytes = NumberAt(record, 1);
  entry.created_unix_seconds = static_cast<int64_t>(NumberAt(record, 9));
  entry.last_used_unix_seconds = static_cast<int64_t>(NumberAt(record, 17));
  entry.hits = NumberAt(record, 25);
  entry.pinned = record[33] != 0;
  if (first) return entry;
  entry.rebuild_ms = static_cast<uint32_t>(NumberAt(record, 34) >> 32);
  entry.compiler = static_cast<uint32_t>(NumberAt(record, 34));
  return entry;
}

CatalogEntry UsageIndex::ToEntry(EntryKind kind, const Map::value_type& item) {
  const Facts& facts = item.second;
  return {{kind, item.first}, facts.bytes,  facts.created,    facts.last_used,
          facts.hits,         facts.pinned, facts.rebuild_ms, facts.compiler};
}

CatalogEntry UsageIndex::AfterWrite(const EntryId& id, uint64_t bytes, int64_t now, uint32_t rebuild_ms,
                                    uint32_t compiler) const {
  absl::StatusOr<CatalogEntry> before = Find(id);
  CatalogEntry entry = before.ok() ? *before : CatalogEntry{id};
  entry.bytes = bytes;
  entry.created_unix_seconds = now;
  entry.last_used_unix_seconds = now;
  entry.rebuild_ms = rebuild_ms;
  entry.compiler = compiler;
  return entry;
}

void UsageIndex::Add(std::vector<CatalogEntry> entries) {
  absl::MutexLock lock(&mutex_);
  for (CatalogEntry& entry : entries) {
    const Facts facts = {entry.bytes, entry.created_unix_seconds, entry.last_used_unix_seconds,
                         entry.hits,  entry.rebuild_ms,           entry.compiler,
                         entry.pinned};
    uint64_t& bytes = bytes_[static_cast<size_t>(entry.id.kind)];
    Map& map = MapOf(entry.id.kind);
    const size_t before = map.size();
    // In order, each new entry is the last.
    auto it = map.try_emplace(map.end(), std::move(entry.id.key), facts);
    if (map.size() == before) {
      bytes -= it->second.bytes;
      const bool unwritten = it->second.unwritten;
      it->second = facts;
      it->second.unwritten = unwritten;
    }
    bytes += facts.bytes;
  }
}

void UsageIndex::Erase(const EntryId& id) {
  absl::MutexLock lock(&mutex_);
  auto it = MapOf(id.kind).find(id.key);
  if (it == MapOf(id.kind).end()) return;
  bytes_[static_cast<size_t>(id.kind)] -= it->second.bytes;
  MapOf(id.kind).erase(it);
  unwritten_.erase({id.kind, id.key});
}

void UsageIndex::Swap(UsageIndex& other) {
  absl::MutexLock lock(&mutex_);
  absl::MutexLock other_lock(&other.mutex_);
  maps_.swap(other.maps_);
  bytes_.swap(other.bytes_);
  unwritten_.swap(other.unwritten_);
}

bool UsageIndex::Contains(const EntryId& id) const {
  absl::ReaderMutexLock lock(&mutex_);
  return MapOf(id.kind).count(id.key) != 0;
}

absl::StatusOr<CatalogEntry> UsageIndex::Find(const EntryId& id) const {
  absl::ReaderMutexLock lock(&mutex_);
  auto it = MapOf(id.kind).find(id.key);
  if (it == MapOf(id.kind).end()) return absl::NotFoundError("no such entry");
  return ToEntry(id.kind, *it);
}

std::vector<CatalogEntry> UsageIndex::Scan(EntryKind kind, absl::string_view prefix, size_t limit,
                                           absl::string_view after) const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<CatalogEntry> found;
  const Map& map = MapOf(kind);
  auto it = after < prefix ? map.lower_bound(std::string(prefix)) : map.upper_bound(std::string(after));
  for (; it != map.end(); ++it) {
    if (!absl::StartsWith(it->first, prefix) || (limit != 0 && found.size() == limit)) break;
    found.push_back(ToEntry(kind, *it));
  }
  return found;
}

CatalogTotals UsageIndex::Totals() const {
  absl::ReaderMutexLock lock(&mutex_);
  CatalogTotals totals;
  for (size_t kind = 0; kind < kEntryKinds; ++kind) {
    totals.entries[kind] = maps_[kind].size();
    totals.bytes[kind] = bytes_[kind];
  }
  return totals;
}

size_t UsageIndex::RecordUse(const EntryId& id, int64_t now) {
  absl::MutexLock lock(&mutex_);
  auto it = MapOf(id.kind).find(id.key);
  if (it != MapOf(id.kind).end()) {
    ++it->second.hits;
    it->second.last_used = now;
    // Of most hits it is the next one of a record that waits.
    if (!std::exchange(it->second.unwritten, true)) unwritten_.insert({id.kind, id.key});
  }
  return unwritten_.size();
}

std::vector<CatalogEntry> UsageIndex::TakeUnwritten(size_t limit) {
  absl::MutexLock lock(&mutex_);
  std::vector<CatalogEntry> taken;
  while (!unwritten_.empty() && taken.size() < limit) {
    auto first = unwritten_.begin();
    auto it = MapOf(first->first).find(first->second);
    if (it != MapOf(first->first).end()) {
      it->second.unwritten = false;
      taken.push_back(ToEntry(first->first, *it));
    }
    unwritten_.erase(first);
  }
  return taken;
}

}  // namespace kiln
