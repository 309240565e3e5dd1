#include "server/rpc/metrics.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

class Measures {
 public:
  void Counter(const char* name, const char* help, uint64_t value) {
    measures_.push_back(
        {absl::StrCat("kiln_", name, "_total"), help, Measure::Kind::kCounter, static_cast<double>(value)});
  }
  void Gauge(const char* name, const char* help, uint64_t value) {
    measures_.push_back(
        {absl::StrCat("kiln_", name), help, Measure::Kind::kGauge, static_cast<double>(value)});
  }
  void ByTenant(const char* name, const char* help, const std::map<std::string, Use>& uses,
                double (*value)(const Use&)) {
    for (const auto& [tenant, use] : uses) {
      measures_.push_back(
          {absl::StrCat("kiln_tenant_", name, "_total"), help, Measure::Kind::kCounter, value(use), tenant});
    }
  }
  std::vector<Measure> Take() && { return std::move(measures_); }

 private:
  std::vector<Measure> measures_;
};

void AddDaemon(const Stats& stats, const StoreStatistics& kept, const Coordinator::Load& load,
               const WorkerPool& pool, Measures& to) {
  to.Counter("lookups", "Questions for a stored result", stats.lookups.asked);
  to.Counter("hits", "Lookups that were answered with one", stats.lookups.hits);
  to.Counter("misses", "Lookups that were not", stats.lookups.misses);
  to.Counter("compiles", "Flights that reached a worker", stats.flights.compiled);
  to.Counter("joined", "Callers that joined a running flight", stats.flights.joined);
  to.Counter("failures", "Flights that ended without a result", stats.flights.failed);
  to.Counter("kernels_emitted", "Kernels that workers made", stats.kernels.emitted);
  to.Counter("kernels_reused", "Kernels that the store had", stats.kernels.reused);
  to.Counter("objects_fetched", "Objects sent to clients", stats.transfers.fetched_objects);
  to.Counter("worker_crashes", "Workers that ended by themselves", stats.workers.crashes);
  to.Counter("worker_timeouts", "Workers that were killed at a limit of time", stats.workers.timeouts);
  to.Counter("store_evicted", "Entries evicted", kept.evicted);
  to.Counter("store_quarantined", "Damaged entries taken out", kept.quarantined);
  to.Counter("store_refused_signatures", "Of them: signed by nobody who counts", kept.refused_signatures);
  to.Counter("store_scrubbed", "Entries read again to see whether they are whole", kept.scrubbed);
  to.Counter("store_put_failures", "Results that could not be kept", kept.put_failures);
  to.Gauge("flights", "Compiles in flight or waiting", load.flights);
  to.Gauge("queued", "Flights that wait for their turn", load.queued);
  to.Gauge("drained", "1 while new compiles are refused (kilnctl drain)", load.drained ? 1 : 0);
  to.Gauge("workers", "Compiler processes", pool.size());
  to.Gauge("workers_busy", "Of those, at work", pool.busy());
  to.Gauge("calls", "RPCs in flight", stats.calls.running);
  to.Gauge("store_manifests", "Compiled variants in the store", kept.entries);
  to.Gauge("store_objects", "Objects in the store", kept.objects);
  to.Gauge("store_unread", "Manifests that the last sweep could not read", kept.unread);
  to.Gauge("store_disk_bytes", "Of all files of the store", kept.bytes_on_disk);
  to.Gauge("store_writable", "1 while results can be kept", kept.writable ? 1 : 0);
}

void AddTier(const v1::TierStatus& shared, const v1::TierWorkStatus& work, Measures& to) {
  to.Counter("tier_hits", "Programs that were taken from the shared tier", shared.hits());
  to.Counter("tier_misses", "Look-ups that it did not answer with one", shared.misses());
  to.Counter("tier_refused", "Values of it whose signature or digest did not hold", shared.refused());
  to.Counter("tier_writes", "Writes that it has taken", shared.writes());
  to.Counter("tier_dropped_writes", "Writes that it has not", shared.dropped_writes());
  to.Gauge("tier_connected", "1 while it answers", shared.connected() ? 1 : 0);
  to.Gauge("tier_breaker_open", "1 while nobody waits for it", shared.breaker_open() ? 1 : 0);
  to.Counter("tier_work_asked", "Tunables that other daemons were asked to measure", work.asked());
  to.Counter("tier_work_full", "Of them: for which the work list had no room", work.full());
  to.Counter("tier_work_remade", "Programs to be recompiled, as what they waited for was measured",
             work.remade());
  to.Counter("tier_work_measured", "Tunables measured for other daemons", work.measured());
  to.Counter("tier_work_failed", "Of theirs: that could not be", work.failed());
  to.Counter("tier_work_refused", "Items of the work list that did not hold", work.refused());
  to.Gauge("tier_work_waiting", "Programs that wait for a device of another daemon", work.waiting());
}

void AddUpstream(const v1::UpstreamStatus& asked, Measures& to) {
  to.Counter("upstream_hits", "Programs that were taken from the upstream", asked.hits());
  to.Counter("upstream_misses", "Look-ups that it did not answer with one", asked.misses());
  to.Counter("upstream_forwarded", "Compiles that it did", asked.forwarded());
  to.Counter("upstream_refused", "Answers of it that did not hold", asked.refused());
  to.Counter("upstream_away", "Times that it was not to be had", asked.away());
  to.Counter("upstream_fetched_objects", "Objects that were taken from it", asked.fetched_objects());
  to.Gauge("upstream_connected", "1 while it answers; else nobody asks it", asked.connected() ? 1 : 0);
}

void AddTenants(const std::map<std::string, Use>& uses, Measures& to) {
  to.ByTenant("hits", "Lookups of a tenant that were answered with a stored result", uses,
              [](const Use& use) { return static_cast<double>(use.hits); });
  to.ByTenant("compiles", "Flights that a tenant began and that reached a worker", uses,
              [](const Use& use) { return static_cast<double>(use.compiles); });
  to.ByTenant("executed", "Calls of programs, as a tenant's processes tell", uses,
              [](const Use& use) { return static_cast<double>(use.executed); });
  to.ByTenant("saved_seconds", "Of workers, for the results that a tenant's hits were answered with", uses,
              [](const Use& use) { return 1e-3 * static_cast<double>(use.saved_ms); });
  to.ByTenant("compile_seconds", "Of workers and GPUs, for a tenant's compiles", uses,
              [](const Use& use) { return 1e-6 * static_cast<double>(use.spent_us); });
}

}  // namespace

std::vector<Measure> ReadMetrics(const Stats& stats, const Store& store, const Coordinator::Load& load,
                                 const WorkerPool& pool, const SharedTier* tier,
                                 const TierWorkers* tier_workers, const Upstream* upstream) {
  Measures measures;
  AddDaemon(stats, store.statistics(), load, pool, measures);
  if (tier != nullptr) AddTier(tier->status(), tier_workers->status(), measures);
  if (upstream != nullptr) AddUpstream(upstream->status(), measures);
  AddTenants(stats.uses.ByTenant(), measures);
  return std::move(measures).Take();
}

}  // namespace kiln
