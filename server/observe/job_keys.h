// Which CompileKeys each job has asked for since the daemon started: what `kilnctl export JOB` takes along. A
// hit counts as well as a compile.
//
// Names are what clients say, so all is bounded: of a job the first `job_keys` keys are known, and that there
// were more; of more than `jobs` jobs or `keys` keys in all, the tenant with most keys loses the job that it
// has not used for longest. Of a job that comes back after that it is known that there were more, by a hash
// of its name; of more than `forgotten` such jobs, of every new one.
//
// Thread-safe; one lock, held for a look-up: a key that is known costs no memory.
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
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace kiln {

class JobKeys {
 public:
  struct Limits {
    size_t job_keys = 4096;
    size_t jobs = 1000;
    size_t keys = 65'536;
    size_t forgotten = 65'536;
  };
  JobKeys() = default;
  explicit JobKeys(Limits limits) : limits_(limits) {}

  void Add(absl::string_view tenant, absl::string_view job, absl::string_view compile_key)
      ABSL_LOCKS_EXCLUDED(mutex_);

  struct Row {
    std::string tenant;
    std::vector<std::string> keys;  // in their order
    bool more = false;              // than are known
  };
  // Of every tenant that has a job of this name, by tenant.
  std::vector<Row> Find(absl::string_view job) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Job {
    std::string name;
    absl::flat_hash_set<std::string> keys;
    bool more = false;
  };
  struct Tenant {
    std::list<Job> by_use;  // the latest first
    absl::flat_hash_map<std::string, std::list<Job>::iterator> jobs;
    size_t keys = 0;
  };
  using Tenants = std::map<std::string, Tenant, std::less<>>;
  bool WasForgotten(absl::string_view tenant, absl::string_view job) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void ForgetAJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  mutable absl::Mutex mutex_;
  Tenants tenants_ ABSL_GUARDED_BY(mutex_);
  size_t jobs_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t keys_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_set<size_t> forgotten_ ABSL_GUARDED_BY(mutex_);  // hashes of tenant and job
};

}  // namespace kiln
