// All the work of a daemon in one queue: plans and emits, which workers do, tuning, which needs a GPU, and
// compiles that another daemon does, which need neither. Who is next is fair by seconds to tenants and their
// jobs (fair_queue.h), for each of the three apart; what waits holds nothing.
//
// Urgent tasks go first: a leased GPU idles for them. They are charged all the same, and so is what was
// stopped. Estimates are what tasks of a kind took its tenant lately, by class; each is set right by what it
// did take. A class orders what waits of one tenant; no other tenant's share depends on it.
//
// No threads, no clock: whoever owns it locks it. Limits: who pushes bounds what waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "server/schedule/fair_queue.h"
#include "server/schedule/recent_means.h"

namespace kiln {

class TaskQueue {
 public:
  using TaskId = FairQueue::TaskId;  // chosen by the queue, never twice
  enum class Kind { kPlan, kEmit, kTune, kForward };
  struct Task {
    Kind kind = Kind::kPlan;
    Caller caller;
    uint64_t program = 0;  // of the caller's job; the lower came first
    bool urgent = false;
    double brings = 0;    // seconds of those that are to follow
    bool begins = false;  // the first of its program
  };
  struct Options {
    size_t workers = 1;
    size_t gpus = 0;
    size_t forwards = 0;  // at other daemons at a time
    // What a task takes, before any has shown it: little, so that nobody is refused for it.
    double plan_seconds = 0.05;
    double emit_seconds = 0.05;
    double tune_seconds = 0.05;
  };

  explicit TaskQueue(const Options& options);

  TaskId Push(Task task);
  // False where it does not wait.
  bool Remove(TaskId id);
  // One that waits is interactive from now on; nothing where it does not wait.
  void MakeInteractive(TaskId id);
  // One that can run now, and does until `Ended`. No program begins where it may not.
  std::optional<TaskId> Take(bool may_begin = true);
  // `seconds` of a worker or a GPU are its caller's. `typical`: others will take as long.
  void Ended(TaskId id, double seconds, bool typical);

  bool Runs(TaskId id) const { return running_.contains(id); }
  // Until workers have done `seconds` of the caller's, at least: of what comes now, after what waits of its
  // job, or of what is next in it.
  double SecondsOfNew(const Caller& caller, double seconds) const;
  double SecondsOfNext(const Caller& caller, double seconds) const;
  // What a task of the kind took lately that was the caller's tenant's, in its class.
  double Typical(Kind kind, const Caller& caller) const {
    return seconds_[static_cast<size_t>(kind)].Of(caller);
  }
  size_t waiting_for_workers() const { return workers_.waiting(); }
  size_t waiting_for_gpus() const { return gpus_.waiting(); }
  size_t workers_busy() const { return workers_.busy; }
  size_t gpus_busy() const { return gpus_.busy; }

 private:
  struct Servers {
    size_t count = 0;
    size_t busy = 0;
    FairQueue queue;
    std::deque<TaskId> urgent;
    size_t waiting() const { return queue.size() + urgent.size(); }
  };
  struct Known {
    Task task;
    double charged = 0;  // when it is taken
  };
  Servers& ServersOf(Kind kind) {
    return kind == Kind::kTune ? gpus_ : kind == Kind::kForward ? forwards_ : workers_;
  }
  void PushFair(TaskId id, const Task& task, double charged);
  std::optional<TaskId> TakeFor(Servers& servers, bool may_begin);

  RecentMeans seconds_[4];  // by kind
  Servers workers_;
  Servers gpus_;
  Servers forwards_;
  absl::flat_hash_map<TaskId, Known> waiting_;
  absl::flat_hash_map<TaskId, Known> running_;
  TaskId last_ = 0;
};

}  // namespace kiln
