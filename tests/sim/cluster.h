// What all parts of a simulated cluster share: time, chance, the tier, the fault that is planted, and what is
// counted. Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/build/artifact.h"
#include "server/flight/known_key.h"
#include "tests/sim/cluster_sim.h"
#include "tests/sim/draw.h"
#include "tests/sim/sim_clock.h"
#include "tests/sim/sim_tier.h"

namespace kiln::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

class SimDaemon;
class ClusterChecks;
class SimStories;

// What survives a daemon's death.
struct Disk {
  struct Variant {
    std::shared_ptr<const Artifact> artifact;
    bool durable = false;  // else memory has it, until the daemon ends
    MonotonicTime since;
  };
  std::map<std::string, std::map<std::string, Variant>> variants;  // by key and id
  std::map<std::string, absl::Status> refusals;
  std::set<std::string> ever_durable;  // variant ids

  KnownKeyPtr Known(const std::string& key) const;
  void Put(const std::shared_ptr<const Artifact>& artifact, bool durable, MonotonicTime now);
  void ForgetMemory();
};

struct Host {
  // `of` outlives it.
  Host(const SimClock* of, absl::Duration skew) : clock(of, skew) {}

  size_t number = 0;
  SkewedClock clock;
  bool forwards = false;                         // its daemon has an upstream, and no tier
  bool cut = false;                              // from the tier, or from the upstream
  milliseconds slow{1};                          // one way, at most
  int lossy = 0;                                 // of a hundred replies
  MonotonicTime trouble = MonotonicTime::min();  // when something was last not told, or ended with the daemon
  Disk disk;
  std::unique_ptr<SimDaemon> daemon;  // null: it is down
};

struct Cluster {
  Cluster(uint64_t seed, ClusterFault planted, ClusterCoverage* counted);
  ~Cluster();

  void At(microseconds delay, std::function<void()> what);
  bool Plant(ClusterFault planted, int percent) { return fault == planted && draw.Chance(percent); }
  void Fail(std::string what);
  void Run();

  const ClusterFault fault;
  ClusterCoverage* const coverage;
  ClusterOutcome outcome;
  Draw draw;
  SimClock clock;
  SimTier tier{&clock};
  MonotonicTime tier_lost = MonotonicTime::min();  // when it last lost something
  bool calm = false;                               // no trouble in this history
  std::vector<std::unique_ptr<Host>> hosts;
  std::vector<std::unique_ptr<SimDaemon>> dead;
  bool over = false;  // what comes round again does no more
  uint64_t last_call = 0;
  uint64_t last_life = 0;  // of a daemon
  std::unique_ptr<ClusterChecks> checks;
  std::unique_ptr<SimStories> stories;

 private:
  using Due = std::pair<MonotonicTime, uint64_t>;  // a random number breaks ties
  std::map<Due, std::function<void()>> agenda_;
  uint64_t scheduled_ = 0;
};

v1::Hints HintsOfSize(int size);

}  // namespace kiln::sim
