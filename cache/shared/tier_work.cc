#include "cache/shared/tier_work.h"

#include <hiredis/hiredis.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/digest.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr absl::Duration kCommandLimit = absl::Seconds(1);

// What was asked for is there or was, as long as its state says so.
constexpr char kAsk[] = R"(
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[3]) then return -1 end
redis.call('SET', KEYS[2], 'asked', 'EX', ARGV[4])
redis.call('XADD', KEYS[1], '*', 's', ARGV[1], 'i', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1)";
// An owner that is silent has died, or is about to be late. An item that was taken out meanwhile is owed by
// nobody.
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
return {0, new[1][2][1][1], new[1][2][1][2]})";
constexpr char kRenew[] = R"(
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local mine = redis.call('XPENDING', KEYS[1], 'kiln', ARGV[2], ARGV[2], 1, ARGV[1])
if #mine == 0 then return 0 end
redis.call('XCLAIM', KEYS[1], 'kiln', ARGV[1], 0, ARGV[2], 'JUSTID')
return 1)";
constexpr char kGiveBack[] = R"(
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local mine = redis.call('XPENDING', KEYS[1], 'kiln', ARGV[2], ARGV[2], 1, ARGV[1])
if #mine == 0 then return 0 end
redis.call('XCLAIM', KEYS[1], 'kiln', ARGV[1], 0, ARGV[2], 'IDLE', 86400000, 'RETRYCOUNT', 0, 'JUSTID')
return 1)";
constexpr char kEnd[] = R"(
redis.call('XACK', KEYS[1], 'kiln', ARGV[1])
redis.call('XDEL', KEYS[1], ARGV[1])
if ARGV[2] == '' then return redis.call('DEL', KEYS[2]) end
redis.call('SET', KEYS[2], 'tried', 'EX', ARGV[2])
return 1)";
// Puts a device where there is none, or another than was read; says which stands then.
constexpr char kTell[] = R"(
local there = redis.call('GET', KEYS[1])
if there and there ~= ARGV[2] then return there end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
return ARGV[1])";

std::string NameOf(const TierWork::List& list, absl::string_view suffix) {
  return absl::StrCat("kiln:1:", list.ns, ":{w:", list.kind, "}:", suffix);
}

std::string StateName(const TierWork::List& list, absl::string_view subject) {
  return NameOf(list, absl::StrCat("s:", ToHex(subject)));
}

EntryId ItemId(const TierWork::List& list, const std::string& subject) {
  return {EntryKind::kMeta, absl::StrCat(subject, "work", list.kind)};
}

EntryId DeviceId(const TierWork::List& list) { return {EntryKind::kMeta, absl::StrCat("device", list.kind)}; }

std::string Seconds(absl::Duration duration) { return absl::StrCat(absl::ToInt64Seconds(duration)); }

// A field of an item, which is a list of names and values.
absl::string_view Field(const redisReply& fields, absl::string_view name) {
  if (fields.type != REDIS_REPLY_ARRAY) return "";
  for (size_t i = 0; i + 1 < fields.elements; i += 2) {
    if (RedisString(*fields.element[i]) == name) return RedisString(*fields.element[i + 1]);
  }
  return "";
}

}  // namespace

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
  KILN_ASSIGN_OR_RETURN(const RedisReplyPtr reply,
                        Run({"EVAL", kAsk, "2", NameOf(list, "w"), StateName(list, subject), subject, sealed,
                             absl::StrCat(kTierWorkItemsMax), Seconds(kTierWorkLife)}));
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
    states.push_back(word == "tried" ? State::kTried : word == "asked" ? State::kAsked : State::kUnknown);
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

absl::StatusOr<std::optional<TierWork::Claimed>> TierWork::Claim(const List& list,
                                                                 absl::Duration idle) const {
  KILN_ASSIGN_OR_RETURN(const RedisReplyPtr reply,
                        Run({"EVAL", kClaim, "1", NameOf(list, "w"), signatures_->key_id(),
                             absl::StrCat(absl::ToInt64Milliseconds(idle))}));
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
    claimed.item = tier_.open(list.ns, ItemId(list, claimed.subject), sealed);
  }
  return claimed;
}

absl::StatusOr<bool> TierWork::Renew(const List& list, const Claimed& claimed) const {
  KILN_ASSIGN_OR_RETURN(const RedisReplyPtr reply,
                        Run({"EVAL", kRenew, "1", NameOf(list, "w"), signatures_->key_id(), claimed.id}));
  return reply->integer == 1;
}

absl::Status TierWork::GiveBack(const List& list, const Claimed& claimed) const {
  return Run({"EVAL", kGiveBack, "1", NameOf(list, "w"), signatures_->key_id(), claimed.id}).status();
}

absl::Status TierWork::End(const List& list, const Claimed& claimed, bool tried) const {
  return Run({"EVAL", kEnd, "2", NameOf(list, "w"), StateName(list, claimed.subject), claimed.id,
              tried ? Seconds(kTierTriedLife) : ""})
      .status();
}

}  // namespace kiln
