// One daemon's way to the shared tier: commands that come late, not at all, or whose replies are lost; and
// what stands between it and the real machines: who asks for claims, one batch at a time as TierClaims'
// thread, and who writes, one thing at a time as TierWriter's.
//
// All of it ends with the daemon. Threads: one.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cache/shared/claim_table.h"
#include "compiler/support/breaker.h"
#include "tests/sim/cluster.h"

namespace kiln::sim {

struct Life {  // of a daemon
  uint64_t number = 0;
};

class TierLink {
 public:
  // Both outlive it; `life` is the daemon's.
  TierLink(Cluster* cluster, Host* host, std::weak_ptr<Life> life)
      : cluster_(cluster), host_(host), life_(std::move(life)) {}

  enum class Kind { kLook, kClaim, kVerdict, kWrite };
  enum class Fate { kTold, kLost, kCut };  // not told, after it came there or before
  // `apply` is called when it has come there, `told` later: OK, or why nothing is known.
  void Ask(Kind kind, std::function<void(Fate)> apply, std::function<void(const absl::Status&)> told);
  // In this daemon's life.
  void At(microseconds delay, std::function<void()> what);

 private:
  void NotTold(Kind kind, microseconds delay, const absl::Status& why,
               const std::function<void(const absl::Status&)>& told);

  Cluster* const cluster_;
  Host* const host_;
  const std::weak_ptr<Life> life_;
  Breaker looks_{{3, absl::Milliseconds(100), absl::Seconds(10)}};  // as SharedTier's and TierVerdicts'
  Breaker verdicts_{{3, absl::Milliseconds(100), absl::Seconds(10)}};
};

class LinkClaims {
 public:
  LinkClaims(Cluster* cluster, Host* host, TierLink* link, uint64_t life);

  void Claim(uint64_t id, const std::string& name, std::function<void(ClaimTable::Answer)> answer);
  bool IsOurs(uint64_t id) const { return table_.Ours(id).has_value(); }
  void Release(uint64_t id);
  bool empty() const { return table_.empty(); }

 private:
  void Run();
  bool AtTier(const ClaimTable::Question& question, TierLink::Fate fate);

  Cluster* const cluster_;
  Host* const host_;
  TierLink* const link_;
  const uint64_t life_;
  uint64_t tokens_ = 0;
  ClaimTable table_;
  bool asking_ = false;
  std::set<uint64_t> forgotten_;  // planted
  MonotonicTime wakes_ = MonotonicTime::max();
};

class LinkWriter {
 public:
  LinkWriter(Cluster* cluster, TierLink* link) : cluster_(cluster), link_(link) {}

  // `write` at the tier (null: nothing); `ended` then, or when it was dropped.
  void Post(std::function<void()> write, std::function<void()> ended = nullptr);
  bool empty() const { return queue_.empty(); }

 private:
  struct Job {
    std::function<void()> write;
    std::function<void()> ended;
    MonotonicTime patience;
    microseconds pause{50'000};
  };
  void Run();
  void Try();
  void End();

  Cluster* const cluster_;
  TierLink* const link_;
  std::deque<Job> queue_;
};

}  // namespace kiln::sim
