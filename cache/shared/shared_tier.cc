#include "cache/shared/shared_tier.h"

#include <hiredis/hiredis.h>

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cache/shared/redis_cluster.h"
#include "cache/shared/redis_pool.h"
#include "cache/shared/redis_sentinel.h"
#include "cache/shared/tier_artifact.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

// Of who writes, claims, keeps verdicts and tells of this daemon, and of threads that measure.
constexpr size_t kOtherConnections = 7;
constexpr uint64_t kBytesAtOnce = 8u << 20;
constexpr absl::Duration kCommandLimit = absl::Seconds(1);  // in the background
constexpr absl::Duration kFirstConnectionLimit = absl::Seconds(1);

// Takes a value out unless somebody has replaced it.
constexpr char kDeleteField[] = R"(
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then return redis.call('HDEL', KEYS[1], ARGV[1]) end
return 0)";
constexpr char kDeleteValue[] = R"(
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0)";

constexpr absl::Duration kCrashLife = absl::Hours(24);
constexpr char kCount[] = R"(
local count = redis.call('INCR', KEYS[1])
redis.call('EXPIRE', KEYS[1], ARGV[1])
return count)";

absl::StatusOr<std::unique_ptr<RedisEngine>> ConnectTo(const SharedTier::Options& options) {
  constexpr size_t kConnections = kTierReaders + kTierVerdictAskers + kOtherConnections;
  std::vector<RedisAddress> addresses;
  for (const std::string& text : options.addresses) {
    KILN_ASSIGN_OR_RETURN(addresses.emplace_back(), RedisAddress::Parse(text));
  }
  if (addresses.empty()) return absl::InvalidArgumentError("no address");
  const absl::Duration slow_after = options.lookup_limit / 2;
  if (options.cluster) return RedisCluster::Create({addresses, options.login, kConnections, slow_after});
  RedisPool::Options pool;
  pool.slow_after = slow_after;
  pool.login = options.login;
  pool.connections = kConnections;
  if (options.sentinel_master.empty()) {
    pool.find = [server = addresses[0]](MonotonicTime) { return server; };
  } else {
    pool.master_only = true;
    pool.find = [addresses, login = options.sentinel_login, master = options.sentinel_master](
                    MonotonicTime deadline) { return FindMaster(addresses, login, master, deadline); };
  }
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<RedisPool> made, RedisPool::Create(std::move(pool)));
  made->AwaitFirst(MonotonicAfter(kFirstConnectionLimit));
  return made;
}

// For people.
std::string AddressOf(const SharedTier::Options& options) {
  const std::string addresses = absl::StrJoin(options.addresses, ", ");
  if (options.cluster) return absl::StrCat("cluster of ", addresses);
  if (options.sentinel_master.empty()) return addresses;
  return absl::StrCat("master ", options.sentinel_master, " of sentinels ", addresses);
}

std::string ClaimName(const std::string& ns, const std::string& compile_key) {
  return TierName(ns, compile_key, "c");
}

// The name of the claim that who makes these has.
std::string ClaimOf(const std::string& ns, const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    if (entry.id.kind == EntryKind::kManifest || entry.id.kind == EntryKind::kFailure)
      return ClaimName(ns, entry.id.key.substr(0, kDigestBytes));
  }
  return "";
}

uint64_t BytesOf(const std::vector<Entry>& entries) {
  uint64_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.value->size();
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedTier>> SharedTier::Create(Options options,
                                                               const Signatures* signatures) {
  const uint64_t write_bytes_max = options.write_bytes_max;
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<RedisEngine> engine, ConnectTo(options));
  std::unique_ptr<SharedTier> made(new SharedTier(std::move(options), signatures));
  made->engine_ = std::move(engine);
  KILN_ASSIGN_OR_RETURN(made->claims_, TierClaims::Create(made->engine_.get(), made->options_.lookup_limit));
  KILN_ASSIGN_OR_RETURN(made->writer_, TierWriter::Create(write_bytes_max));
  made->verdicts_ =
      std::make_unique<TierVerdicts>(made->engine_.get(), signatures, made->options_.lookup_limit);
  made->members_ = std::make_unique<TierMembers>(made->engine_.get(), signatures);
  TierTuning::Tier lent;
  lent.engine = made->engine_.get();
  lent.open = [tier = made.get()](const std::string& ns, const EntryId& id, absl::string_view sealed) {
    return tier->Open(ns, id, sealed);
  };
  lent.refuse = [tier = made.get()](std::string name, absl::string_view value) {
    tier->Refuse(std::move(name), "", value);
  };
  made->work_ = std::make_unique<TierWork>(TierWork::Tier{lent.engine, lent.open}, signatures,
                                           made->options_.lookup_limit);
  made->records_ = std::make_unique<TierRecords>(lent);
  made->tuning_ = std::make_unique<TierTuning>(std::move(lent), signatures, made->options_.unused_limit);
  return made;
}

