// The daemon's counts since it started. Any thread, no order between two counts.
#pragma once

#include <atomic>
#include <cstdint>

#include "server/observe/job_keys.h"
#include "server/observe/miss_table.h"
#include "server/observe/use_table.h"

namespace kiln {

struct Stats {
  using Count = std::atomic<uint64_t>;
  Count lookups{0};
  Count hits{0};
  Count misses{0};
  Count compiles{0};  // flights that reached a worker
  Count joined{0};    // callers that joined a running flight
  Count failures{0};
  Count kernels_emitted{0};
  Count kernels_reused{0};
  Count worker_crashes{0};
  Count worker_timeouts{0};
  Count fetched_objects{0};
  Count graphs_uploaded{0};
  Count tunables_measured{0};  // by max-autotune
  Count tunables_reused{0};    // whose measurement was in the store
  Count candidates_lost{0};    // wrong, hung or ended their process
  Count calls_begun{0};        // RPCs
  Count calls_running{0};      // of those, now
  UseTable uses;               // by tenant and job
  JobKeys job_keys;            // what each asked for
  MissTable last_misses;       // what was compiled lately
};

// Lives as long as one RPC.
class CallScope {
 public:
  explicit CallScope(Stats* stats) : stats_(stats) {
    stats_->calls_running++;
    stats_->calls_begun++;
  }
  ~CallScope() { stats_->calls_running--; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  Stats* const stats_;
};

}  // namespace kiln
