// One connection to a server of the Redis protocol. Commands go out together and their replies are read, all
// until one deadline: a server that is slow, or answers byte by byte, holds the caller no longer. hiredis
// speaks the protocol; the waiting is here, since its limits are those of one read.
//
// Threads: one at a time; connections that have something to say at the same time need no more than one
// (RunTogether). Errors: UNAVAILABLE (nobody answers, the connection broke), DEADLINE_EXCEEDED,
// PERMISSION_DENIED (the login is refused), DATA_LOSS (that is not the protocol). After one of them the
// connection is of no use. What the server says of a command is a reply, see RedisError. Limits: the replies
// of one call have at most kRedisReplyBytesMax.
#pragma once

#include <poll.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache/shared/redis_address.h"
#include "compiler/support/monotonic_time.h"

struct redisContext;
struct redisReader;
struct redisReply;

namespace kiln {

struct RedisDeleter {
  void operator()(redisContext* context) const;
  void operator()(redisReader* reader) const;
  void operator()(redisReply* reply) const;
};
using RedisReplyPtr = std::unique_ptr<redisReply, RedisDeleter>;
using RedisCommand = std::vector<std::string>;

struct RedisLogin {
  std::string user;      // empty: the server's default user
  std::string password;  // empty: no login
};

// OK unless the reply is an error: RESOURCE_EXHAUSTED (the server is full), PERMISSION_DENIED (not for this
// user), UNAVAILABLE (it starts, or changes its master), else FAILED_PRECONDITION, a read-only replica among
// them.
absl::Status RedisError(const redisReply& reply);

// A replica says so to who writes: what was to be done is not.
bool IsReadOnly(const redisReply& reply);

// The bytes of a string; nothing for any other reply.
absl::string_view RedisString(const redisReply& reply);

class RedisConnection;
struct RedisExchange {
  RedisConnection* connection = nullptr;
  absl::Span<const RedisCommand> commands;
  absl::StatusOr<std::vector<RedisReplyPtr>> replies;  // afterwards
};

class RedisConnection {
 public:
  // Logs in where there is a password. A name is resolved first, which no deadline ends.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Connect(const RedisAddress& address,
                                                                  const RedisLogin& login,
                                                                  MonotonicTime deadline);
  ~RedisConnection();

  // A reply a command, in their order.
  absl::StatusOr<std::vector<RedisReplyPtr>> Run(absl::Span<const RedisCommand> commands,
                                                 MonotonicTime deadline);
  // As Run of each, at the same time: a server that is slow is so for itself alone.
  static void RunTogether(absl::Span<RedisExchange> exchanges, MonotonicTime deadline);

  // False when the server has closed it, or said what nobody asked for.
  bool IsQuiet() const;

 private:
  // What is left of an exchange.
  struct Talk {
    std::string out;
    size_t sent = 0;
    size_t received = 0;
    size_t wanted = 0;
    std::vector<RedisReplyPtr> replies;
    absl::Status status;
    bool IsOver() const { return !status.ok() || replies.size() >= wanted; }
  };
  RedisConnection() = default;
  pollfd WaitFor(const Talk& talk) const;
  absl::Status Step(short ready, Talk* talk);
  absl::Status Send(Talk* talk);
  absl::Status Receive(Talk* talk);

  std::unique_ptr<redisContext, RedisDeleter> context_;
  std::unique_ptr<redisReader, RedisDeleter> reader_;
  std::vector<char> buffer_;
};

}  // namespace kiln
