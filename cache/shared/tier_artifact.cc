#include "cache/shared/tier_artifact.h"

#include <hiredis/hiredis.h>

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/shared/tier_records.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {
namespace {

constexpr absl::Duration kCommandLimit = absl::Seconds(1);
constexpr absl::Duration kRefusalLife = absl::Hours(24);
constexpr uint64_t kBytesPerSecond = 10'000'000;
constexpr uint64_t kBytesAtOnce = 8u << 20;

// Of the key's variants at most so many: one more takes the place of another. What crashed over it is
// forgiven.
constexpr char kKeepVariant[] = R"(
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[3]) then
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if field ~= ARGV[1] then redis.call('HDEL', KEYS[1], field) break end
  end
end
redis.call('DEL', KEYS[2])
return redis.call('EXPIRE', KEYS[1], ARGV[4]))";

std::string Seconds(absl::Duration duration) { return absl::StrCat(absl::ToInt64Seconds(duration)); }

std::string CompileKeyOf(const EntryId& id) { return id.key.substr(0, kDigestBytes); }

}  // namespace

absl::Duration TierTransferTime(uint64_t bytes) {
  return absl::Seconds(static_cast<double>(bytes) / kBytesPerSecond);
}

TierArtifact::TierArtifact(RedisEngine* engine, const Signatures* signatures, std::string ns,
                           absl::Duration unused_limit, std::vector<Entry> entries, ReadLocal local)
    : engine_(engine),
      signatures_(signatures),
      ns_(std::move(ns)),
      unused_limit_(unused_limit),
      entries_(std::move(entries)),
      local_(std::move(local)) {}

absl::StatusOr<EntryValue> TierArtifact::Read(const EntryId& id) const {
  for (const Entry& entry : entries_) {
    if (entry.id == id) return entry.value;
  }
  return local_(id);
}

absl::Status TierArtifact::Run(absl::Span<const RedisCommand> commands, uint64_t bytes) {
  KILN_ASSIGN_OR_RETURN(const std::vector<RedisReplyPtr> replies,
                        engine_->Run(commands, MonotonicAfter(kCommandLimit + TierTransferTime(bytes)),
                                     RedisEngine::Asker::kBackground));
  for (const RedisReplyPtr& reply : replies) KILN_RETURN_IF_ERROR(RedisError(*reply));
  return absl::OkStatus();
}

RedisCommand TierArtifact::Set(const std::string& name, std::string sealed, absl::Duration ttl) const {
  return {"SET", name, std::move(sealed), "EX", Seconds(ttl)};
}

absl::Status TierArtifact::Write() {
  for (const Entry& entry : entries_) {
    if (entry.id.kind != EntryKind::kManifest) continue;
    KILN_ASSIGN_OR_RETURN(const v1::Manifest manifest, ManifestIn(*entry.value));
    std::vector<Object> objects;
    for (const v1::ObjectRef& ref : DistinctObjects(manifest))
      objects.push_back({ref.digest(), ref.packed_size()});
    KILN_ASSIGN_OR_RETURN(const std::vector<Object> missing, Missing(objects));
    KILN_RETURN_IF_ERROR(WriteObjects(missing));
    KILN_RETURN_IF_ERROR(WriteRecord());
    KILN_RETURN_IF_ERROR(WriteManifest(entry));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TierArtifact::Object>> TierArtifact::Missing(absl::Span<const Object> objects) {
  std::vector<RedisCommand> commands;
  for (const Object& object : objects) {
    for (uint64_t i = 0; i < TierChunks(object.size); ++i) {
      commands.push_back(
          {"EXPIRE", TierChunkName(ns_, object.digest, object.size, i), Seconds(unused_limit_)});
    }
  }
  KILN_ASSIGN_OR_RETURN(
      const std::vector<RedisReplyPtr> replies,
      engine_->Run(commands, MonotonicAfter(kCommandLimit), RedisEngine::Asker::kBackground));
  std::vector<Object> missing;
  size_t next = 0;
  for (const Object& object : objects) {
    bool whole = true;
    for (uint64_t i = 0; i < TierChunks(object.size); ++i) {
      KILN_RETURN_IF_ERROR(RedisError(*replies[next]));
      whole = replies[next++]->integer == 1 && whole;
    }
    if (!whole) missing.push_back(object);
  }
  return missing;
}

absl::Status TierArtifact::WriteObjects(absl::Span<const Object> objects) {
  std::vector<RedisCommand> commands;
  uint64_t bytes = 0;
  for (const Object& object : objects) {
    KILN_ASSIGN_OR_RETURN(const EntryValue packed, Read({EntryKind::kObject, object.digest}));
    if (packed->size() != object.size) return absl::FailedPreconditionError("an object of another size");
    for (uint64_t i = 0; i < TierChunks(object.size); ++i) {
      const absl::string_view chunk = absl::string_view(*packed).substr(i * kTierChunkBytes, kTierChunkBytes);
      commands.push_back(
          Set(TierChunkName(ns_, object.digest, object.size, i),
              SealTierValue(*signatures_, {EntryKind::kObject, TierChunkKey(object.digest, object.size, i)},
                            ns_, chunk),
              unused_limit_));
      bytes += chunk.size();
      if (bytes < kBytesAtOnce) continue;
      KILN_RETURN_IF_ERROR(Run(commands, bytes));
      commands.clear();
      bytes = 0;
    }
  }
  return Run(commands, bytes);
}

absl::Status TierArtifact::WriteManifest(const Entry& manifest) {
  const std::string compile_key = CompileKeyOf(manifest.id);
  const std::string sealed = SealTierValue(*signatures_, manifest.id, ns_, *manifest.value);
  return Run({{"EVAL", kKeepVariant, "2", TierName(ns_, compile_key, "m"), TierName(ns_, compile_key, "x"),
               ToHex(manifest.id.key.substr(kDigestBytes)), sealed, absl::StrCat(kVariantsPerKeyMax),
               Seconds(unused_limit_)}},
             sealed.size());
}

absl::Status TierArtifact::WriteRecord() {
  for (const Entry& entry : entries_) {
    if (entry.id.kind != EntryKind::kMeta) continue;
    const std::string compile_key = CompileKeyOf(entry.id);
    KILN_RETURN_IF_ERROR(Run({Set(TierName(ns_, compile_key, "r"),
                                  SealTierValue(*signatures_, entry.id, ns_, *entry.value), unused_limit_)},
                             entry.value->size()));
    // For people alone: who spoils the list keeps no program from being written.
    Run(ListTierRecord(ns_, compile_key, time(nullptr), unused_limit_), 0).IgnoreError();
  }
  return absl::OkStatus();
}

absl::Status TierArtifact::WriteRefusal() {
  KILN_RETURN_IF_ERROR(WriteRecord());
  for (const Entry& entry : entries_) {
    if (entry.id.kind != EntryKind::kFailure) continue;
    KILN_RETURN_IF_ERROR(
        Run({Set(TierName(ns_, entry.id.key, "f"), SealTierValue(*signatures_, entry.id, ns_, *entry.value),
                 std::min(kRefusalLife, unused_limit_))},
            entry.value->size()));
  }
  return absl::OkStatus();
}

}  // namespace kiln