// ---- Reading ---------------------------------------------------------------------------------

absl::StatusOr<SharedTier::Found> SharedTier::LookUp(const std::string& ns, const std::string& compile_key,
                                                     MonotonicTime deadline) {
  absl::StatusOr<Found> found = LookUpOnce(ns, compile_key, deadline);
  if (!found.ok()) misses_.fetch_add(1, std::memory_order_relaxed);
  return found;
}

absl::StatusOr<SharedTier::Found> SharedTier::LookUpOnce(const std::string& ns,
                                                         const std::string& compile_key,
                                                         MonotonicTime deadline) {
  // It waited for its turn here, which says nothing of the tier.
  if (MonotonicNow() >= deadline) return absl::DeadlineExceededError("too many look-ups at a time");
  const std::string manifests = TierName(ns, compile_key, "m");
  const std::string refusal = TierName(ns, compile_key, "f");
  const std::string record = TierName(ns, compile_key, "r");
  const std::string life = absl::StrCat(absl::ToInt64Seconds(options_.unused_limit));
  const std::vector<RedisEngine::Answer> answers =
      engine_->RunEach({{"HGETALL", manifests},
                        {"GET", refusal},
                        {"GET", record},
                        {"EXPIRE", manifests, life},  // a replica refuses, and answers the others
                        {"EXPIRE", record, life}},
                       deadline, RedisEngine::Asker::kWaits);
  std::vector<const redisReply*> replies;
  for (size_t i = 0; i < 3; ++i) {
    KILN_RETURN_IF_ERROR(answers[i].status());
    KILN_RETURN_IF_ERROR(RedisError(**answers[i]));
    replies.push_back(answers[i]->get());
  }
  Found found;
  absl::flat_hash_set<std::string> seen;
  const auto take = [&](const EntryId& id, const std::string& name, const std::string& field,
                        absl::string_view sealed) {
    absl::StatusOr<std::string> value = Open(ns, id, sealed);
    absl::StatusOr<v1::Manifest> manifest =
        value.ok() && id.kind == EntryKind::kManifest ? ManifestIn(*value) : v1::Manifest();
    if (!value.ok() || !manifest.ok()) {
      Refuse(name, field, sealed);
      return;
    }
    for (v1::ObjectRef& object : DistinctObjects(*manifest)) {
      if (seen.insert(object.digest()).second) found.objects.push_back(std::move(object));
    }
    found.entries.push_back({id, MakeEntryValue(*std::move(value))});
  };
  for (size_t i = 0; i + 1 < replies[0]->elements; i += 2) {
    if (MonotonicNow() >= deadline) return absl::DeadlineExceededError("too many variants to verify");
    const std::string field(RedisString(*replies[0]->element[i]));
    take({EntryKind::kManifest, compile_key + absl::HexStringToBytes(field)}, manifests, field,
         RedisString(*replies[0]->element[i + 1]));
  }
  if (replies[1]->type != REDIS_REPLY_NIL)
    take({EntryKind::kFailure, compile_key}, refusal, "", RedisString(*replies[1]));
  if (found.entries.empty()) return absl::NotFoundError("the shared tier has no such key");
  if (replies[2]->type != REDIS_REPLY_NIL)
    take({EntryKind::kMeta, compile_key + "request"}, record, "", RedisString(*replies[2]));
  return found;
}

absl::StatusOr<std::vector<Entry>> SharedTier::Fetch(const std::string& ns,
                                                     absl::Span<const v1::ObjectRef> objects) {
  absl::StatusOr<std::vector<Entry>> fetched = FetchOnce(ns, objects);
  (fetched.ok() ? hits_ : misses_).fetch_add(1, std::memory_order_relaxed);
  return fetched;
}

