// What a scrape of kilnd is told, by name. Names stay as they are: dashboards and alarms hang on them.
// Threads: any.
#pragma once

#include <vector>

#include "cache/shared/shared_tier.h"
#include "cache/store.h"
#include "server/flight/coordinator.h"
#include "server/flight/tier_workers.h"
#include "server/observe/prometheus.h"
#include "server/observe/stats.h"
#include "server/upstream/upstream.h"

namespace kiln {

// `tier` and `upstream` are null where there is none; `tier_workers` are the tier's.
std::vector<Measure> ReadMetrics(const Stats& stats, const Store& store, const Coordinator::Load& load,
                                 const WorkerPool& pool, const SharedTier* tier,
                                 const TierWorkers* tier_workers, const Upstream* upstream);

}  // namespace kiln
