// The two sides of a shared tier's work list, as far as the configuration has them (tier.work_list): whom
// this daemon asks for what it can't measure, and what it measures for others. Neither where there is no
// tier.
//
// Threads: one starts and stops them; status from any. Errors: UNAVAILABLE where the system gives no threads.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cache/shared/shared_tier.h"
#include "cache/store.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/flight/coordinator.h"
#include "server/flight/hit_index.h"
#include "server/flight/work_asker.h"
#include "server/flight/work_server.h"
#include "server/pool/measuring_pool.h"
#include "server/tune/tuner.h"
#include "server/tune/tuning_records.h"
#include "server/tune/work_list.h"

namespace kiln {

class TierWorkers {
 public:
  // All that is given here and below outlives this but the coordinator. `tier` may be null.
  TierWorkers(const v1::Config& config, const std::string& compiler, SharedTier* tier);

  // For the tuner: null where nobody is asked.
  WorkList* elsewhere() { return asks_ ? &*list_ : nullptr; }
  absl::Status StartAsking(Store* store, TuningRecords* records, HitIndex* index);
  // The coordinator tells from now on what waits. `gpus` may be null.
  absl::Status StartServing(MeasuringPool* gpus, Tuner* tuner, TuningRecords* records,
                            Coordinator* coordinator);
  // Nothing more is measured, and no program becomes outdated. Before the coordinator and the tuner end.
  void Stop();

  v1::TierWorkStatus status() const;

 private:
  const v1::Config config_;
  std::optional<WorkList> list_;
  bool asks_ = false;
  bool serves_ = false;
  std::unique_ptr<WorkAsker> asker_;
  std::unique_ptr<WorkServer> server_;
};

}  // namespace kiln
