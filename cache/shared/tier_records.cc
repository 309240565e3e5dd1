#include "cache/shared/tier_records.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cache/cache_limits.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr char kRecords[] = "records";  // in place of a CompileKey
constexpr size_t kAtOnce = 64;

std::string NameOfAll(const std::string& ns) { return TierNameOfTag(ns, kRecords, "l"); }

// Without records yet. What is no key is left out.
std::vector<TierRecords::Record> Listed(const redisReply& reply) {
  std::vector<TierRecords::Record> listed;
  for (size_t i = 0; i + 1 < reply.elements; i += 2) {
    TierRecords::Record record;
    double seconds = 0;
    absl::StatusOr<std::string> key = FromHex(RedisString(*reply.element[i]));
    if (!key.ok() || key->size() != kDigestBytes ||
        !absl::SimpleAtod(RedisString(*reply.element[i + 1]), &seconds)) {
      continue;
    }
    record.compile_key = *std::move(key);
    record.unix_seconds = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e12));
    listed.push_back(std::move(record));
  }
  return listed;
}

}  // namespace

absl::Status TierRecords::EachLatest(const std::string& ns, absl::FunctionRef<bool(const Record&)> visit) {
  const MonotonicTime deadline = MonotonicAfter(kTierRecordsTime);
  KILN_ASSIGN_OR_RETURN(
      const std::vector<RedisReplyPtr> all,
      tier_.engine->Run({{"ZREVRANGE", NameOfAll(ns), "0", absl::StrCat(kTierRecordsMax - 1), "WITHSCORES"}},
                        deadline, RedisEngine::Asker::kBackground));
  KILN_RETURN_IF_ERROR(RedisError(*all[0]));
  std::vector<Record> listed = Listed(*all[0]);
  for (size_t begin = 0; begin < listed.size(); begin += kAtOnce) {
    const size_t end = std::min(begin + kAtOnce, listed.size());
    std::vector<RedisCommand> commands;
    for (size_t i = begin; i < end; ++i)
      commands.push_back({"GET", TierName(ns, listed[i].compile_key, "r")});
    const std::vector<RedisEngine::Answer> answers =
        tier_.engine->RunEach(commands, deadline, RedisEngine::Asker::kBackground);
    for (size_t i = begin; i < end; ++i) {
      const RedisEngine::Answer& answer = answers[i - begin];
      KILN_RETURN_IF_ERROR(answer.status());
      if (!RedisError(**answer).ok() || (*answer)->type == REDIS_REPLY_NIL) continue;
      const absl::string_view sealed = RedisString(**answer);
      const absl::StatusOr<std::string> bytes =
          tier_.open(ns, RequestRecordId(listed[i].compile_key), sealed);
      if (!bytes.ok()) {
        tier_.refuse(TierName(ns, listed[i].compile_key, "r"), sealed);
        continue;
      }
      if (!ParseProto(*bytes, "request record", &listed[i].record).ok()) continue;
      listed[i].bytes = bytes->size();
      if (!visit(listed[i])) return absl::OkStatus();
      listed[i].record.Clear();
    }
  }
  return absl::OkStatus();
}

std::vector<RedisCommand> ListTierRecord(const std::string& ns, const std::string& compile_key,
                                         int64_t unix_seconds, absl::Duration life) {
  const std::string name = NameOfAll(ns);
  return {{"ZADD", name, absl::StrCat(unix_seconds), ToHex(compile_key)},
          {"ZREMRANGEBYRANK", name, "0", absl::StrCat(-static_cast<int64_t>(kTierRecordsMax) - 1)},
          {"EXPIRE", name, absl::StrCat(absl::ToInt64Seconds(life))}};
}

}  // namespace kiln
