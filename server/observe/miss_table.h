// What was compiled lately, so that a person can be told why (kilnctl why): the ingredients of each key, by
// tenant and job.
//
// Limits: of a job the last kMissesOfJobMax; in all `misses_max`, and `bytes_max` in memory. Of too many the
// oldest of the tenant that holds most bytes goes, so that nobody's compiles push out another's.
//
// Thread-safe; one lock, held for a look through a tenant's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kiln/v1/record.pb.h"
#include "server/server_limits.h"

namespace kiln {

class MissTable {
 public:
  struct Miss {
    std::string tenant;
    std::string job;
    std::string compile_key;
    v1::RequestRecord record;  // of the notes the title alone
    int64_t unix_seconds = 0;
    size_t variants_known = 0;  // of the key, stored when it began
    bool debug = false;         // compiled whatever is stored
  };
  using MissPtr = std::shared_ptr<const Miss>;  // shared with who explains it

  explicit MissTable(size_t misses_max = kMissesMax, uint64_t bytes_max = kMissBytesMax)
      : misses_max_(misses_max), bytes_max_(bytes_max) {}

  void Add(Miss miss) ABSL_LOCKS_EXCLUDED(mutex_);
  // The last first.
  std::vector<MissPtr> Last() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Kept {
    uint64_t number = 0;  // in the order of their coming
    uint64_t bytes = 0;
    MissPtr miss;
  };
  struct Tenant {
    std::deque<Kept> misses;  // the oldest first
    uint64_t bytes = 0;
  };
  using Tenants = std::map<std::string, Tenant>;
  void Drop(Tenant& tenant, std::deque<Kept>::iterator kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropFromLargest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t misses_max_;
  const uint64_t bytes_max_;
  mutable absl::Mutex mutex_;
  Tenants tenants_ ABSL_GUARDED_BY(mutex_);
  size_t misses_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln
