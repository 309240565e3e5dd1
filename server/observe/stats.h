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

  struct Lookups {
    Count asked{0};
    Count hits{0};
    Count misses{0};
  };
  struct Flights {
    Count compiled{0};  // that reached a worker
    Count joined{0};    // callers that joined a running one
    Count failed{0};
  };
  struct Kernels {
    Count emitted{0};
    Count reused{0};
  };
  // By max-autotune.
  struct Tuning {
    Count measured{0};         // tunables
    Count reused{0};           // tunables whose measurement was in the store
    Count candidates_lost{0};  // wrong, hung or ended their process
  };
  struct Workers {
    Count crashes{0};
    Count timeouts{0};
  };
  struct Transfers {
    Count fetched_objects{0};
    Count uploaded_graphs{0};
  };
  // RPCs.
  struct Calls {
    Count begun{0};
    Count running{0};  // now
  };

  Lookups lookups;
  Flights flights;
  Kernels kernels;
  Tuning tuning;
  Workers workers;
  Transfers transfers;
  Calls calls;
  UseTable uses;          // by tenant and job
  JobKeys job_keys;       // what each asked for
  MissTable last_misses;  // what was compiled lately
};

// Lives as long as one RPC.
class CallScope {
 public:
  explicit CallScope(Stats* stats) : stats_(stats) {
    stats_->calls.running++;
    stats_->calls.begun++;
  }
  ~CallScope() { stats_->calls.running--; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  Stats* const stats_;
};

}  // namespace kiln
