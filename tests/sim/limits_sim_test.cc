// A whole FlightTable under more load than it has workers for: what it takes it does in time, and no tenant
// begins anything beyond its quota of the hour. The controls: a table that is told that nothing takes any
// time, and one without quotas. Arrivals and what they take are drawn from a seed; time is simulated.
//   KILN_SEED=N   that history alone
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/flight/flight_table.h"
#include "server/flight/refusals.h"
#include "tests/sim/sim_clock.h"

namespace kiln::sim {
namespace {

using std::chrono::microseconds;

constexpr uint64_t kSeeds = 200;
constexpr uint64_t kSeedsFull = 1'000;
constexpr int kTenants = 3;
constexpr int kEmitsMax = 4;
constexpr double kHour = 3600;

struct Load {
  double seconds = 0;           // of arrivals
  double pause = 0;             // between two of a tenant's, on average
  double task_seconds = 0;      // at most; a third at least
  double deadline_seconds = 0;  // at most; half at least; 0: none
  size_t workers = 2;
  double quota = 0;            // of the first tenant; 0: none
  bool tells_nothing = false;  // planted: of what tasks take
};

struct Result {
  size_t in_time = 0;
  size_t late = 0;           // admitted, without an answer at the deadline
  size_t refused = 0;        // at once
  size_t refused_later = 0;  // when their turn came
  size_t over_quota = 0;     // refused for the quota
  double useful = 0;         // seconds of those in time
  double end = 0;            // when the last one had ended
  double hour_max = 0;       // that the first tenant took in any hour
  double taken[kTenants] = {};
  std::string violation;
};

class World final : public Workers, public FlightStore {
 public:
  World(uint64_t seed, const Load& load) : draw_(seed), load_(load) {
    FlightTable::Options options;
    options.tasks.workers = load.workers;
    options.queue_max = 64;
    if (load.quota > 0) options.quotas["tenant0"] = load.quota;
    options.new_job_id = [this] { return absl::StrCat(last_call_); };
    table_ = std::make_unique<FlightTable>(options, &clock_, this, this);
  }

  Result Run() {
    for (int tenant = 0; tenant < kTenants; ++tenant) {
      for (double time = 0; time < load_.seconds; time += Between(0, 2 * load_.pause))
        At(time, [this, tenant] { Ask(tenant); });
    }
    const MonotonicTime begin = clock_.now;
    while (!agenda_.empty() && result_.violation.empty()) {
      auto next = agenda_.extract(agenda_.begin());
      clock_.now = next.key().first;
      next.mapped()();
      SetTimer();
    }
    result_.end = SecondsBetween(begin, clock_.now);
    if (table_->flights() > 0) Fail("something is left when all is over");
    return result_;
  }

  void Look(FlightId flight, const FlightRequest&) override {
    At(0, [this, flight] { table_->Looked(flight, std::make_shared<KnownKey>()); });
  }
  void Start(TaskId id, FlightId flight, FlightRequestPtr request, const FlightTask& task) override {
    const int tenant = std::stoi(request->compile_key);
    if (task.number == 0) {
      left_[flight] = 1 + static_cast<int>(draw_() % kEmitsMax);
      if (tenant == 0 && load_.quota > 0 && LastHour() >= load_.quota)
        Fail("something begins for a tenant that has used its quota");
    }
    const double seconds = Between(load_.task_seconds / 3, load_.task_seconds);
    At(seconds, [this, id, flight, tenant, seconds, number = task.number] {
      seconds_[flight] += seconds;
      Took(tenant, seconds);
      table_->Ended(id, load_.tells_nothing ? 0 : seconds, /*typical=*/true);
      table_->Advanced(flight, NextOf(flight, number));
    });
  }
  void Stop(FlightId) override {}
  void Write(FlightId flight, std::shared_ptr<const Artifact>) override {
    At(0, [this, flight] { table_->Stored(flight, absl::OkStatus()); });
  }

