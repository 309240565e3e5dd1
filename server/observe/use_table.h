// Who had what of the daemon since it started: sums by tenant and job.
//
// Names are what clients say, so both are bounded. One job more than `jobs_max`: of the tenant with most jobs
// the least recently used goes, into a sum of that tenant's. One tenant more than `tenants_max`: the least
// recently used goes, into a sum of all such. A total never shrinks, and no sum overflows: it stays at the
// largest number.
//
// Thread-safe; one lock, held for a look-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/server_limits.h"

namespace kiln {

struct Use {
  uint64_t hits = 0;
  uint64_t compiles = 0;
  uint64_t executed = 0;  // calls of programs, as clients tell
  uint64_t saved_ms = 0;  // what workers took for the programs of the hits
  uint64_t spent_us = 0;  // of workers and GPUs, for the compiles

  void Add(const Use& more);
};

class UseTable {
 public:
  explicit UseTable(size_t jobs_max = kUseJobsMax, size_t tenants_max = kUseTenantsMax)
      : jobs_max_(jobs_max), tenants_max_(tenants_max) {}

  void Count(absl::string_view tenant, absl::string_view job, const Use& more) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of workers and GPUs.
  void CountSeconds(absl::string_view tenant, absl::string_view job, double seconds)
      ABSL_LOCKS_EXCLUDED(mutex_);

  struct Row {
    std::string tenant;
    std::string job;
    bool several = false;  // the sum of a tenant's jobs that went; without a tenant: of tenants that went
    Use use;
  };
  // By tenant, then job; sums after what they stand beside.
  std::vector<Row> Rows() const ABSL_LOCKS_EXCLUDED(mutex_);
  // A sum a tenant; those that went are under "".
  std::map<std::string, Use> ByTenant() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Job {
    std::string name;
    Use use;
  };
  struct Tenant {
    std::list<Job> by_use;  // the latest first
    absl::flat_hash_map<std::string, std::list<Job>::iterator> jobs;
    bool forgot = false;
    Use forgotten;
    uint64_t used = 0;  // when, in calls of Count
  };
  using Tenants = std::map<std::string, Tenant, std::less<>>;

  Tenant& TenantOf(absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetATenant() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetAJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t jobs_max_;
  const size_t tenants_max_;
  mutable absl::Mutex mutex_;
  Tenants tenants_ ABSL_GUARDED_BY(mutex_);
  size_t jobs_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool forgot_ ABSL_GUARDED_BY(mutex_) = false;  // a tenant
  Use forgotten_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
