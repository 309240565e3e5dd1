// Which daemon of a cluster compiles what all of them lack. A claim is a lease: a key with a time to live
// that one daemon sets where there is none, and renews while it works. The others wait, and take over where
// it expires.
//
// Nothing correct rests on a claim: one that is lost, or believed by two, costs a compile that was not
// needed. So where the tier does not answer, or another holds the claim for longer than `kClaimPatience`, the
// answer is kNobodys: go on without. claim_table.h decides, and this sends its requests.
//
// Threads: thread-safe; a thread of its own asks for all claims together, so that who waits holds none.
// Answers come with a lock held: they return at once, and call nothing here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/shared/claim_table.h"
#include "cache/shared/redis_engine.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class TierClaims {
 public:
  // `engine` outlives the claims and has a connection for them. UNAVAILABLE where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<TierClaims>> Create(RedisEngine* engine,
                                                            absl::Duration command_limit);
  // Releases what is held, where the tier answers.
  ~TierClaims();

  using Answer = ClaimTable::Answer;
  // `id` is the caller's, `name` the claim's key. One answer, or none once Release has returned; at once
  // where it is ours already, and kNobodys where the tier has not said by `deadline` whose it is.
  void Claim(uint64_t id, std::string name, MonotonicTime deadline, std::function<void(Answer)> answer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The name of one that is ours.
  std::optional<std::string> Ours(uint64_t id) const ABSL_LOCKS_EXCLUDED(mutex_);
  // One that is not known is ignored.
  void Release(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  TierClaims(RedisEngine* engine, absl::Duration command_limit);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Ask(const std::vector<ClaimTable::Question>& due) ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsWoken() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return woken_ || closing_; }

  RedisEngine* const engine_;
  const absl::Duration command_limit_;
  mutable absl::Mutex mutex_;
  MonotonicCondVar changed_;
  ClaimTable table_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kiln
