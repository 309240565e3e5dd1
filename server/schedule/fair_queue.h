// What waits for a worker or a GPU, in the order in which it is fair to serve it: start-time fair queueing
// over tenants, and within a tenant over its jobs. Nobody's backlog delays another by more than what is being
// served, and who was idle has no credit from it.
//
//   tenant (fair by seconds) → interactive before background → job (fair by seconds) → the first program
//   first
//
// A job's first program finishes first: its tasks are ordered by program, and a program's later step (an
// emit) goes before its earlier one (another plan). What is charged when a task is taken is an estimate;
// `Correct` sets it right when the seconds are known.
//
// No threads, no clock: whoever owns it locks it. Limits: who pushes bounds what waits; a tenant or job is
// remembered while it waits or is being served. Beyond that, while others have not yet caught up with what it
// was served, the kFairQueueIdleMax tenants and jobs of a class that are furthest ahead are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"

namespace kiln {

// For whom work is done. From one seam: the transport knows the tenant, the request its job and class.
struct Caller {
  enum class Class { kInteractive, kBackground };
  std::string tenant;
  std::string job;
  Class work_class = Class::kInteractive;
  // By another daemon, which keeps what it is told as the tenant's own.
  bool forwarded = false;
};

class FairQueue {
 public:
  using TaskId = uint64_t;  // chosen by who pushes, unique among what waits
  static constexpr double kSecondsMin = 1e-3;
  struct Task {
    TaskId id = 0;
    Caller caller;
    uint64_t program = 0;  // the lower came first
    int step = 0;          // of the program; the higher goes first
    double seconds = 0;    // estimated, kSecondsMin at least
    double brings = 0;     // seconds of the tasks that are to follow it, which nobody is charged for yet
    bool begins = false;   // the first of its program
  };

  void Push(Task task);
  // False where it does not wait.
  bool Remove(TaskId id);
  // The next one; it waits no more, and its estimate is charged. Nothing new begins where it may not.
  std::optional<TaskId> Pop(bool may_begin = true);
  // Once for each that was taken, when it has ended: what it took beyond its estimate, or less.
  void Correct(const Caller& caller, double seconds);
  // What it was served without having waited.
  void Charge(const Caller& caller, double seconds);

  // What waits of the caller's job, and what that brings.
  double SecondsOf(const Caller& caller) const;
  // What is served until the caller's job has had `seconds` more, at least: these, and of what waits of
  // another tenant or job no more than of its own. Seconds of one server.
  double SecondsToServe(const Caller& caller, double seconds) const;

  size_t size() const { return tasks_.size(); }
  bool empty() const { return tasks_.empty(); }
  size_t remembered() const;  // tenants, and jobs of each

 private:
  // The share of a tenant, or of a job in it: when its next task would start, in seconds of service.
  struct Share {
    double finish = 0;   // of what it was served last
    size_t running = 0;  // taken, and not corrected yet
  };
  using Order = std::tuple<uint64_t, int, TaskId>;  // program, the later step first
  struct Job {
    Share share;
    absl::btree_map<Order, TaskId> waiting;
    double seconds = 0;  // of what waits, and of what that brings
    size_t begins = 0;   // of what waits
    size_t ready(bool may_begin) const { return waiting.size() - (may_begin ? 0 : begins); }
  };
  struct Jobs {  // of one class
    std::map<std::string, Job> jobs;
    double now = 0;  // the start of what was served last
    size_t waiting = 0;
    size_t begins = 0;  // of these
    size_t ready(bool may_begin) const { return waiting - (may_begin ? 0 : begins); }
    double seconds() const;
  };
  struct Tenant {
    Share share;
    Jobs classes[2];
    size_t waiting() const { return classes[0].waiting + classes[1].waiting; }
    size_t ready(bool may_begin) const { return classes[0].ready(may_begin) + classes[1].ready(may_begin); }
    double seconds() const { return classes[0].seconds() + classes[1].seconds(); }
  };

  static Order OrderOf(const Task& task) { return {task.program, -task.step, task.id}; }
  Jobs& JobsOf(Tenant& tenant, const Caller& caller) {
    return tenant.classes[static_cast<int>(caller.work_class)];
  }

  absl::flat_hash_map<TaskId, Task> tasks_;
  std::map<std::string, Tenant> tenants_;
  double now_ = 0;  // the start of what was served last
};

}  // namespace kiln
