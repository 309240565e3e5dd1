#include "tests/sim/cluster_sim.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"
#include "tests/sim/cluster_checks.h"
#include "tests/sim/sim_callers.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_stories.h"

namespace kiln::sim {
namespace {

constexpr int kRequests = 220;
constexpr int kHerd = 11;      // requests
constexpr int kHerdEvery = 4;  // seconds
constexpr int kCrowd = 4;      // more than there are workers where a flight comes back
constexpr int kKeys = 12;
constexpr int kSizes = 60;
constexpr size_t kStories = 2;  // of each kind
constexpr int kJobs = 3;
constexpr milliseconds kSweepEvery(500);
constexpr seconds kPatience(400);  // of most callers
constexpr seconds kLongest(500);   // until all are answered, or never will be
constexpr seconds kAfterwards(20);
constexpr int kShaken = 30;  // of a hundred replies
constexpr seconds kShakes(4);
constexpr int kSkewMinutes = 2 * 24 * 60;  // of a machine's wall, either way
constexpr absl::Duration kWallJump = absl::Seconds(1'000'000);

class History {
 public:
  History(uint64_t seed, ClusterFault fault, ClusterCoverage* coverage)
      : cluster_(seed, fault, coverage), callers_(&cluster_) {
    SimStories::Outside outside;
    outside.cut = [this](Host* host) { Cut(host); };
    outside.lose = [this] { FallBack(); };
    outside.leave = [this](const Host& host, FlightId flight) { return callers_.LeaveFlight(host, flight); };
    outside.stalls = [this](const Host& host, FlightId flight) { return callers_.Stalls(host, flight); };
    outside.upload = [this](const Host& host, FlightId flight) { callers_.EndUploads(host, flight); };
    outside.ask = [this](Host* host, const GangName& name, int size) { return AskInGang(host, name, size); };
    outside.crowd = [this](Host* host) {
      for (int i = 0; i < kCrowd; ++i)
        Ask(absl::StrCat("k", cluster_.draw.Below(kKeys)), -1, cluster_.draw.Below(kSizes), host);
    };
    cluster_.stories->Begin(std::move(outside));
  }

  ClusterOutcome Run() {
    Draw& draw = cluster_.draw;
    cluster_.calm = draw.Chance(30);
    const int daemons = 2 + draw.Below(3);
    for (int i = 0; i < daemons; ++i) AddHost(/*forwards=*/false);
    farms_ = cluster_.hosts.size();
    for (int i = draw.Below(3); i > 0; --i) AddHost(/*forwards=*/true);
    for (auto& host : cluster_.hosts) Begin(host.get());
    PlanRequests();
    if (!cluster_.calm) PlanTroubles();
    Sweep();
    cluster_.Run();
    if (cluster_.outcome.violation.empty()) {
      callers_.CheckAtRest();
      for (const auto& host : cluster_.hosts) {
        if (host->daemon != nullptr) host->daemon->CheckAtRest();
      }
    }
    return cluster_.outcome;
  }

 private:
  struct Job {
    int starts = 0;
    MonotonicTime began;
  };

  void AddHost(bool forwards) {
    Draw& draw = cluster_.draw;
    const absl::Duration skew =
        draw.Chance(30) ? absl::Minutes(draw.Below(2 * kSkewMinutes) - kSkewMinutes) : absl::ZeroDuration();
    auto host = std::make_unique<Host>(&cluster_.clock, skew);
    host->forwards = forwards;
    host->number = cluster_.hosts.size();
    cluster_.hosts.push_back(std::move(host));
  }

  void Begin(Host* host) {
    Host* const farm = host->forwards ? cluster_.hosts[host->number % farms_].get() : nullptr;
    host->daemon = std::make_unique<SimDaemon>(&cluster_, host, farm);
  }

  Host* AnyHost(size_t of) {
    return cluster_.hosts[static_cast<size_t>(cluster_.draw.Below(static_cast<int>(of)))].get();
  }
  Host* AnyHost() { return AnyHost(cluster_.hosts.size()); }

  // ---- Requests ----

