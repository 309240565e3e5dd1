// Which daemons use the tier, for people: each leaves a signed record of itself in its tenants' namespaces,
// that ends by itself soon after the daemon. So `kilnctl doctor` finds daemons of another build, which share
// no programs with this one, and daemons whose keys are not trusted here.
//
// Threads: thread-safe; a thread of its own renews the records, and `Look` blocks for kTierLookLimit at most.
// Limits: kTierDaemonsMax daemons are told of. Errors: none leaves here; what could not be asked is a message
// of the status.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/shared/redis_engine.h"
#include "cache/signatures.h"
#include "compiler/support/monotonic_cond_var.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

inline constexpr absl::Duration kTierLookLimit = absl::Seconds(1);
inline constexpr absl::Duration kTierRecordLife = absl::Seconds(90);

class TierMembers {
 public:
  // Both outlive this.
  TierMembers(RedisEngine* engine, const Signatures* signatures);
  // Takes the daemon's records out, where the tier answers.
  ~TierMembers();

  // From now on `own` is told of in these namespaces, with the time of each renewal. Once. UNAVAILABLE where
  // the system gives no thread.
  absl::Status Announce(v1::DaemonRecord own, std::vector<std::string> namespaces);

  // Asks the tier now, whatever its breaker says: how long it takes, how its clock differs from this
  // daemon's, and who else is there. Sets those fields alone.
  void Look(v1::TierStatus* status) const;

 private:
  struct Asked {
    std::vector<RedisReplyPtr> replies;
    int64_t begun_ms = 0, ended_ms = 0;  // by this daemon's clock
  };
  absl::StatusOr<Asked> Renew(const std::string& ns) const;
  void AddOthers(const std::string& ns, const redisReply& ids, v1::TierStatus* status) const;
  v1::TierDaemon Open(const std::string& ns, const std::string& id, absl::string_view sealed) const;
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  RedisEngine* const engine_;
  const Signatures* const signatures_;
  const std::string id_;  // of this process
  v1::DaemonRecord own_;  // as `namespaces_`: by Announce, before there is a thread
  std::vector<std::string> namespaces_;
  absl::Mutex mutex_;
  MonotonicCondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kiln
