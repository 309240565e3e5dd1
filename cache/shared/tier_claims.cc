#include "cache/shared/tier_claims.h"

#include <hiredis/hiredis.h>
#include <openssl/rand.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr absl::Duration kRenewEvery = absl::Milliseconds(2500);  // thrice in a claim's life
constexpr absl::Duration kPauseMin = absl::Milliseconds(5);
constexpr absl::Duration kPauseMax = absl::Milliseconds(250);
constexpr size_t kTokenBytes = 16;

// Ours: put off. Nobody's, as after a flush: ours again. Another's: no more.
constexpr char kRenew[] = R"(
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1)";
constexpr char kGiveBack[] = R"(
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0)";

std::string NewToken() {
  std::string token(kTokenBytes, '\0');
  RAND_bytes(reinterpret_cast<unsigned char*>(token.data()), static_cast<int>(token.size()));
  return ToHex(token);
}

bool IsYes(const redisReply& reply) {
  return reply.type == REDIS_REPLY_STATUS || (reply.type == REDIS_REPLY_INTEGER && reply.integer == 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TierClaims>> TierClaims::Create(RedisEngine* engine,
                                                               absl::Duration command_limit) {
  std::unique_ptr<TierClaims> made(new TierClaims(engine, command_limit));
  TierClaims* const claims = made.get();
  KILN_ASSIGN_OR_RETURN(made->thread_, StartThread([claims] { claims->Run(); }));
  return made;
}

TierClaims::~TierClaims() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
    for (auto& [id, held] : held_) {
      held.released = true;
      held.next = MonotonicNow();
    }
  }
  if (thread_.joinable()) thread_.join();
}

void TierClaims::Claim(uint64_t id, std::string name, std::function<void(Answer)> answer) {
  Held held;
  held.name = std::move(name);
  held.token = NewToken();
  held.answer = std::move(answer);
  held.next = MonotonicNow();
  held.patience = MonotonicAfter(kClaimPatience);
  held.pause = kPauseMin;
  absl::MutexLock lock(&mutex_);
  if (const auto found = held_.find(id);
      found != held_.end() && found->second.ours && !found->second.released) {
    held.answer(Answer::kOurs);
    return;
  }
  held_[id] = std::move(held);
  woken_ = true;
  changed_.SignalAll();
}

bool TierClaims::IsOurs(uint64_t id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = held_.find(id);
  return found != held_.end() && found->second.ours;
}

void TierClaims::Release(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto found = held_.find(id);
  if (found == held_.end()) return;
  // One that is being asked for may be ours already.
  found->second.released = true;
  found->second.next = MonotonicNow();
  woken_ = true;
  changed_.SignalAll();
}

std::vector<uint64_t> TierClaims::Due() const {
  std::vector<uint64_t> due;
  const MonotonicTime now = MonotonicNow();
  for (const auto& [id, held] : held_) {
    if (held.next <= now) due.push_back(id);
  }
  return due;
}

void TierClaims::Run() {
  while (true) {
    std::vector<uint64_t> due;
    {
      absl::MutexLock lock(&mutex_);
      MonotonicTime next = MonotonicTime::max();
      for (const auto& [id, held] : held_) next = std::min(next, held.next);
      while (!IsWoken() && MonotonicNow() < next) changed_.WaitUntil(&mutex_, next);
      woken_ = false;
      due = Due();
      if (closing_ && due.empty()) return;
    }
    if (!due.empty()) Ask(due);
  }
}

RedisCommand TierClaims::CommandFor(const Held& held) {
  const std::string life = absl::StrCat(absl::ToInt64Milliseconds(kClaimLife));
  if (held.released) return {"EVAL", kGiveBack, "1", held.name, held.token};
  if (held.ours) return {"EVAL", kRenew, "1", held.name, held.token, life};
  return {"SET", held.name, held.token, "NX", "PX", life};
}

void TierClaims::Ask(const std::vector<uint64_t>& due) {
  std::vector<RedisCommand> commands;
  std::vector<bool> gives_back;
  {
    absl::MutexLock lock(&mutex_);
    for (const uint64_t id : due) {
      commands.push_back(CommandFor(held_.at(id)));
      gives_back.push_back(held_.at(id).released);
    }
  }
  const absl::StatusOr<std::vector<RedisReplyPtr>> replies =
      engine_->Run(commands, MonotonicAfter(command_limit_));
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < due.size(); ++i) {
    const auto held = held_.find(due[i]);
    const bool answered = replies.ok() && RedisError(*(*replies)[i]).ok();
    if (gives_back[i] || !Take(&held->second, answered, answered && IsYes(*(*replies)[i]))) held_.erase(held);
  }
}

bool TierClaims::Take(Held* held, bool answered, bool got) {
  const MonotonicTime now = MonotonicNow();
  if (held->released) {  // meanwhile; given back at once
    held->next = now;
    return true;
  }
  if (held->ours) {
    held->next = now + absl::ToChronoNanoseconds(kRenewEvery);
    return got || !answered;  // another's: it is over
  }
  if (got) {
    held->ours = true;
    held->next = now + absl::ToChronoNanoseconds(kRenewEvery);
    held->answer(Answer::kOurs);
    return true;
  }
  if (!answered || now >= held->patience) {
    held->answer(Answer::kNobodys);
    return false;
  }
  held->next = now + absl::ToChronoNanoseconds(held->pause);
  held->pause = std::min(held->pause * 2, kPauseMax);
  return true;
}

}  // namespace kiln
