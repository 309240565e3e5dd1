#include "cache/shared/tier_tuning.h"

#include <hiredis/hiredis.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/cache_limits.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// Puts a record where there is none, or where one stands that does not count; says which stands then.
constexpr char kOffer[] = R"(
local there = redis.call('GET', KEYS[1])
if there and there ~= ARGV[2] then return there end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
return ARGV[1])";
// What is barred by now, and nil where it is what was wanted: then the record has gone as well, so that
// nobody puts it back between the two.
constexpr char kBar[] = R"(
local there = redis.call('GET', KEYS[1]) or ''
if there ~= ARGV[1] then return there end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
if redis.call('GET', KEYS[2]) == ARGV[4] then redis.call('DEL', KEYS[2]) end
return false)";
constexpr size_t kRepliesOfEach = 4;

EntryId RecordId(const std::string& key) { return {EntryKind::kTuning, key}; }
EntryId BarredId(const std::string& key) { return {EntryKind::kMeta, absl::StrCat(key, "barred")}; }

// Digests, one after the other.
bool IsBarred(absl::string_view barred, absl::string_view value) {
  const std::string digest = Sha256(value);
  for (; barred.size() >= kDigestBytes; barred.remove_prefix(kDigestBytes)) {
    if (barred.substr(0, kDigestBytes) == digest) return true;
  }
  return false;
}

absl::Status ErrorOf(const RedisEngine::Answer& answer) {
  return answer.ok() ? RedisError(**answer) : answer.status();
}

std::string Seconds(absl::Duration duration) { return absl::StrCat(absl::ToInt64Seconds(duration)); }

}  // namespace

absl::StatusOr<std::vector<TierTuning::Record>> TierTuning::Agree(const std::string& ns,
                                                                  absl::Span<const Record> own,
                                                                  MonotonicTime deadline) const {
  std::vector<RedisCommand> reads;
  for (const Record& record : own) {
    for (const TierKind kind : {TierKind("t"), TierKind("b")}) {
      const std::string name = TierName(ns, record.key, kind);
      reads.push_back({"GET", name});
      reads.push_back({"EXPIRE", name, Seconds(unused_limit_)});
    }
  }
  const std::vector<RedisEngine::Answer> replies =
      tier_.engine->RunEach(reads, deadline, RedisEngine::Asker::kWaits);
  std::vector<Record> stand;
  std::vector<RedisCommand> offers;
  std::vector<size_t> offered;
  size_t answered = 0;
  absl::Status failed;
  for (size_t i = 0; i < own.size(); ++i) {
    absl::Status read = ErrorOf(replies[kRepliesOfEach * i]);
    if (read.ok()) read = ErrorOf(replies[kRepliesOfEach * i + 2]);
    if (!read.ok()) {
      failed = read;
      stand.push_back({own[i].key, own[i].value});
      continue;
    }
    ++answered;
    const redisReply& there = **replies[kRepliesOfEach * i];
    const std::string barred = Barred(ns, own[i].key, RedisString(**replies[kRepliesOfEach * i + 2]));
    stand.push_back(Standing(ns, own[i].key, there, barred));
    if (stand[i].value != nullptr || own[i].value == nullptr) continue;
    stand[i].value = own[i].value;
    stand[i].barred = IsBarred(barred, *own[i].value);
    if (stand[i].barred) continue;
    offers.push_back({"EVAL", kOffer, "1", TierName(ns, own[i].key, "t"), *own[i].value,
                      std::string(RedisString(there)), Seconds(unused_limit_)});
    offered.push_back(i);
  }
  if (answered == 0 && !failed.ok()) return failed;
  // Where the tier takes none for now, its own stand: whoever uses them offers them again.
  const std::vector<RedisEngine::Answer> answers =
      tier_.engine->RunEach(offers, deadline, RedisEngine::Asker::kWaits);
  for (size_t i = 0; i < offered.size(); ++i) {
    if (!answers[i].ok()) continue;
    Record first = Standing(ns, own[offered[i]].key, **answers[i], /*barred=*/"");
    if (first.value != nullptr) stand[offered[i]] = std::move(first);
  }
  return stand;
}

// Of what stands there; empty: nothing does.
std::string TierTuning::Barred(const std::string& ns, const std::string& key,
                               absl::string_view sealed) const {
  if (sealed.empty()) return "";
  absl::StatusOr<std::string> barred = tier_.open(ns, BarredId(key), sealed);
  if (barred.ok()) return *std::move(barred);
  tier_.refuse(TierName(ns, key, "b"), sealed);
  return "";
}

// Without a value where none is there that counts.
TierTuning::Record TierTuning::Standing(const std::string& ns, const std::string& key,
                                        const redisReply& reply, absl::string_view barred) const {
  Record record{key, nullptr};
  if (reply.type != REDIS_REPLY_STRING || IsBarred(barred, RedisString(reply))) return record;
  absl::StatusOr<std::string> value = tier_.open(ns, RecordId(key), RedisString(reply));
  if (value.ok()) {
    record.value = MakeEntryValue(*std::move(value));
    record.shared = true;
  } else {
    tier_.refuse(TierName(ns, key, "t"), RedisString(reply));
  }
  return record;
}

absl::Status TierTuning::Bar(const std::string& ns, const Record& record, MonotonicTime deadline) const {
  const std::string name = TierName(ns, record.key, "b");
  std::string seen;
  const auto ask = [&](RedisCommand command) -> absl::StatusOr<bool> {
    KILN_ASSIGN_OR_RETURN(const std::vector<RedisReplyPtr> replies,
                          tier_.engine->Run({std::move(command)}, deadline, RedisEngine::Asker::kBackground));
    KILN_RETURN_IF_ERROR(RedisError(*replies[0]));
    seen = std::string(RedisString(*replies[0]));
    return replies[0]->type == REDIS_REPLY_NIL;
  };
  KILN_RETURN_IF_ERROR(ask({"GET", name}).status());
  for (int tries = 0; tries < kTierBarTriesMax; ++tries) {
    std::string barred = Barred(ns, record.key, seen);
    if (!IsBarred(barred, *record.value)) barred += Sha256(*record.value);
    if (barred.size() > kTierBarredMax * kDigestBytes) barred.erase(0, kDigestBytes);
    KILN_ASSIGN_OR_RETURN(const bool done, ask({"EVAL", kBar, "2", name, TierName(ns, record.key, "t"), seen,
                                                SealTierValue(*signatures_, BarredId(record.key), ns, barred),
                                                Seconds(unused_limit_), *record.value}));
    if (done) return absl::OkStatus();
  }
  return absl::AbortedError("others bar records of the same tunable all the while: try again");
}

}  // namespace kiln
