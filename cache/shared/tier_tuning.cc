#include "cache/shared/tier_tuning.h"

#include <hiredis/hiredis.h>

#include <utility>

#include "absl/strings/str_cat.h"
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
constexpr char kTakeOut[] = R"(
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0)";
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

std::string Seconds(absl::Duration duration) { return absl::StrCat(absl::ToInt64Seconds(duration)); }

}  // namespace

absl::StatusOr<std::vector<TierTuning::Record>> TierTuning::Agree(const std::string& ns,
                                                                  absl::Span<const Record> own,
                                                                  MonotonicTime deadline) const {
  std::vector<RedisCommand> reads;
  for (const Record& record : own) {
    for (const char* suffix : {"t", "b"}) {
      const std::string name = TierName(ns, record.key, suffix);
      reads.push_back({"GET", name});
      reads.push_back({"EXPIRE", name, Seconds(unused_limit_)});
    }
  }
  KILN_ASSIGN_OR_RETURN(const std::vector<RedisReplyPtr> replies, tier_.ask(reads, deadline));
  std::vector<Record> stand;
  std::vector<RedisCommand> offers;
  std::vector<size_t> offered;
  for (size_t i = 0; i < own.size(); ++i) {
    const redisReply& there = *replies[kRepliesOfEach * i];
    const redisReply& bars = *replies[kRepliesOfEach * i + 2];
    KILN_RETURN_IF_ERROR(RedisError(there));
    KILN_RETURN_IF_ERROR(RedisError(bars));
    const std::string barred = Barred(ns, own[i].key, bars);
    stand.push_back(Standing(ns, own[i].key, there, barred));
    if (stand[i].value != nullptr || own[i].value == nullptr) continue;
    stand[i].value = own[i].value;
    stand[i].barred = IsBarred(barred, *own[i].value);
    if (stand[i].barred) continue;
    offers.push_back({"EVAL", kOffer, "1", TierName(ns, own[i].key, "t"), *own[i].value,
                      std::string(RedisString(there)), Seconds(unused_limit_)});
    offered.push_back(i);
  }
  if (offers.empty()) return stand;
  // Where the tier takes none for now, its own stand: whoever uses them offers them again.
  const absl::StatusOr<std::vector<RedisReplyPtr>> answers = tier_.ask(offers, deadline);
  for (size_t i = 0; answers.ok() && i < offered.size(); ++i) {
    Record first = Standing(ns, own[offered[i]].key, *(*answers)[i], /*barred=*/"");
    if (first.value != nullptr) stand[offered[i]] = std::move(first);
  }
  return stand;
}

std::string TierTuning::Barred(const std::string& ns, const std::string& key, const redisReply& reply) const {
  if (reply.type != REDIS_REPLY_STRING) return "";
  absl::StatusOr<std::string> barred = tier_.open(ns, BarredId(key), RedisString(reply));
  if (barred.ok()) return *std::move(barred);
  tier_.refuse(TierName(ns, key, "b"), RedisString(reply));
  return "";
}

// Without a value where none is there that counts.
TierTuning::Record TierTuning::Standing(const std::string& ns, const std::string& key,
                                        const redisReply& reply, absl::string_view barred) const {
  Record record{key, nullptr, false};
  if (reply.type != REDIS_REPLY_STRING || IsBarred(barred, RedisString(reply))) return record;
  absl::StatusOr<std::string> value = tier_.open(ns, RecordId(key), RedisString(reply));
  if (value.ok()) {
    record.value = MakeEntryValue(*std::move(value));
  } else {
    tier_.refuse(TierName(ns, key, "t"), RedisString(reply));
  }
  return record;
}

absl::Status TierTuning::Bar(const std::string& ns, const Record& record, MonotonicTime deadline) const {
  const std::string name = TierName(ns, record.key, "b");
  KILN_ASSIGN_OR_RETURN(const std::vector<RedisReplyPtr> before, tier_.ask({{"GET", name}}, deadline));
  KILN_RETURN_IF_ERROR(RedisError(*before[0]));
  std::string barred = Barred(ns, record.key, *before[0]);
  if (!IsBarred(barred, *record.value)) barred += Sha256(*record.value);
  if (barred.size() > kTierBarredMax * kDigestBytes) barred.erase(0, kDigestBytes);
  // Barred first: nobody puts it back between the two.
  KILN_ASSIGN_OR_RETURN(
      const std::vector<RedisReplyPtr> replies,
      tier_.ask({{"SET", name, SealTierValue(*signatures_, BarredId(record.key), ns, barred), "EX",
                  Seconds(unused_limit_)},
                 {"EVAL", kTakeOut, "1", TierName(ns, record.key, "t"), *record.value}},
                deadline));
  for (const RedisReplyPtr& reply : replies) KILN_RETURN_IF_ERROR(RedisError(*reply));
  return absl::OkStatus();
}

}  // namespace kiln
