#include "cache/shared/redis_pool.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <utility>

#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr absl::Duration kConnectLimit = absl::Seconds(1);
constexpr absl::Duration kPauseMin = absl::Milliseconds(50);
constexpr absl::Duration kPauseMax = absl::Seconds(5);
constexpr absl::Duration kLookEvery = absl::Milliseconds(500);

bool SaysReadOnly(const RedisExchange& exchange) {
  return exchange.replies.ok() && std::any_of(exchange.replies->begin(), exchange.replies->end(),
                                              [](const RedisReplyPtr& reply) { return IsReadOnly(*reply); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisPool>> RedisPool::Create(Options options) {
  std::unique_ptr<RedisPool> made(new RedisPool(std::move(options)));
  RedisPool* const pool = made.get();
  KILN_ASSIGN_OR_RETURN(made->thread_, StartThread([pool] { pool->KeepConnected(); }));
  return made;
}

RedisPool::~RedisPool() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void RedisPool::AwaitFirst(MonotonicTime deadline) {
  absl::MutexLock lock(&mutex_);
  while (!tried_ && MonotonicNow() < deadline) changed_.WaitUntil(&mutex_, deadline);
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
      std::erase_if(idle_, [](const Lent& idle) { return !idle.connection->IsQuiet(); });
    }
    if (closing_) return;
    const uint64_t master = master_;
    mutex_.Unlock();
    absl::StatusOr<std::unique_ptr<RedisConnection>> made = Connect();
    mutex_.Lock();
    if (master != master_) continue;  // it may have been the one that is none any more
    tried_ = true;
    last_ = made.status();
    changed_.SignalAll();
    if (made.ok()) {
      idle_.push_back({*std::move(made), master});
      pause = kPauseMin;
      continue;
    }
    const MonotonicTime until = MonotonicAfter(pause);
    while (!closing_ && MonotonicNow() < until) changed_.WaitUntil(&mutex_, until);
    pause = std::min(pause * 2, kPauseMax);
  }
}

absl::StatusOr<RedisPool::Lent> RedisPool::Borrow(Asker asker, MonotonicTime patience) {
  if (asker == Asker::kWaits && !breaker_.Allows(MonotonicNow()))
    return absl::UnavailableError("the server was slow lately");
  absl::MutexLock lock(&mutex_);
  while (idle_.empty() && MonotonicNow() < patience) changed_.WaitUntil(&mutex_, patience);
  while (!idle_.empty()) {
    Lent lent = std::move(idle_.back());
    idle_.pop_back();
    if (!lent.connection->IsQuiet()) continue;  // the server has gone since
    ++lent_;
    lent.since = MonotonicNow();
    return lent;
  }
  return absl::UnavailableError(last_.ok() ? "no connection is free" : std::string(last_.message()));
}

void RedisPool::Return(Lent lent, const RedisExchange& exchange, Asker asker) {
  const absl::Status& status = exchange.replies.status();
  if (asker == Asker::kWaits && status.ok()) breaker_.Succeeded();
  // Where there is no server nobody waits anyway.
  const MonotonicTime now = MonotonicNow();
  const bool slow = !status.ok() && !absl::IsUnavailable(status) &&
                    now - lent.since >= absl::ToChronoNanoseconds(options_.slow_after);
  if (asker == Asker::kWaits && slow) breaker_.Failed(now);
  absl::MutexLock lock(&mutex_);
  --lent_;
  if (lent.master != master_) return;  // somebody else has found out meanwhile
  if (options_.master_only && SaysReadOnly(exchange)) {
    last_ = absl::UnavailableError("the master has changed");
    idle_.clear();
    ++master_;
  } else if (status.ok()) {
    idle_.push_back(std::move(lent));
    changed_.SignalAll();
  } else {
    last_ = status;
  }
}

std::vector<RedisEngine::Answer> RedisPool::RunOn(absl::StatusOr<Lent> lent,
                                                  absl::Span<const RedisCommand> commands,
                                                  MonotonicTime deadline, Asker asker) {
  std::vector<Answer> answers;
  RedisExchange exchange = {nullptr, commands, absl::UnknownError("")};
  if (lent.ok()) {
    exchange.connection = lent->connection.get();
    RedisConnection::RunTogether(absl::MakeSpan(&exchange, 1), deadline);
    Return(*std::move(lent), exchange, asker);
  } else {
    exchange.replies = lent.status();
  }
  for (size_t i = 0; i < commands.size(); ++i) {
    if (exchange.replies.ok()) {
      answers.emplace_back(std::move((*exchange.replies)[i]));
    } else {
      answers.emplace_back(exchange.replies.status());
    }
  }
  return answers;
}

std::vector<RedisEngine::Answer> RedisPool::RunEach(absl::Span<const RedisCommand> commands,
                                                    MonotonicTime deadline, Asker asker) {
  std::vector<Answer> answers = RunOn(Borrow(asker), commands, deadline, asker);
  if (!options_.master_only) return answers;
  std::vector<size_t> refused;
  std::vector<RedisCommand> again;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].ok() || !IsReadOnly(**answers[i])) continue;
    refused.push_back(i);
    again.push_back(commands[i]);
  }
  if (refused.empty()) return answers;
  // By a connection to whom `find` names now.
  std::vector<Answer> next = RunOn(Borrow(asker, deadline), again, deadline, asker);
  for (size_t k = 0; k < refused.size(); ++k) {
    Answer& answer = answers[refused[k]];
    answer = std::move(next[k]);
    if (answer.ok() && IsReadOnly(**answer)) answer = absl::UnavailableError("the master has changed");
  }
  return answers;
}

absl::Status RedisPool::state() const {
  absl::MutexLock lock(&mutex_);
  if (!idle_.empty() || lent_ > 0) return absl::OkStatus();
  return last_.ok() ? absl::UnavailableError("not connected yet") : last_;
}

std::string RedisPool::slow() const {
  return breaker_.Allows(MonotonicNow()) ? "" : "the server was slow lately";
}

}  // namespace kiln
