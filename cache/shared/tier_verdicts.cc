#include "cache/shared/tier_verdicts.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// What stands there now, and nil where it is what was wanted; it lasts as long as what it replaces, at least.
constexpr char kReplace[] = R"(
local there = redis.call('GET', KEYS[1]) or ''
if there ~= ARGV[1] then return there end
local life = math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[3]))
redis.call('SET', KEYS[1], ARGV[2], 'PX', string.format('%d', life))
return false)";
// Others may have said that it lasts longer.
constexpr char kLengthen[] = R"(
local there = redis.call('GET', KEYS[1])
if not there then return '' end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[1]) then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return redis.sha1hex(there))";

std::string KeyOf(const TierVerdicts::Name& name) {
  return TierName(name.ns, name.compile_key, "g", ToHex(name.gang));
}

EntryId IdOf(const TierVerdicts::Name& name) {
  return {EntryKind::kMeta, absl::StrCat(name.compile_key, "gang", name.gang)};
}

std::string Milliseconds(absl::Duration life) {
  return absl::StrCat(std::max<int64_t>(1, absl::ToInt64Milliseconds(life)));
}

}  // namespace

absl::StatusOr<RedisReplyPtr> TierVerdicts::Ask(RedisCommand command) {
  KILN_ASSIGN_OR_RETURN(
      std::vector<RedisReplyPtr> replies,
      engine_->Run({std::move(command)}, MonotonicAfter(command_limit_), RedisEngine::Asker::kWaits));
  KILN_RETURN_IF_ERROR(RedisError(*replies[0]));
  return std::move(replies[0]);
}

TierVerdicts::Value TierVerdicts::Open(const Name& name, absl::string_view sealed) {
  Value value;
  value.sealed = std::string(sealed);
  if (sealed.empty()) return value;
  const absl::StatusOr<std::string> bytes = OpenTierValue(*signatures_, IdOf(name), name.ns, sealed);
  if (!bytes.ok() || !ParseProto(*bytes, "verdict", &value.verdict).ok()) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    value.verdict.Clear();
  }
  return value;
}

absl::StatusOr<TierVerdicts::Value> TierVerdicts::Read(const Name& name) {
  KILN_ASSIGN_OR_RETURN(const RedisReplyPtr reply, Ask({"GET", KeyOf(name)}));
  return Open(name, RedisString(*reply));
}

absl::StatusOr<TierVerdicts::Value> TierVerdicts::Replace(const Name& name, const std::string& seen,
                                                          const v1::GangVerdict& wanted,
                                                          absl::Duration life) {
  std::string sealed = SealTierValue(*signatures_, IdOf(name), name.ns, SerializeDeterministic(wanted));
  KILN_ASSIGN_OR_RETURN(const RedisReplyPtr reply,
                        Ask({"EVAL", kReplace, "1", KeyOf(name), seen, sealed, Milliseconds(life)}));
  if (reply->type == REDIS_REPLY_NIL) return Value{std::move(sealed), wanted};
  return Open(name, RedisString(*reply));
}

std::vector<absl::StatusOr<std::string>> TierVerdicts::Renew(absl::Span<const Life> lives) {
  std::vector<RedisCommand> commands;
  for (const Life& life : lives)
    commands.push_back({"EVAL", kLengthen, "1", KeyOf(life.name), Milliseconds(life.left)});
  std::vector<absl::StatusOr<std::string>> marks;
  for (const RedisEngine::Answer& answer :
       engine_->RunEach(commands, MonotonicAfter(command_limit_), RedisEngine::Asker::kBackground)) {
    const absl::Status status = answer.ok() ? RedisError(**answer) : answer.status();
    if (status.ok()) {
      marks.emplace_back(std::string(RedisString(**answer)));
    } else {
      marks.emplace_back(status);
    }
  }
  return marks;
}

}  // namespace kiln
