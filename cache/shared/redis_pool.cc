#include "cache/shared/redis_pool.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr absl::Duration kConnectLimit = absl::Seconds(1);
constexpr absl::Duration kPauseMin = absl::Milliseconds(50);
constexpr absl::Duration kPauseMax = absl::Seconds(5);
constexpr absl::Duration kLookEvery = absl::Milliseconds(500);

bool IsReplica(const std::vector<RedisReplyPtr>& replies) {
  return std::any_of(replies.begin(), replies.end(), [](const RedisReplyPtr& reply) {
    return reply->type == REDIS_REPLY_ERROR &&
           absl::StartsWith(absl::string_view(reply->str, reply->len), "READONLY");
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisPool>> RedisPool::Create(Options options) {
  std::unique_ptr<RedisPool> made(new RedisPool(std::move(options)));
  RedisPool* const pool = made.get();
  KILN_ASSIGN_OR_RETURN(made->thread_, StartThread([pool] { pool->KeepConnected(); }));
  absl::MutexLock lock(&pool->mutex_);
  pool->mutex_.AwaitWithTimeout(absl::Condition(&pool->tried_), kConnectLimit);
  return made;
}

RedisPool::~RedisPool() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    closed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisPool::Connect() const {
  const MonotonicTime deadline = MonotonicAfter(kConnectLimit);
  KILN_ASSIGN_OR_RETURN(const RedisAddress address, options_.find(deadline));
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<RedisConnection> made,
                        RedisConnection::Connect(address, options_.login, deadline));
  if (!options_.master_only) return made;
  KILN_ASSIGN_OR_RETURN(const std::vector<RedisReplyPtr> role, made->Run({{"ROLE"}}, deadline));
  KILN_RETURN_IF_ERROR(RedisError(*role[0]));
  if (role[0]->elements == 0 || RedisString(*role[0]->element[0]) != "master")
    return absl::UnavailableError("the server that was the master is none any more");
  return made;
}

void RedisPool::KeepConnected() {
  absl::Duration pause = kPauseMin;
  absl::MutexLock lock(&mutex_);
  while (true) {
    // Who asks next shall find no connection that the server has closed since.
    while (!mutex_.AwaitWithTimeout(absl::Condition(this, &RedisPool::HasWork), kLookEvery)) {
      std::erase_if(idle_, [](const std::unique_ptr<RedisConnection>& idle) { return !idle->IsQuiet(); });
    }
    if (closing_) return;
    mutex_.Unlock();
    absl::StatusOr<std::unique_ptr<RedisConnection>> made = Connect();
    mutex_.Lock();
    tried_ = true;
    last_ = made.status();
    if (made.ok()) {
      idle_.push_back(*std::move(made));
      pause = kPauseMin;
      continue;
    }
    const MonotonicTime until = MonotonicAfter(pause);
    while (!closing_ && MonotonicNow() < until) closed_.WaitUntil(&mutex_, until);
    pause = std::min(pause * 2, kPauseMax);
  }
}

absl::StatusOr<std::vector<RedisReplyPtr>> RedisPool::Run(absl::Span<const RedisCommand> commands,
                                                          MonotonicTime deadline) {
  std::unique_ptr<RedisConnection> connection;
  {
    absl::MutexLock lock(&mutex_);
    while (connection == nullptr && !idle_.empty()) {
      connection = std::move(idle_.back());
      idle_.pop_back();
      if (!connection->IsQuiet()) connection = nullptr;  // the server has gone since
    }
    if (connection == nullptr) {
      return absl::UnavailableError(last_.ok() ? "no connection is free" : std::string(last_.message()));
    }
    ++lent_;
  }
  absl::StatusOr<std::vector<RedisReplyPtr>> replies = connection->Run(commands, deadline);
  const bool leaves = replies.ok() && options_.master_only && IsReplica(*replies);
  absl::MutexLock lock(&mutex_);
  --lent_;
  if (leaves) {
    last_ = absl::UnavailableError("the master has changed");
    idle_.clear();
  } else if (replies.ok()) {
    idle_.push_back(std::move(connection));
  } else {
    last_ = replies.status();
  }
  return replies;
}

absl::Status RedisPool::state() const {
  absl::MutexLock lock(&mutex_);
  if (!idle_.empty() || lent_ > 0) return absl::OkStatus();
  return last_.ok() ? absl::UnavailableError("not connected yet") : last_;
}

}  // namespace kiln
