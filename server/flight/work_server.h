// Measures for the daemons of a shared tier that lack the device: tells which GPUs are here, takes items of
// the tier's work list while nobody here wants a GPU, measures each as what a program of this daemon would
// have measured, and publishes its record (tuning_records.h).
//
// One item at a time, in its turn among all work: in the background, charged to its tenant, who gets no more
// where its quota of the hour is used up. An item whose measurement fails is said to have been tried; one
// that kTierWorkTriesMax daemons died over, too. What is told to end before its time is given back.
//
// Threads: one of its own, which waits. Limits: one item; a lease of the GPU for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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
#include "kiln/v1/admin.pb.h"
#include "server/flight/coordinator.h"
#include "server/pool/measuring_pool.h"
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
  // False where there was nothing to do.
  bool ServeOne();
  void Serve(const Device& device, const WorkList::Claimed& claimed);
  // In its turn. OK when the record is in the tier; CANCELLED when another is to do it.
  absl::Status Measure(const Device& device, const WorkList::Claimed& claimed);
  absl::Status MeasureNow(const std::string& ns, const WorkList::Work& work);
  Tuner::Job JobFor(const std::string& ns, const WorkList::Work& work);
  WorkerResult AskWorker(const std::string& ns, v1::Frame frame);
  bool Closing() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Pause(absl::Duration pause) ABSL_LOCKS_EXCLUDED(mutex_);

  const Outside outside_;
  std::atomic<uint64_t> measured_{0};
  std::atomic<uint64_t> failed_{0};
  std::atomic<uint64_t> refused_{0};
  std::vector<Device> devices_;  // its thread's
  size_t next_ = 0;              // whose turn it is; likewise
  mutable absl::Mutex mutex_;
  MonotonicCondVar changed_;
  std::vector<std::string> serves_ ABSL_GUARDED_BY(mutex_);  // kinds
  std::string message_ ABSL_GUARDED_BY(mutex_);              // why not
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kiln
