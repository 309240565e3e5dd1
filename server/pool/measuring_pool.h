// The GPUs that max-autotune measures on. Whoever measures holds a lease: a GPU of its own, with a kiln-tuner
// process on it, until the lease ends. The clock starts when the lease is granted. A process that hangs, ends
// or answers nonsense is killed and replaced, which costs its lease nothing but time; a GPU that can't be
// opened three times in a row (at once where there is no driver) is drained.
//
// A process runs the kernels of one tenant in its life: what they have made of it must not reach another's. A
// lease of another tenant's ends it and has a new one.
//
// Other processes may use the GPU meanwhile: the lease is one among this daemon's. Processes start with the
// first lease and end when they have been idle for a while (`EndIdle`), so that they hold no GPU memory.
//
// Thread-safe; a Lease is its owner's thread's. The pool outlives its leases.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/tuning.pb.h"
#include "kiln/v1/worker.pb.h"
#include "server/pool/worker_process.h"
#include "server/pool/zygote.h"

namespace kiln {

// 90 of "sm_90" and "sm_90a"; 0 where there is none.
uint32_t ArchitectureOf(const v1::Target& target);

class MeasuringPool {
 private:
  struct Gpu;

 public:
  struct Options {
    uint32_t gpus = 0;
    absl::Duration call_limit;   // of one request; the process is killed at its end
    absl::Duration lease_limit;  // from the grant
    absl::Duration idle_limit = absl::Seconds(10);
  };
  using Abandoned = std::function<bool()>;

  class Lease {
   public:
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    const v1::GpuFacts& facts() const { return facts_; }
    // Changes when the process was replaced, which knows nothing of earlier calls.
    uint64_t process() const;
    // Whether the time of one lease has passed.
    bool over() const { return MonotonicNow() >= deadline_; }
    // The process' own refusal with its code; DEADLINE_EXCEEDED for one that hung and UNAVAILABLE for one
    // that ended, both killed; RESOURCE_EXHAUSTED when the lease is over, CANCELLED when nobody waits any
    // more.
    absl::StatusOr<v1::Frame> Call(v1::Frame request);

   private:
    friend class MeasuringPool;
    // Without a tenant the GPU is opened, and no kernel runs.
    Lease(MeasuringPool* pool, Gpu* gpu, std::optional<std::string> tenant, Abandoned abandoned);
    absl::Status EnsureProcess();
    // Of an earlier lease, and of nobody else's.
    bool MayTakeProcess() const;
    absl::StatusOr<v1::Frame> Exchange(v1::Frame request);

    MeasuringPool* const pool_;
    Gpu* const gpu_;
    const std::optional<std::string> tenant_;
    const Abandoned abandoned_;
    const MonotonicTime deadline_;
    v1::GpuFacts facts_;
  };

  // `zygote` starts kiln-tuner, and outlives the pool.
  MeasuringPool(const Options& options, Zygote* zygote);
  ~MeasuringPool();

  // Of a GPU that runs code for `target`. At once: UNAVAILABLE where none has been opened yet, UNIMPLEMENTED
  // where there is none.
  absl::StatusOr<v1::GpuFacts> KnownFacts(const v1::Target& target) const;

  // Waits its turn. UNIMPLEMENTED when there is no such GPU, CANCELLED when `abandoned`.
  absl::StatusOr<std::unique_ptr<Lease>> Acquire(const std::string& tenant, const v1::Target& target,
                                                 const Abandoned& abandoned);

  // Opens those that have not been, as far as nobody has them, and says what there is, each kind once.
  // Blocks.
  std::vector<v1::GpuFacts> Kinds(const Abandoned& abandoned);

  void EndIdle();
  std::vector<v1::MeasuringGpu> gpus() const;

 private:
  struct Gpu {
    uint32_t ordinal = 0;
    // Its leaseholder's, or EndIdle's while nobody has a lease.
    std::unique_ptr<WorkerProcess> process;
    std::optional<std::string> tenant;  // whose kernels it has run; nobody's yet
    uint64_t processes = 0;             // started so far
    uint32_t failures = 0;              // to open it, in a row
    // Guarded by the pool's mutex.
    bool leased = false;
    uint64_t leases = 0;
    MonotonicTime released;
    v1::GpuFacts facts;  // empty until it was opened
    std::string drained;
  };
  bool Serves(const Gpu& gpu, uint32_t architecture) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status NoneServes(uint32_t architecture) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // A GPU that may serve, now leased, the one with the tenant's process first; nullptr when all such are
  // leased to others.
  absl::StatusOr<Gpu*> Take(const std::string& tenant, uint32_t architecture) ABSL_LOCKS_EXCLUDED(mutex_);
  Gpu* TakeUnopened() ABSL_LOCKS_EXCLUDED(mutex_);  // nullptr: none
  void Release(Gpu* gpu) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Open(Lease& lease) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  Zygote* const zygote_;
  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Gpu>> gpus_;  // const after construction; the parts as above
};

}  // namespace kiln