absl::StatusOr<std::vector<Entry>> SharedTier::FetchOnce(const std::string& ns,
                                                         absl::Span<const v1::ObjectRef> objects) {
  uint64_t all = 0;
  for (const v1::ObjectRef& ref : objects) all += ref.packed_size();
  const MonotonicTime deadline = MonotonicAfter(options_.lookup_limit + TierTransferTime(all));
  const std::string life = absl::StrCat(absl::ToInt64Seconds(options_.unused_limit));
  std::vector<Entry> entries;
  for (size_t begin = 0; begin < objects.size();) {
    // As many as make a good batch, one at least.
    std::vector<RedisCommand> commands;
    uint64_t bytes = 0;
    size_t end = begin;
    for (; end < objects.size() && (end == begin || bytes < kBytesAtOnce); ++end) {
      const v1::ObjectRef& ref = objects[end];
      for (uint64_t i = 0; i < TierChunks(ref.packed_size()); ++i) {
        const std::string name = TierChunkName(ns, ref.digest(), ref.packed_size(), i);
        commands.push_back({"GET", name});
        commands.push_back({"EXPIRE", name, life});
      }
      bytes += ref.packed_size();
    }
    const std::vector<RedisEngine::Answer> answers =
        engine_->RunEach(commands, deadline, RedisEngine::Asker::kWaits);
    absl::Span<const RedisEngine::Answer> rest(answers);
    for (; begin < end; ++begin) {
      const size_t size = 2 * TierChunks(objects[begin].packed_size());
      KILN_ASSIGN_OR_RETURN(entries.emplace_back(), OpenObject(ns, objects[begin], rest.first(size)));
      rest.remove_prefix(size);
    }
  }
  return entries;
}

// `chunks`: the answers, two a chunk.
absl::StatusOr<Entry> SharedTier::OpenObject(const std::string& ns, const v1::ObjectRef& ref,
                                             absl::Span<const RedisEngine::Answer> chunks) {
  const auto name = [&](uint64_t i) { return TierChunkName(ns, ref.digest(), ref.packed_size(), i); };
  std::string packed;
  for (uint64_t i = 0; i < chunks.size() / 2; ++i) {
    KILN_RETURN_IF_ERROR(chunks[2 * i].status());
    const redisReply& reply = **chunks[2 * i];
    KILN_RETURN_IF_ERROR(RedisError(reply));
    if (reply.type == REDIS_REPLY_NIL) return absl::NotFoundError("the shared tier lacks an object");
    absl::StatusOr<std::string> chunk =
        Open(ns, {EntryKind::kObject, TierChunkKey(ref.digest(), ref.packed_size(), i)}, RedisString(reply));
    if (!chunk.ok()) {
      Refuse(name(i), "", RedisString(reply));
      return chunk.status();
    }
    packed += *chunk;
  }
  if (!options_.dangerously_believe) {
    const absl::StatusOr<std::string> raw = ZstdDecompress(packed, ref.raw_size());
    if (!raw.ok() || Sha256(*raw) != ref.digest()) {
      for (uint64_t i = 0; i < chunks.size() / 2; ++i) Refuse(name(i), "", RedisString(**chunks[2 * i]));
      return absl::DataLossError("an object that is not its digest's");
    }
  }
  return Entry{{EntryKind::kObject, ref.digest()}, MakeEntryValue(std::move(packed))};
}

absl::StatusOr<std::string> SharedTier::Open(const std::string& ns, const EntryId& id,
                                             absl::string_view sealed) {
  if (options_.dangerously_believe) return OpenTierValueUnchecked(id, sealed);
  return OpenTierValue(*signatures_, id, ns, sealed);
}

// `field`: empty for what is no hash.
void SharedTier::Refuse(std::string name, std::string field, absl::string_view value) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  const std::string key = name;
  RedisCommand command = {"EVAL", field.empty() ? kDeleteValue : kDeleteField, "1", std::move(name)};
  if (!field.empty()) command.push_back(std::move(field));
  command.emplace_back(value);
  writer_->Post(key, value.size(), [this, command = std::move(command)]() -> absl::Status {
    KILN_ASSIGN_OR_RETURN(
        const std::vector<RedisReplyPtr> replies,
        engine_->Run({command}, MonotonicAfter(kCommandLimit), RedisEngine::Asker::kBackground));
    return RedisError(*replies[0]);
  });
}

// ---- Writing ---------------------------------------------------------------------------------

void SharedTier::WriteArtifact(const std::string& ns, std::vector<Entry> entries, ReadLocal local,
                               std::function<void()> ended) {
  Write(ns, std::move(entries), std::move(local), &TierArtifact::Write, std::move(ended));
}

