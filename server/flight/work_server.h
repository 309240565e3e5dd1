// Measures for the daemons of a shared tier that lack the device: tells which GPUs are here, takes items of
// the tier's work list while nobody here wants a GPU, measures each as what a program of this daemon would
// have measured, and publishes its record (tuning_records.h).
//
// One item at a time, in its turn among all work: in the background, charged to its tenant, who gets no more
// where its quota of the hour is used up. What is measured is emitted before, so that a lease of the GPU
// waits for no worker. An item whose measurement fails is said to have been tried; one that kTierWorkTriesMax
// daemons ended over, too. An item that does not get its turn, is stopped early, or whose record the tier
// does not take is released; one during which the GPU failed is left to expire, as if this daemon had died.
//
// Threads: one of its own, which waits. Limits: one item; kWorkTurnSecondsMax for its next turn at a worker,
// and for that at the GPU; a lease of the GPU for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/monotonic_time.h"
#include "kiln/v1/admin.pb.h"
#include "server/flight/coordinator.h"
#include "server/pool/measuring_pool.h"
#include "server/pool/worker_pool.h"
#include "server/tune/tuner.h"
#include "server/tune/tuning_records.h"
#include "server/tune/work_list.h"

namespace kiln {

class WorkServer {
 public:
  // All outlive the server.
  struct Outside {
    std::vector<std::string> namespaces;  // for whom it measures
    absl::Duration emit_limit;            // of a worker for a kernel
    WorkList* list;
    MeasuringPool* gpus;
    Tuner* tuner;
    TuningRecords* records;
    Coordinator* coordinator;
  };
  // UNAVAILABLE where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<WorkServer>> Create(Outside outside);
  ~WorkServer() { Stop(); }
  // What is being measured ends early; nothing more is. While the coordinator is there.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  void AddTo(v1::TierWorkStatus* status) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Device {
    std::string ns;
    v1::GpuFacts facts;
  };
  explicit WorkServer(Outside outside) : outside_(std::move(outside)) {}
  void Run();
  // Says which devices are here; from then on their lists are served.
  absl::Status Tell() ABSL_LOCKS_EXCLUDED(mutex_);
  // What was claimed, and what has been made for it by workers.
  struct Item {
    const Device& device;
    const WorkList::Claimed& claimed;
    std::vector<v1::NativeKernel> natives;  // of a gemm
    std::vector<std::string> images;        // of a kernel, by its schedules
  };
  // How long to wait before the next one.
  absl::Duration ServeOne();
  // False where it has not come to an end here.
  bool Serve(const Device& device, const WorkList::Claimed& claimed);
  // In its turn. OK when the record is in the tier; CANCELLED when another is to do it.
  absl::Status Measure(Item* item);
  absl::Status Emit(Item* item);
  absl::Status MeasureEmitted(const Item& item);
  Tuner::Job JobFor(const Item& item);
  std::vector<WorkerResult> AskWorkers(const Item& item, std::vector<v1::Frame> frames);
  // Waits for one of the tasks of these numbers and keeps the claim. They are withdrawn when they have not
  // got their turn by `until`.
  template <typename T>
  T Await(const Item& item, std::future<T> answer, const std::vector<uint64_t>& numbers, MonotonicTime until);
  bool Closing() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Pause(absl::Duration pause) ABSL_LOCKS_EXCLUDED(mutex_);

  const Outside outside_;
  std::atomic<uint64_t> measured_{0};
  std::atomic<uint64_t> failed_{0};
  std::atomic<uint64_t> refused_{0};
  std::vector<Device> devices_;  // its thread's
  size_t next_ = 0;              // whose turn it is; likewise
  MonotonicTime tell_;           // when the devices are told again; likewise
  mutable absl::Mutex mutex_;
  MonotonicCondVar changed_;
  std::vector<std::string> serves_ ABSL_GUARDED_BY(mutex_);  // kinds
  std::string message_ ABSL_GUARDED_BY(mutex_);              // why not
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kiln
