#include "cache/shared/tier_work.h"

#include <hiredis/hiredis.h>
#include <openssl/rand.h>

#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cache/cache_limits.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/digest.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr absl::Duration kCommandLimit = absl::Seconds(1);

// What was asked for is there or was, as long as its state says so; what is older than that goes first. The
// server's clock is in the ids of the stream.
constexpr char kAsk[] = R"(
local state = redis.call('GET', KEYS[2])
local again = state and string.sub(state, 1, 8) == 'refused:' and state ~= ARGV[5]
if state and not again then return 0 end
local id = redis.call('XADD', KEYS[1], '*', 's', ARGV[1], 'i', ARGV[2])
local oldest = tonumber(string.match(id, '^%d+')) - 1000 * ARGV[4] + 1
redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f', oldest))
if redis.call('XLEN', KEYS[1]) > tonumber(ARGV[3]) then
  redis.call('XDEL', KEYS[1], id)
  return -1
end
redis.call('SET', KEYS[2], 'asked', 'EX', ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1)";
// An owner that is silent has died, or is about to be late. An item that was taken out meanwhile is owed by
// nobody, and a process that has been silent for long is none.
constexpr char kClaim[] = R"(
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
redis.pcall('XGROUP', 'CREATE', KEYS[1], 'kiln', '0')
local old = redis.call('XPENDING', KEYS[1], 'kiln', 'IDLE', ARGV[2], '-', '+', 1)[1]
if old then
  local claimed = redis.call('XCLAIM', KEYS[1], 'kiln', ARGV[1], ARGV[2], old[1])
  if claimed[1] and claimed[1][2] then return {old[4], claimed[1][1], claimed[1][2]} end
  redis.call('XACK', KEYS[1], 'kiln', old[1])
  return false
end
local new = redis.call('XREADGROUP', 'GROUP', 'kiln', ARGV[1], 'COUNT', 1, 'STREAMS', KEYS[1], '>')
if not new or not new[1] then return false end
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], 'kiln')) do
  if consumer[4] == 0 and consumer[6] > tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'kiln', consumer[2])
  end
end
return {0, new[1][2][1][1], new[1][2][1][2]})";
// Before what an owner does: 0 where it is none.
constexpr absl::string_view kOwner = R"(
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.pcall('XGROUP', 'CREATE', KEYS[1], 'kiln', '0')
if #redis.call('XPENDING', KEYS[1], 'kiln', ARGV[2], ARGV[2], 1, ARGV[1]) == 0 then return 0 end)";
constexpr absl::string_view kRenew = R"(
redis.call('XCLAIM', KEYS[1], 'kiln', ARGV[1], 0, ARGV[2], 'JUSTID')
return 1)";
constexpr absl::string_view kRelease = R"(
redis.call('XCLAIM', KEYS[1], 'kiln', ARGV[1], 0, ARGV[2], 'IDLE', 86400000, 'RETRYCOUNT', 0, 'JUSTID')
return 1)";
constexpr absl::string_view kEnd = R"(
redis.call('XACK', KEYS[1], 'kiln', ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
if ARGV[3] == '' then
  redis.call('DEL', KEYS[2])
else
  redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[4])
end
return 1)";
// Puts a device where there is none, or another than was read; says which stands then.
constexpr char kTell[] = R"(
local there = redis.call('GET', KEYS[1])
if there and there ~= ARGV[2] then return there end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
return ARGV[1])";

std::string NameOf(const TierWork::List& list, TierKind kind, absl::string_view rest = "") {
  return TierNameOfTag(list.ns, absl::StrCat("w:", list.kind), kind, rest);
}

std::string StateName(const TierWork::List& list, absl::string_view subject) {
  return NameOf(list, "s", ToHex(subject));
}

EntryId ItemId(const TierWork::List& list, const std::string& subject) {
  return {EntryKind::kMeta, absl::StrCat(subject, "work", list.kind)};
}

EntryId DeviceId(const TierWork::List& list) { return {EntryKind::kMeta, absl::StrCat("device", list.kind)}; }