  void PlanRequests() {
    Draw& draw = cluster_.draw;
    const bool hour = draw.Chance(4);  // half of them come an hour later
    for (int number = 0; number < kRequests; number += kHerd) {
      const seconds begin(number / kHerd * kHerdEvery + (hour && number > kRequests / 2 ? 3700 : 0));
      // Some ask for one key together, as the ranks of a job do.
      const std::string key = absl::StrCat("k", draw.Chance(60) ? draw.Below(3) : draw.Below(kKeys));
      const int job = draw.Chance(50) ? draw.Below(kJobs) : -1;
      const int size = draw.Chance(60) ? 5 + 20 * draw.Below(3) : draw.Below(kSizes);
      const milliseconds within(draw.Chance(50) ? 20 : 3000);
      for (int i = 0; i < std::min(kHerd, kRequests - number); ++i) {
        const bool alone = draw.Chance(30);
        cluster_.At(begin + draw.Upto(within), [this, alone, key, job, size] {
          Ask(alone ? absl::StrCat("k", cluster_.draw.Below(kKeys)) : key, alone ? -1 : job, size, AnyHost());
        });
      }
    }
    for (int i = 0; i < 4; ++i) {
      cluster_.At(draw.Upto(milliseconds(80'000)), [this] {
        Job& job = jobs_[static_cast<size_t>(cluster_.draw.Below(kJobs))];
        ++job.starts;
        job.began = cluster_.clock.now;
      });
    }
    end_ = cluster_.clock.now + seconds(kRequests / kHerd * kHerdEvery + (hour ? 3700 : 0));
  }

  void Ask(const std::string& key, int job, int size, Host* host) {
    Draw& draw = cluster_.draw;
    SimQuestion question;
    question.key = key;
    question.size = draw.Chance(70) ? size : draw.Below(kSizes);
    if (job >= 0) {
      question.gang = GangOf(job);
      question.gang_began = jobs_[static_cast<size_t>(job)].began;
    }
    const int patience = draw.Below(100);
    question.deadline = cluster_.clock.now + (patience < 65   ? microseconds(kPatience)
                                              : patience < 93 ? seconds(5) + draw.Upto(seconds(60))
                                                              : draw.Upto(milliseconds(300)));
    if (job >= 0) asked_ = {key, job, size};
    callers_.Arrive(std::move(question), host);
  }

  // False: it is not any job's now.
  bool AskInGang(Host* host, const GangName& name, int size) {
    for (int job = 0; job < kJobs; ++job) {
      if (GangOf(job) != name.gang) continue;
      SimQuestion question{name.compile_key, size, name.gang, jobs_[static_cast<size_t>(job)].began,
                           cluster_.clock.now + kPatience};
      callers_.Arrive(std::move(question), host);
      return true;
    }
    return false;
  }

  std::string GangOf(int job) const {
    const int starts = cluster_.fault == ClusterFault::kOldGang ? 0 : jobs_[static_cast<size_t>(job)].starts;
    return absl::StrCat("gang", job, ".", starts);
  }

  // ---- Troubles ----

  microseconds Sometime() {
    return cluster_.draw.Upto(std::chrono::duration_cast<milliseconds>(end_ - cluster_.clock.now));
  }

  void PlanTroubles() {
    Draw& draw = cluster_.draw;
    for (auto& host : cluster_.hosts) {
      if (draw.Chance(20)) host->slow = milliseconds(5 + draw.Below(40));
      if (draw.Chance(20)) host->lossy = 1 + draw.Below(10);
      for (int i = draw.Below(3); i > 0; --i) cluster_.At(Sometime(), [this, at = host.get()] { Cut(at); });
    }
    for (int i = draw.Below(4); i > 0; --i) cluster_.At(Sometime(), [this] { Kill(AnyHost()); });
    for (int i = draw.Below(3); i > 0; --i) cluster_.At(Sometime(), [this] { LoseInTier(); });
    for (int i = draw.Below(3); i > 0; --i) cluster_.At(Sometime(), [this] { callers_.CutOff(); });
    cluster_.At(Sometime(),
                [this] { cluster_.clock.wall += cluster_.draw.Chance(50) ? kWallJump : -kWallJump; });
    for (size_t i = 0; i < kStories * SimStories::kKinds; ++i) {
      const auto kind = static_cast<SimStories::Kind>(i % SimStories::kKinds);
      cluster_.At(Sometime(), [this, kind] { cluster_.stories->Plan(kind); });
    }
    if (draw.Chance(15)) {  // all of them at once
      cluster_.At(Sometime(), [this] {
        for (auto& host : cluster_.hosts) Cut(host.get());
      });
    }
  }

  void Cut(Host* host) {
    ++cluster_.outcome.cuts;
    host->cut = true;
    host->trouble = cluster_.clock.now;
    const microseconds takes = cluster_.draw.Chance(50) ? cluster_.draw.Upto(milliseconds(2000))
                                                        : cluster_.draw.Upto(milliseconds(30'000));
    cluster_.At(takes, [this, host] {
      host->cut = false;
      host->trouble = cluster_.clock.now;
    });
  }

  void Kill(Host* host) {
    if (host->daemon == nullptr) return;
    ++cluster_.outcome.kills;
    host->daemon->Kill();
    cluster_.dead.push_back(std::move(host->daemon));
    callers_.Broken(*host);
    cluster_.At(milliseconds(200) + cluster_.draw.Upto(milliseconds(8000)), [this, host] { Begin(host); });
  }

  void LoseInTier() {
    if (cluster_.draw.Chance(20)) Shake();
    if (cluster_.draw.Chance(40)) {
      ++cluster_.outcome.losses;
      cluster_.tier.Become({});
      cluster_.checks->TierLost();
    } else {
      FallBack();
    }
    AskMore();
  }

  // A replica that lags becomes the master.
  void FallBack() {
    ++cluster_.outcome.losses;
    auto lags = std::make_shared<SimTier::Data>(cluster_.tier.data());
    cluster_.At(cluster_.draw.Upto(milliseconds(1500)), [this, lags] {
      cluster_.tier.Become(std::move(*lags));
      cluster_.checks->TierLost();
    });
  }

  // What takes a server takes replies too.
  void Shake() {
    for (auto& host : cluster_.hosts) host->lossy += kShaken;
    cluster_.At(kShakes, [this] {
      for (auto& host : cluster_.hosts) host->lossy -= kShaken;
    });
  }

  // Members who come when the tier has lost what their gang is served.
  void AskMore() {
    if (asked_.job < 0) return;
    const Asked asked = asked_;
    for (int i = 0; i < 10; ++i) {
      cluster_.At(cluster_.draw.Upto(milliseconds(cluster_.draw.Chance(50) ? 1500 : 6000)),
                  [this, asked] { Ask(asked.key, asked.job, asked.size, AnyHost()); });
    }
  }

  // ---- What must hold ----

  void Sweep() {
    for (const auto& host : cluster_.hosts) {
      if (host->daemon != nullptr) host->daemon->Check();
    }
    cluster_.checks->Sweep();
    if (cluster_.clock.now > end_ && over_at_ == MonotonicTime::max() &&
        (callers_.active() == 0 || cluster_.clock.now > end_ + kLongest))
      over_at_ = cluster_.clock.now + kAfterwards;
    cluster_.over = cluster_.clock.now >= over_at_;
    if (!cluster_.over) cluster_.At(kSweepEvery, [this] { Sweep(); });
  }

  Cluster cluster_;
  SimCallers callers_;
  size_t farms_ = 0;  // hosts with the tier, which come first
  std::vector<Job> jobs_{kJobs};
  struct Asked {
    std::string key;
    int job = -1;
    int size = 0;
  };
  Asked asked_;  // lately, by a gang's member
  MonotonicTime end_;
  MonotonicTime over_at_ = MonotonicTime::max();
};

}  // namespace

ClusterCoverage::ClusterCoverage()
    : flights("flight", {"none", "looking", "uploading", "queued", "running", "waiting", "storing", "dying"},
              {{"compile", "xxxxxxx."},
               {"uploaded", "xxxxxxx."},
               {"upload-failed", "xxxxxxx."},
               {"cancel", "xxxxxxx."},
               {"here", "xx......"},
               {"everywhere", "xx......"},
               {"elsewhere", "xx......"},
               {"ended", "....x..x"},
               {"made", "....x..x"},
               {"refused", "....x..x"},
               {"came-back", "....x..x"},
               {"stored", "......x."},
               {"not-stored", "......x."},
               {"tick", "xxxxxxx."},
               {"killed", "xxxxxxx."}}),
      tier_flights("tier flight", {"none", "looking", "claiming", "checking", "going on"},
                   {{"look-further", "x...x"},
                    {"nothing", "xx.x."},
                    {"away", "xx.x."},
                    {"taken", "xx.x."},
                    {"taken-in-part", "xx.x."},
                    {"ours", "x.x.."},
                    {"nobody's", "x.x.."},
                    {"made", "....x"},
                    {"over", "xxxxx"}}),
      claims("claim", {"free", "own", "another's"},
             {{"acquire", "x.x"},
              {"acquire, untold", "x.x"},
              {"acquire, cut", "x.x"},
              {"renew", "xxx"},
              {"renew, untold", "xxx"},
              {"renew, cut", "xxx"},
              {"release", "xxx"},
              {"release, untold", "xxx"},
              {"release, cut", "xxx"}}),
      verdicts("verdict", {"nothing", "the same", "less", "more", "another"},
               {{"read", "xxxxx"},
                {"add", "xxxxx"},
                {"see", "xxxxx"},
                {"put back", "xxxxx"},
                {"keep", "xxxxx"},
                {"untold", "xxxxx"},
                {"cut", "xxxxx"}}),
      gangs("gang's answer", {"at once", "from the tier", "cut"},
            {{"open", ".xx"}, {"variant", "xxx"}, {"refused", "xxx"}, {"unknown", "xxx"}}),
      forwards("forward", {"none", "packing", "calling", "waiting", "taking", "ending"},
               {{"forward", "x....."},
                {"packed", ".x...."},
                {"program", "..xxxx"},
                {"verdict", "..xxxx"},
                {"full", "..xxxx"},
                {"late", "..xxxx"},
                {"broken", "..xxxx"},
                {"cancelled", "....xx"},  // by the table alone, which has left the others then (End)
                {"waited", "...xxx"},
                {"due", "..xxxx"},
                {"taken", "....x."},
                {"not-taken", "....x."},
                {"stop", ".xxxxx"}}) {}

const char* ClusterFaultName(ClusterFault fault) {
  static constexpr const char* kNames[] = {
      "none",          "ignored claim", "not renewed",   "not released",   "forgotten claim",
      "no compare",    "own list",      "local refusal", "short verdict",  "not put back",
      "seen early",    "not kept",      "old gang",      "lost waiter",    "early release",
      "second answer", "false durable", "cancels all",   "forwards twice", "forgotten forward",
      "own program"};
  return kNames[static_cast<int>(fault)];
}

ClusterOutcome SimulateCluster(uint64_t seed, ClusterFault fault, ClusterCoverage* coverage) {
  return History(seed, fault, coverage).Run();
}

}  // namespace kiln::sim
