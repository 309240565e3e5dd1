#include "cache/shared/redis_sentinel.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/shared/redis_connection.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

absl::StatusOr<RedisAddress> Ask(const RedisAddress& sentinel, const RedisLogin& login,
                                 const std::string& master, MonotonicTime deadline) {
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<RedisConnection> connection,
                        RedisConnection::Connect(sentinel, login, deadline));
  KILN_ASSIGN_OR_RETURN(const std::vector<RedisReplyPtr> replies,
                        connection->Run({{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", master}}, deadline));
  const redisReply& reply = *replies[0];
  KILN_RETURN_IF_ERROR(RedisError(reply));
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 2)
    return absl::NotFoundError(absl::StrCat("no sentinel knows a master \"", master, "\""));
  return RedisAddress::Parse(
      absl::StrCat(RedisString(*reply.element[0]), ":", RedisString(*reply.element[1])));
}

}  // namespace

absl::StatusOr<RedisAddress> FindMaster(absl::Span<const RedisAddress> sentinels, const RedisLogin& login,
                                        const std::string& master, MonotonicTime deadline) {
  absl::Status last = absl::UnavailableError("there is no sentinel");
  for (size_t i = 0; i < sentinels.size(); ++i) {
    const MonotonicTime now = MonotonicNow();
    const MonotonicTime share = now + (deadline - now) / static_cast<int64_t>(sentinels.size() - i);
    absl::StatusOr<RedisAddress> found = Ask(sentinels[i], login, master, share);
    if (found.ok()) return found;
    last = found.status();
  }
  return absl::UnavailableError(absl::StrCat("sentinels: ", last.message()));
}

}  // namespace kiln