std::string RefusedBy(absl::string_view key_id) { return absl::StrCat("refused:", key_id); }

// Daemons of one key are two all the same.
std::string NewConsumer(absl::string_view key_id) {
  std::array<char, 8> token;
  RAND_bytes(reinterpret_cast<unsigned char*>(token.data()), token.size());
  return absl::StrCat(key_id, "/", ToHex(absl::string_view(token.data(), token.size())));
}

// As an item says, whether it is true or not.
std::string SignerOf(absl::string_view sealed) {
  const absl::StatusOr<v1::SignedEnvelope> envelope = OpenEnvelope(sealed);
  return envelope.ok() && envelope->key_id().size() == 2 * kDigestBytes ? envelope->key_id() : "";
}

std::string Seconds(absl::Duration duration) { return absl::StrCat(absl::ToInt64Seconds(duration)); }

std::string Milliseconds(absl::Duration duration) {
  return absl::StrCat(absl::ToInt64Milliseconds(duration));
}

// A field of an item, which is a list of names and values.
absl::string_view Field(const redisReply& fields, absl::string_view name) {
  if (fields.type != REDIS_REPLY_ARRAY) return "";
  for (size_t i = 0; i + 1 < fields.elements; i += 2) {
    if (RedisString(*fields.element[i]) == name) return RedisString(*fields.element[i + 1]);
  }
  return "";
}

}  // namespace

TierWork::TierWork(Tier tier, const Signatures* signatures, absl::Duration lookup_limit)
    : tier_(std::move(tier)),
      signatures_(signatures),
      lookup_limit_(lookup_limit),
      consumer_(NewConsumer(signatures->key_id())) {}

absl::StatusOr<RedisReplyPtr> TierWork::Run(RedisCommand command) const {
  KILN_ASSIGN_OR_RETURN(std::vector<RedisReplyPtr> replies,
                        tier_.engine->Run({std::move(command)}, MonotonicAfter(kCommandLimit),
                                          RedisEngine::Asker::kBackground));
  KILN_RETURN_IF_ERROR(RedisError(*replies[0]));
  return std::move(replies[0]);
}

// ---- Who asks --------------------------------------------------------------------------------

absl::StatusOr<TierWork::Asked> TierWork::Ask(const List& list, const std::string& subject,
                                              const std::string& item) const {
  const std::string sealed = SealTierValue(*signatures_, ItemId(list, subject), list.ns, item);
  if (sealed.size() > kTierWorkItemBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("an item of ", sealed.size(), " bytes; the work list takes ", kTierWorkItemBytesMax));
  }
  KILN_ASSIGN_OR_RETURN(
      const RedisReplyPtr reply,
      Run({"EVAL", kAsk, "2", NameOf(list, "w"), StateName(list, subject), subject, sealed,
           absl::StrCat(kTierWorkItemsMax), Seconds(kTierWorkLife), RefusedBy(signatures_->key_id())}));
  return reply->integer > 0 ? Asked::kNow : reply->integer < 0 ? Asked::kFull : Asked::kBefore;
}

absl::StatusOr<std::vector<TierWork::State>> TierWork::StatesOf(
    const List& list, absl::Span<const std::string> subjects) const {
  std::vector<RedisCommand> commands;
  for (const std::string& subject : subjects) commands.push_back({"GET", StateName(list, subject)});
  KILN_ASSIGN_OR_RETURN(
      const std::vector<RedisReplyPtr> replies,
      tier_.engine->Run(commands, MonotonicAfter(kCommandLimit), RedisEngine::Asker::kBackground));
  std::vector<State> states;
  for (const RedisReplyPtr& reply : replies) {
    KILN_RETURN_IF_ERROR(RedisError(*reply));
    const absl::string_view word = RedisString(*reply);
    const bool tried = word == "tried" || word == RefusedBy(signatures_->key_id());
    states.push_back(tried ? State::kTried : word == "asked" ? State::kAsked : State::kUnknown);
  }
  return states;
}

