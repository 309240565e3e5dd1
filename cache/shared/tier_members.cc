#include "cache/shared/tier_members.h"

#include <hiredis/hiredis.h>
#include <openssl/rand.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/cache_limits.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr char kDaemons[] = "daemons";  // in place of a CompileKey
constexpr size_t kIdBytes = 8;
constexpr absl::Duration kRenewal = absl::Seconds(30);

std::string NewId() {
  std::string id(kIdBytes, '\0');
  RAND_bytes(reinterpret_cast<unsigned char*>(id.data()), static_cast<int>(id.size()));
  return ToHex(id);
}

// The set of all that are or were there, and the record of one.
std::string NameOfAll(const std::string& ns) { return TierName(ns, kDaemons, "d"); }
std::string NameOf(const std::string& ns, absl::string_view id) { return TierName(ns, kDaemons, "d", id); }
EntryId EntryOf(absl::string_view id) { return {EntryKind::kMeta, absl::StrCat("daemon", id)}; }

// Not absl's clock, which follows the system's with some delay where somebody sets it.
int64_t WallMilliseconds() {
  using std::chrono::milliseconds, std::chrono::system_clock;
  return std::chrono::duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

// The server's clock when it took the record: when the record ends, without its life.
absl::StatusOr<int64_t> ServersMilliseconds(const redisReply& end) {
  KILN_RETURN_IF_ERROR(RedisError(end));
  if (end.type != REDIS_REPLY_INTEGER || end.integer <= 0)
    return absl::FailedPreconditionError("the tier did not keep the record that tells its clock");
  return end.integer - absl::ToInt64Milliseconds(kTierRecordLife);
}

}  // namespace

TierMembers::TierMembers(RedisEngine* engine, const Signatures* signatures)
    : engine_(engine), signatures_(signatures), id_(NewId()) {}

TierMembers::~TierMembers() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  if (!thread_.joinable()) return;
  thread_.join();
  std::vector<RedisCommand> commands;
  for (const std::string& ns : namespaces_) {
    commands.push_back({"DEL", NameOf(ns, id_)});
    commands.push_back({"SREM", NameOfAll(ns), id_});
  }
  engine_->RunEach(commands, MonotonicAfter(absl::Milliseconds(100)), RedisEngine::Asker::kWaits);
}

absl::Status TierMembers::Announce(v1::DaemonRecord own, std::vector<std::string> namespaces) {
  own_ = std::move(own);
  namespaces_ = std::move(namespaces);
  KILN_ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
  return absl::OkStatus();
}

void TierMembers::Run() {
  while (true) {
    for (const std::string& ns : namespaces_) Renew(ns).status().IgnoreError();  // the next one is soon
    absl::MutexLock lock(&mutex_);
    const MonotonicTime next = MonotonicAfter(kRenewal);
    while (!closing_ && MonotonicNow() < next) changed_.WaitUntil(&mutex_, next);
    if (closing_) return;
  }
}

// The replies: of SET, when the record ends, of the two that keep it among all, and all.
absl::StatusOr<TierMembers::Asked> TierMembers::Renew(const std::string& ns) const {
  v1::DaemonRecord record = own_;
  record.set_unix_millis(WallMilliseconds());
  const std::string value = SealTierValue(*signatures_, EntryOf(id_), ns, SerializeDeterministic(record));
  const std::string life = absl::StrCat(absl::ToInt64Milliseconds(kTierRecordLife));
  Asked asked;
  // The server's clock is told by when what was just set ends: TIME is no command of a tenant's user, and has
  // no key that leads to a cluster's node.
  asked.begun_ms = WallMilliseconds();
  KILN_ASSIGN_OR_RETURN(asked.replies,
                        engine_->Run({{"SET", NameOf(ns, id_), value, "PX", life},
                                      {"PEXPIRETIME", NameOf(ns, id_)},
                                      {"SADD", NameOfAll(ns), id_},
                                      {"PEXPIRE", NameOfAll(ns), life},
                                      {"SMEMBERS", NameOfAll(ns)}},
                                     MonotonicAfter(kTierLookLimit), RedisEngine::Asker::kBackground));
  asked.ended_ms = WallMilliseconds();
  return asked;
}