void SharedTier::WriteRefusal(const std::string& ns, std::vector<Entry> entries) {
  Write(ns, std::move(entries), nullptr, &TierArtifact::WriteRefusal, nullptr);
}

void SharedTier::Write(const std::string& ns, std::vector<Entry> entries, ReadLocal local,
                       absl::Status (TierArtifact::*write)(), std::function<void()> ended) {
  const uint64_t bytes = BytesOf(entries);
  const std::string claim = ClaimOf(ns, entries);
  auto artifact = std::make_shared<TierArtifact>(engine_.get(), signatures_, ns, options_.unused_limit,
                                                 std::move(entries), std::move(local));
  writer_->Post(claim, bytes, [artifact, write] { return ((*artifact).*write)(); }, std::move(ended));
}

// ---- Crashes ---------------------------------------------------------------------------------

absl::StatusOr<int64_t> SharedTier::CountCrash(const std::string& ns, const std::string& compile_key) {
  KILN_ASSIGN_OR_RETURN(const std::vector<RedisReplyPtr> replies,
                        engine_->Run({{"EVAL", kCount, "1", TierName(ns, compile_key, "x"),
                                       absl::StrCat(absl::ToInt64Seconds(kCrashLife))}},
                                     MonotonicAfter(options_.lookup_limit), RedisEngine::Asker::kWaits));
  KILN_RETURN_IF_ERROR(RedisError(*replies[0]));
  return replies[0]->integer;
}

absl::Status SharedTier::RemoveRefusal(const std::string& ns, const std::string& compile_key) {
  KILN_ASSIGN_OR_RETURN(
      const std::vector<RedisReplyPtr> replies,
      engine_->Run({{"DEL", TierName(ns, compile_key, "f"), TierName(ns, compile_key, "x")}},
                   MonotonicAfter(kCommandLimit), RedisEngine::Asker::kBackground));
  return RedisError(*replies[0]);
}

// ---- Tuning records --------------------------------------------------------------------------

absl::StatusOr<std::vector<TierTuning::Record>> SharedTier::AgreeOnTuning(
    const std::string& ns, absl::Span<const TierTuning::Record> own) {
  return tuning_->Agree(ns, own, MonotonicAfter(options_.lookup_limit));
}

absl::Status SharedTier::BarTuning(const std::string& ns, const TierTuning::Record& record) {
  return tuning_->Bar(ns, record, MonotonicAfter(kCommandLimit));
}

absl::Status SharedTier::RemoveManifest(const std::string& ns, const EntryId& manifest) {
  const std::string compile_key = manifest.key.substr(0, kDigestBytes);
  KILN_ASSIGN_OR_RETURN(
      const std::vector<RedisReplyPtr> replies,
      engine_->Run({{"HDEL", TierName(ns, compile_key, "m"), ToHex(manifest.key.substr(kDigestBytes))}},
                   MonotonicAfter(kCommandLimit), RedisEngine::Asker::kBackground));
  return RedisError(*replies[0]);
}

// ---- Claims ----------------------------------------------------------------------------------

void SharedTier::Claim(uint64_t id, const std::string& ns, const std::string& compile_key,
                       MonotonicTime deadline, std::function<void(TierClaims::Answer)> answer) {
  claims_->Claim(id, ClaimName(ns, compile_key), deadline, std::move(answer));
}

void SharedTier::ReleaseAfterWrites(uint64_t id) {
  if (const std::optional<std::string> claim = claims_->Ours(id); claim.has_value()) {
    writer_->After(*claim, [this, id] { claims_->Release(id); });
  } else {
    claims_->Release(id);  // what waits is answered no more
  }
}

// ---- For people ------------------------------------------------------------------------------

v1::TierStatus SharedTier::status() const {
  v1::TierStatus status;
  const absl::Status state = engine_->state();
  status.set_address(AddressOf(options_));
  status.set_connected(state.ok());
  const std::string slow = engine_->slow();
  status.set_breaker_open(!slow.empty());
  status.set_message(state.ok() ? slow : std::string(state.message()));
  status.set_hits(hits_.load(std::memory_order_relaxed));
  status.set_misses(misses_.load(std::memory_order_relaxed));
  status.set_refused(refused_.load(std::memory_order_relaxed) + verdicts_->refused());
  status.set_writes(writer_->written());
  status.set_dropped_writes(writer_->dropped());
  return status;
}

}  // namespace kiln