absl::StatusOr<std::string> TierWork::Device(const List& list) const {
  KILN_ASSIGN_OR_RETURN(const std::vector<RedisReplyPtr> replies,
                        tier_.engine->Run({{"GET", NameOf(list, "d")}}, MonotonicAfter(lookup_limit_),
                                          RedisEngine::Asker::kWaits));
  KILN_RETURN_IF_ERROR(RedisError(*replies[0]));
  const redisReply* reply = replies[0].get();
  if (reply->type != REDIS_REPLY_STRING)
    return absl::NotFoundError("no daemon of the shared tier has told of such a device");
  return tier_.open(list.ns, DeviceId(list), RedisString(*reply));
}

// ---- Who has the device ----------------------------------------------------------------------

absl::StatusOr<std::string> TierWork::TellDevice(const List& list, const std::string& device) const {
  KILN_ASSIGN_OR_RETURN(const RedisReplyPtr there, Run({"GET", NameOf(list, "d")}));
  const std::string seen(RedisString(*there));
  absl::StatusOr<std::string> stands = tier_.open(list.ns, DeviceId(list), seen);
  if (stands.ok() && *stands != device) {
    KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope envelope, OpenEnvelope(seen));
    if (envelope.key_id() != signatures_->key_id()) return stands;
  }
  const std::string sealed = SealTierValue(*signatures_, DeviceId(list), list.ns, device);
  KILN_ASSIGN_OR_RETURN(const RedisReplyPtr first,
                        Run({"EVAL", kTell, "1", NameOf(list, "d"), sealed, seen, Seconds(kTierDeviceLife)}));
  return tier_.open(list.ns, DeviceId(list), RedisString(*first));
}

absl::StatusOr<std::optional<TierWork::Claimed>> TierWork::Claim(const List& list, absl::Duration idle,
                                                                 absl::Duration consumer_life) const {
  KILN_ASSIGN_OR_RETURN(const RedisReplyPtr reply, Run({"EVAL", kClaim, "1", NameOf(list, "w"), consumer_,
                                                        Milliseconds(idle), Milliseconds(consumer_life)}));
  if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3) return std::nullopt;
  Claimed claimed;
  claimed.tries = static_cast<uint64_t>(reply->element[0]->integer);
  claimed.id = std::string(RedisString(*reply->element[1]));
  claimed.subject = std::string(Field(*reply->element[2], "s"));
  const absl::string_view sealed = Field(*reply->element[2], "i");
  if (claimed.subject.size() != kDigestBytes) {
    claimed.item = absl::DataLossError("an item without a subject");
  } else if (sealed.size() > kTierWorkItemBytesMax) {
    claimed.item = absl::DataLossError("an item that is too large");
  } else {
    claimed.asker = SignerOf(sealed);
    claimed.item = tier_.open(list.ns, ItemId(list, claimed.subject), sealed);
  }
  return claimed;
}

RedisCommand TierWork::OfOwner(absl::string_view script, const List& list, const Claimed& claimed) const {
  return {"EVAL",
          absl::StrCat(kOwner, script),
          "2",
          NameOf(list, "w"),
          StateName(list, claimed.subject),
          consumer_,
          claimed.id};
}

absl::StatusOr<bool> TierWork::Renew(const List& list, const Claimed& claimed) const {
  KILN_ASSIGN_OR_RETURN(const RedisReplyPtr reply, Run(OfOwner(kRenew, list, claimed)));
  return reply->integer == 1;
}

absl::Status TierWork::Release(const List& list, const Claimed& claimed) const {
  return Run(OfOwner(kRelease, list, claimed)).status();
}

absl::StatusOr<bool> TierWork::End(const List& list, const Claimed& claimed, bool tried) const {
  RedisCommand command = OfOwner(kEnd, list, claimed);
  command.push_back(tried ? "tried" : claimed.asker.empty() ? "" : RefusedBy(claimed.asker));
  command.push_back(Seconds(kTierTriedLife));
  KILN_ASSIGN_OR_RETURN(const RedisReplyPtr reply, Run(std::move(command)));
  return reply->integer == 1;
}

}  // namespace kiln
