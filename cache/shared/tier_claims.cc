#include "cache/shared/tier_claims.h"

#include <hiredis/hiredis.h>
#include <openssl/rand.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr size_t kTokenBytes = 16;

// Ours is extended; nobody's, as after a flush, becomes ours again; another's stays.
constexpr char kRenew[] = R"(
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1)";
constexpr char kRelease[] = R"(
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

RedisCommand CommandFor(const ClaimTable::Question& question) {
  const std::string life = absl::StrCat(absl::ToInt64Milliseconds(kClaimLife));
  switch (question.kind) {
    case ClaimTable::Question::Kind::kAcquire: break;
    case ClaimTable::Question::Kind::kRenew:
      return {"EVAL", kRenew, "1", question.name, question.token, life};
    case ClaimTable::Question::Kind::kRelease: return {"EVAL", kRelease, "1", question.name, question.token};
  }
  return {"SET", question.name, question.token, "NX", "PX", life};
}

}  // namespace

TierClaims::TierClaims(RedisEngine* engine, absl::Duration command_limit)
    : engine_(engine), command_limit_(command_limit), table_(NewToken) {}

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
    table_.ReleaseAll(MonotonicNow());
    Wake();
  }
  if (thread_.joinable()) thread_.join();
}

void TierClaims::Wake() {
  woken_ = true;
  changed_.SignalAll();
}

void TierClaims::Claim(uint64_t id, std::string name, MonotonicTime deadline,
                       std::function<void(Answer)> answer) {
  absl::MutexLock lock(&mutex_);
  table_.Claim(id, std::move(name), deadline, std::move(answer), MonotonicNow());
  Wake();
}

std::optional<std::string> TierClaims::Ours(uint64_t id) const {
  absl::MutexLock lock(&mutex_);
  return table_.Ours(id);
}

void TierClaims::Release(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  table_.Release(id, MonotonicNow());
  Wake();
}

void TierClaims::Run() {
  while (true) {
    std::vector<ClaimTable::Question> due;
    {
      absl::MutexLock lock(&mutex_);
      const MonotonicTime next = table_.Next();
      while (!IsWoken() && MonotonicNow() < next) changed_.WaitUntil(&mutex_, next);
      woken_ = false;
      due = table_.Due(MonotonicNow());
      if (closing_ && due.empty()) return;
    }
    if (!due.empty()) Ask(due);
  }
}

void TierClaims::Ask(const std::vector<ClaimTable::Question>& due) {
  std::vector<RedisCommand> commands;
  const MonotonicTime longest = MonotonicAfter(command_limit_);
  MonotonicTime deadline = longest;
  for (const ClaimTable::Question& question : due) {
    commands.push_back(CommandFor(question));
    deadline = std::min(deadline, question.deadline);
  }
  // For all keys: a server that is slow costs no key of another's.
  const std::vector<RedisEngine::Answer> answers =
      engine_->RunEach(commands, deadline, RedisEngine::Asker::kBackground);
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < due.size(); ++i) {
    // Who has the least time left ends the wait for all.
    if (absl::IsDeadlineExceeded(answers[i].status()) && deadline < std::min(longest, due[i].deadline)) {
      table_.Cut(due[i], MonotonicNow());
      continue;
    }
    std::optional<bool> yes;
    if (answers[i].ok() && RedisError(**answers[i]).ok()) yes = IsYes(**answers[i]);
    table_.Told(due[i], yes, MonotonicNow());
  }
}

}  // namespace kiln
