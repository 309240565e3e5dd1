#include "server/rpc/metrics.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace kiln {

std::vector<Measure> ReadMetrics(const Stats& stats, const Store& store, const Coordinator::Load& load,
                                 const WorkerPool& pool, const SharedTier* tier,
                                 const TierWorkers* tier_workers, const Upstream* upstream) {
  std::vector<Measure> measures;
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    measures.push_back(
        {absl::StrCat("kiln_", name, "_total"), help, Measure::Kind::kCounter, static_cast<double>(value)});
  };
  const auto gauge = [&](const char* name, const char* help, uint64_t value) {
    measures.push_back(
        {absl::StrCat("kiln_", name), help, Measure::Kind::kGauge, static_cast<double>(value)});
  };
  const StoreStatistics kept = store.statistics();
  counter("lookups", "Questions for a stored result", stats.lookups);
  counter("hits", "Lookups that were answered with one", stats.hits);
  counter("misses", "Lookups that were not", stats.misses);
  counter("compiles", "Flights that reached a worker", stats.compiles);
  counter("joined", "Callers that joined a running flight", stats.joined);
  counter("failures", "Flights that ended without a result", stats.failures);
  counter("kernels_emitted", "Kernels that workers made", stats.kernels_emitted);
  counter("kernels_reused", "Kernels that the store had", stats.kernels_reused);
  counter("objects_fetched", "Objects sent to clients", stats.fetched_objects);
  counter("worker_crashes", "Workers that ended by themselves", stats.worker_crashes);
  counter("worker_timeouts", "Workers that were killed at a limit of time", stats.worker_timeouts);
  counter("store_evicted", "Entries evicted", kept.evicted);
  counter("store_quarantined", "Damaged entries taken out", kept.quarantined);
  counter("store_refused_signatures", "Of them: signed by nobody who counts", kept.refused_signatures);
  counter("store_scrubbed", "Entries read again to see whether they are whole", kept.scrubbed);
  counter("store_put_failures", "Results that could not be kept", kept.put_failures);
  gauge("flights", "Compiles in flight or waiting", load.flights);
  gauge("queued", "Flights that wait for their turn", load.queued);
  gauge("drained", "1 while new compiles are refused (kilnctl drain)", load.drained ? 1 : 0);
  gauge("workers", "Compiler processes", pool.size());
  gauge("workers_busy", "Of those, at work", pool.busy());
  gauge("calls", "RPCs in flight", stats.calls_running);
  gauge("store_manifests", "Compiled variants in the store", kept.entries);
  gauge("store_objects", "Objects in the store", kept.objects);
  gauge("store_unread", "Manifests that the last sweep could not read", kept.unread);
  gauge("store_disk_bytes", "Of all files of the store", kept.bytes_on_disk);
  gauge("store_writable", "1 while results can be kept", kept.writable ? 1 : 0);
  if (tier != nullptr) {
    const v1::TierStatus shared = tier->status();
    counter("tier_hits", "Programs that were taken from the shared tier", shared.hits());
    counter("tier_misses", "Look-ups that it did not answer with one", shared.misses());
    counter("tier_refused", "Values of it whose signature or digest did not hold", shared.refused());
    counter("tier_writes", "Writes that it has taken", shared.writes());
    counter("tier_dropped_writes", "Writes that it has not", shared.dropped_writes());
    gauge("tier_connected", "1 while it answers", shared.connected() ? 1 : 0);
    gauge("tier_breaker_open", "1 while nobody waits for it", shared.breaker_open() ? 1 : 0);
    const v1::TierWorkStatus work = tier_workers->status();
    counter("tier_work_asked", "Tunables that other daemons were asked to measure", work.asked());
    counter("tier_work_full", "Of them: for which the work list had no room", work.full());
    counter("tier_work_remade", "Programs to be made anew, as what they waited for was measured",
            work.remade());
    counter("tier_work_measured", "Tunables measured for other daemons", work.measured());
    counter("tier_work_failed", "Of theirs: that could not be", work.failed());
    counter("tier_work_refused", "Items of the work list that did not hold", work.refused());
    gauge("tier_work_waiting", "Programs that wait for a device of another daemon", work.waiting());
  }
  if (upstream != nullptr) {
    const v1::UpstreamStatus asked = upstream->status();
    counter("upstream_hits", "Programs that were taken from the upstream", asked.hits());
    counter("upstream_misses", "Look-ups that it did not answer with one", asked.misses());
    counter("upstream_forwarded", "Compiles that it did", asked.forwarded());
    counter("upstream_refused", "Answers of it that did not hold", asked.refused());
    counter("upstream_away", "Times that it was not to be had", asked.away());
    counter("upstream_fetched_objects", "Objects that were taken from it", asked.fetched_objects());
    gauge("upstream_connected", "1 while it answers; else nobody asks it", asked.connected() ? 1 : 0);
  }
  const std::map<std::string, Use> uses = stats.uses.ByTenant();
  const auto by_tenant = [&](const char* name, const char* help, double (*value)(const Use&)) {
    for (const auto& [tenant, use] : uses) {
      measures.push_back(
          {absl::StrCat("kiln_tenant_", name, "_total"), help, Measure::Kind::kCounter, value(use), tenant});
    }
  };
  by_tenant("hits", "Lookups of a tenant that were answered with a stored result",
            [](const Use& use) { return static_cast<double>(use.hits); });
  by_tenant("compiles", "Flights that a tenant began and that reached a worker",
            [](const Use& use) { return static_cast<double>(use.compiles); });
  by_tenant("executed", "Calls of programs, as a tenant's processes tell",
            [](const Use& use) { return static_cast<double>(use.executed); });
  by_tenant("saved_seconds", "Of workers, for the results that a tenant's hits were answered with",
            [](const Use& use) { return 1e-3 * static_cast<double>(use.saved_ms); });
  by_tenant("compile_seconds", "Of workers and GPUs, for a tenant's compiles",
            [](const Use& use) { return 1e-6 * static_cast<double>(use.spent_us); });
  return measures;
}

}  // namespace kiln