 private:
  struct Waiter final : public Subscriber {
    World* world = nullptr;
    CallId id = 0;
    FlightId flight = 0;
    bool queued = false;
    bool done = false;
    void Event(const FlightEventPtr& event) override {
      queued = queued || event->message().has_queued();
      if (queued) flight = world->table_->FlightOfCall(id);
      done = done || event->message().has_done();
    }
    void Graph(Upload wanted) override {
      if (wanted == Upload::kNow) world->Upload(id);
    }
    void End(const absl::Status& status) override { world->Ended(*this, status); }
  };

  void Upload(CallId id) {
    At(0, [this, id] { table_->Uploaded(id, std::make_shared<const std::string>("graph")); });
  }

  FlightNext NextOf(FlightId flight, uint64_t number) {
    FlightNext next;
    if (number == 0) {
      for (int k = 1; k <= left_[flight]; ++k)
        next.tasks.push_back({TaskQueue::Kind::kEmit, static_cast<uint64_t>(k), false});
    } else if (--left_[flight] == 0) {
      next.outcome = std::make_shared<const Artifact>();
    }
    return next;
  }

  void Ask(int tenant) {
    auto caller = std::make_shared<Waiter>();
    caller->world = this;
    caller->id = ++last_call_;
    FlightRequest request;
    request.compile_key = absl::StrCat(tenant, " ", caller->id);
    request.caller.tenant = absl::StrCat("tenant", tenant);
    request.caller.job = absl::StrCat("job", caller->id % 2);
    request.bytes.all = 1000;
    FlightCall call;
    call.subscriber = caller;
    if (load_.deadline_seconds > 0) {
      const double wait = Between(load_.deadline_seconds / 2, load_.deadline_seconds);
      call.deadline = clock_.now + microseconds(static_cast<int64_t>(wait * 1e6));
    }
    table_->Compile(caller->id, std::move(request), std::move(call));
  }

  void Ended(const Waiter& caller, const absl::Status& status) {
    if (status.ok() && caller.done) {
      ++result_.in_time;
      result_.useful += seconds_[caller.flight];
    } else if (absl::IsDeadlineExceeded(status)) {
      ++result_.late;
    } else if (!absl::IsResourceExhausted(status)) {
      Fail(absl::StrCat("a caller ends with ", status.ToString()));
    } else if (!PushbackOf(status).has_value()) {
      Fail("a refusal does not say when to come again");
    } else if (absl::StrContains(status.message(), "compile_seconds_per_hour")) {
      ++result_.over_quota;
    } else {
      ++(caller.queued ? result_.refused_later : result_.refused);
    }
  }

  void Took(int tenant, double seconds) {
    result_.taken[tenant] += seconds;
    if (tenant != 0) return;
    lately_.push_back({clock_.now, seconds});
    result_.hour_max = std::max(result_.hour_max, LastHour());
  }
  double LastHour() {
    while (!lately_.empty() && SecondsBetween(lately_.front().first, clock_.now) >= kHour)
      lately_.pop_front();
    double sum = 0;
    for (const auto& [time, seconds] : lately_) sum += seconds;
    return sum;
  }