v1::TierDaemon TierMembers::Open(const std::string& ns, const std::string& id,
                                 absl::string_view sealed) const {
  v1::TierDaemon daemon;
  daemon.set_id(id);
  daemon.set_self(id == id_);
  const absl::StatusOr<v1::SignedEnvelope> envelope = OpenEnvelope(sealed);
  if (envelope.ok()) daemon.set_key_id(envelope->key_id());
  const absl::StatusOr<std::string> bytes = OpenTierValue(*signatures_, EntryOf(id), ns, sealed);
  // What it says is not believed; that somebody unknown is there is worth telling.
  if (!bytes.ok() || !ParseProto(*bytes, "daemon's record", daemon.mutable_record()).ok()) {
    daemon.clear_record();
    daemon.set_message(bytes.ok() ? "its record is none" : std::string(bytes.status().message()));
  }
  return daemon;
}

void TierMembers::AddOthers(const std::string& ns, const redisReply& ids, v1::TierStatus* status) const {
  std::vector<std::string> others;
  std::vector<RedisCommand> commands;
  for (size_t i = 0; i < ids.elements && others.size() < kTierDaemonsMax; ++i) {
    const std::string id(RedisString(*ids.element[i]));
    const bool known = std::any_of(status->daemons().begin(), status->daemons().end(),
                                   [&](const v1::TierDaemon& daemon) { return daemon.id() == id; });
    if (known || id.size() != 2 * kIdBytes) continue;
    commands.push_back({"GET", NameOf(ns, id)});
    others.push_back(id);
  }
  const std::vector<RedisEngine::Answer> answers =
      engine_->RunEach(commands, MonotonicAfter(kTierLookLimit), RedisEngine::Asker::kBackground);
  std::vector<RedisCommand> gone;
  for (size_t i = 0; i < others.size(); ++i) {
    if (!answers[i].ok() || !RedisError(**answers[i]).ok()) continue;
    const absl::string_view sealed = RedisString(**answers[i]);
    if (sealed.empty()) {
      gone.push_back({"SREM", NameOfAll(ns), others[i]});
    } else if (status->daemons_size() < static_cast<int>(kTierDaemonsMax)) {
      *status->add_daemons() = Open(ns, others[i], sealed);
    }
  }
  if (!gone.empty()) engine_->RunEach(gone, MonotonicAfter(kTierLookLimit), RedisEngine::Asker::kBackground);
}

void TierMembers::Look(v1::TierStatus* status) const {
  for (const std::string& ns : namespaces_) {
    const MonotonicTime begun = MonotonicNow();
    const absl::StatusOr<Asked> asked = Renew(ns);
    if (!asked.ok()) {
      status->set_look_message(std::string(asked.status().message()));
      return;
    }
    if (!status->has_latency_ms()) {
      status->set_latency_ms(std::chrono::duration<double, std::milli>(MonotonicNow() - begun).count());
      const absl::StatusOr<int64_t> server = ServersMilliseconds(*asked->replies[1]);
      if (server.ok()) {
        // Ahead by more than what the question took.
        const int64_t ahead = *server > asked->ended_ms   ? *server - asked->ended_ms
                              : *server < asked->begun_ms ? *server - asked->begun_ms
                                                          : 0;
        status->set_clock_ahead_ms(ahead);
      } else {
        status->set_clock_message(std::string(server.status().message()));
      }
    }
    const redisReply& ids = *asked->replies[4];
    if (const absl::Status told = RedisError(ids); !told.ok()) {
      status->set_look_message(std::string(told.message()));
    } else {
      AddOthers(ns, ids, status);
    }
  }
}

}  // namespace kiln