  void SetTimer() {
    const std::optional<MonotonicTime> next = table_->NextTick();
    if (!next.has_value() || *next >= timer_) return;
    timer_ = *next;
    At(std::max(0.0, SecondsBetween(clock_.now, *next)) + 1e-6, [this] {
      timer_ = MonotonicTime::max();
      table_->Tick();
    });
  }
  void At(double seconds, std::function<void()> what) {
    const auto later = microseconds(static_cast<int64_t>(seconds * 1e6));
    agenda_.emplace(std::pair{clock_.now + later, ++scheduled_}, std::move(what));
  }
  double Between(double least, double most) {
    return least + (most - least) * static_cast<double>(draw_() % 10'000) / 10'000;
  }
  void Fail(std::string what) {
    if (result_.violation.empty()) result_.violation = std::move(what);
  }

  std::mt19937_64 draw_;
  const Load load_;
  SimClock clock_;
  Result result_;
  std::unique_ptr<FlightTable> table_;
  std::map<std::pair<MonotonicTime, uint64_t>, std::function<void()>> agenda_;
  uint64_t scheduled_ = 0;
  MonotonicTime timer_ = MonotonicTime::max();
  CallId last_call_ = 0;
  std::map<FlightId, int> left_;                         // emits
  std::map<FlightId, double> seconds_;                   // of its tasks that have ended
  std::deque<std::pair<MonotonicTime, double>> lately_;  // what the first tenant took
};

// From which seed to which.
std::pair<uint64_t, uint64_t> Seeds() {
  if (const char* seed = std::getenv("KILN_SEED"); seed != nullptr) {
    const uint64_t one = std::strtoull(seed, nullptr, 10);
    return {one, one};
  }
  return {1, std::getenv("KILN_FULL") != nullptr ? kSeedsFull : kSeeds};
}

// Ten times as much as two workers can do: tasks take 0.1 s on average, and a compile has 3.5.
Load Overload() {
  Load load;
  load.seconds = 60;
  load.pause = 0.0525;
  load.task_seconds = 0.15;
  load.deadline_seconds = 4;
  return load;
}

double LatePart(const Result& result) {
  return static_cast<double>(result.late) /
         static_cast<double>(std::max<size_t>(1, result.late + result.in_time));
}

TEST(LimitsSim, WhatIsTakenIsDoneInTimeAndTheWorkersAreBusyWithIt) {
  double worst = 0, least = 1;
  size_t later = 0;
  for (auto [seed, last] = Seeds(); seed <= last; ++seed) {
    const Load load = Overload();
    const Result result = World(seed, load).Run();
    ASSERT_EQ(result.violation, "") << "seed " << seed;
    worst = std::max(worst, LatePart(result));
    least = std::min(least, result.useful / result.end / static_cast<double>(load.workers));
    later += result.refused_later;
  }
  std::printf(
      "at worst %.3f of those taken are late; of the workers %.3f does what is in time; %zu refused later\n",
      worst, least, later);
  EXPECT_LT(worst, 0.15);
  EXPECT_GT(least, 0.8);
}

TEST(LimitsSim, WhoIsToldThatNothingTakesTimeIsLate) {
  Load load = Overload();
  load.tells_nothing = true;
  const Result result = World(1, load).Run();
  std::printf("%.3f of those taken are late\n", LatePart(result));
  EXPECT_EQ(result.violation, "");
  EXPECT_GT(LatePart(result), 0.2);
}

// Three hours, in which each tenant asks for some 1,200 seconds an hour.
Load ThreeHours() {
  Load load;
  load.seconds = 3 * kHour;
  load.pause = 21;
  load.task_seconds = 3;
  return load;
}

TEST(LimitsSim, NothingBeginsBeyondATenantsQuota) {
  for (auto [seed, last] = Seeds(); seed <= last; ++seed) {
    Load load = ThreeHours();
    load.quota = 300;
    const Result result = World(seed, load).Run();
    ASSERT_EQ(result.violation, "") << "seed " << seed;
    EXPECT_GT(result.over_quota, 0u);
    // No more than had begun: a compile on each worker.
    EXPECT_LE(result.hour_max,
              load.quota + static_cast<double>(load.workers) * load.task_seconds * (1 + kEmitsMax));
    EXPECT_GT(result.taken[0], 2.8 * load.quota) << "there is a quota each hour";
    EXPECT_GT(result.taken[1], 9 * load.quota) << "others have none";
    EXPECT_EQ(result.late + result.refused + result.refused_later, 0u);
  }
}

TEST(LimitsSim, WithoutAQuotaATenantTakesWhatItAsksFor) {
  const Result result = World(1, ThreeHours()).Run();
  EXPECT_EQ(result.violation, "");
  EXPECT_EQ(result.over_quota, 0u);
  EXPECT_GT(result.hour_max, 900);
}

}  // namespace
}  // namespace kiln::sim
