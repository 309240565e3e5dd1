#include "server/flight/coordinator.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "compiler/support/status_macros.h"
#include "openssl/rand.h"
#include "server/flight/gang_subscriber.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

constexpr size_t kJobIdBytes = 16;
constexpr size_t kDiskThreads = 8;
constexpr size_t kLookThreads = kTierReaders / 2;  // and as many for transfers: a connection each
constexpr absl::Duration kDrainStep = absl::Milliseconds(20);

std::string NewJobId() {
  std::string id(kJobIdBytes, '\0');
  RAND_bytes(reinterpret_cast<unsigned char*>(id.data()), id.size());
  return id;
}

FlightTable::Options TableOptions(const v1::Config& config, JoinableKeys* joinable) {
  FlightTable::Options options;
  options.joinable = joinable;
  options.tasks.workers = config.workers().count();
  options.tasks.gpus = config.measuring().gpus();
  options.tasks.forwards = config.has_upstream() ? kForwardsMax : 0;
  options.queue_max = config.admission().queue_max();
  options.graphs_bytes_max = config.admission().graphs_bytes_max();
  options.callers_bytes_max = std::max(kCallersBytesMin, options.graphs_bytes_max / 2);
  for (const v1::TenantConfig& tenant : config.listen().tenants()) {
    if (tenant.has_compile_seconds_per_hour())
      options.quotas[tenant.name()] = static_cast<double>(tenant.compile_seconds_per_hour());
  }
  options.new_job_id = NewJobId;
  return options;
}

}  // namespace

Coordinator::Coordinator(const v1::Config& config, const Signatures* signatures, Store* store,
                         SharedTier* tier, Upstream* upstream, HitIndex* index, WorkerPool* pool,
                         Tuner* tuner, Stats* stats)
    : stats_(stats),
      tier_(tier == nullptr ? nullptr : std::make_unique<TierKeys>(tier, store)),
      readable_(config.listen(), pool->hello().compiler_fingerprint()),
      keys_(store, tier_.get(), index, &clock_, signatures, &readable_),
      compiler_(config, pool->hello().compiler_fingerprint(), signatures, &keys_, tier_.get(), tuner, stats),
      upstream_(NewUpstreamFlights(config, signatures, store, upstream)),
      tier_steps_(tier == nullptr ? nullptr
                                  : std::make_unique<TierSteps>(
                                        TierSteps::Parts{&clock_, tier_.get(), &keys_, &table_, &threads_})),
      workers_({&clock_, stats, pool, &compiler_, upstream_.get(), &table_, &threads_}),
      table_(TableOptions(config, &joinable_), &clock_, &workers_, this, Claims()) {}

FlightClaims* Coordinator::Claims() {
  if (upstream_ != nullptr) return upstream_.get();
  return tier_steps_ == nullptr ? nullptr : &tier_steps_->flights();
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(const v1::Config& config,
                                                                 const Signatures* signatures, Store* store,
                                                                 SharedTier* tier, Upstream* upstream,
                                                                 HitIndex* index, WorkerPool* pool,
                                                                 Tuner* tuner, Stats* stats) {
  std::unique_ptr<Coordinator> made(
      new Coordinator(config, signatures, store, tier, upstream, index, pool, tuner, stats));
  FlightTable* const table = &made->table_;
  KILN_ASSIGN_OR_RETURN(
      made->threads_.strand,
      Strand::Create(&made->clock_, [table] { return table->NextTick(); }, [table] { table->Tick(); }));
  KILN_ASSIGN_OR_RETURN(made->threads_.disk, ThreadExecutor::Create(kDiskThreads));
  if (tier != nullptr) {
    KILN_ASSIGN_OR_RETURN(made->threads_.transfers, ThreadExecutor::Create(kLookThreads));
    KILN_ASSIGN_OR_RETURN(made->threads_.looks, ThreadExecutor::Create(kLookThreads));
  }
  KILN_ASSIGN_OR_RETURN(made->gangs_, Gangs::Create(&made->clock_, &made->keys_, made->tier_.get()));
  made->lookups_ = made->NewLookups();
  if (upstream != nullptr) KILN_RETURN_IF_ERROR(made->upstream_->Start(made->threads_.strand.get()));
  KILN_ASSIGN_OR_RETURN(made->threads_.gpus, ThreadExecutor::Create(config.measuring().gpus()));
  return made;
}

Coordinator::~Coordinator() {
  if (threads_.gpus != nullptr) {
    threads_.strand->Run([this] {
      if (tier_steps_ != nullptr) tier_steps_->Stop();
      workers_.Close();
    });
    workers_.at_work().AwaitNone();
  }
  threads_.gpus = nullptr;
  if (upstream_ != nullptr) upstream_->EndThreads();
  gangs_ = nullptr;
  threads_.looks = nullptr;
  if (tier_ != nullptr && threads_.strand != nullptr) {
    // Those that wait are answered no more.
    threads_.strand->Run([this] { tier_steps_->flights().Close(); });
  }
  threads_.transfers = nullptr;
  // Made artifacts have become writes, which are finished.
  threads_.disk = nullptr;
  threads_.strand = nullptr;
}

std::unique_ptr<UpstreamFlights> Coordinator::NewUpstreamFlights(const v1::Config& config,
                                                                 const Signatures* signatures, Store* store,
                                                                 Upstream* upstream) {
  if (upstream == nullptr) return nullptr;
  UpstreamFlights::Outside outside;
  outside.looked = [this](FlightId flight, KnownKeyPtr known, FlightTable::Where where) {
    SayLooked(flight, std::move(known), where);
  };
  outside.progress = [this](FlightId flight, absl::string_view phase, FlightEventPtr event) {
    threads_.strand->Post([this, flight, phase = std::string(phase), event = std::move(event)] {
      table_.Progress(flight, phase, event);
    });
  };
  outside.deadline = [this](FlightId flight) { return table_.DeadlineOf(flight); };
  outside.ended = [this](TaskId id, FlightId flight, FlightNext next) {
    threads_.strand->Post([this, id, flight, next = std::move(next)]() mutable {
      table_.Ended(id, /*seconds=*/0, /*typical=*/false);
      table_.Advanced(flight, std::move(next));
      workers_.at_work().End();
    });
  };
  return std::make_unique<UpstreamFlights>(UpstreamFlights::Parts{upstream, signatures, store, &keys_},
                                           config.upstream().when_away() != v1::AWAY_FAIL,
                                           std::move(outside));
}

std::unique_ptr<Lookups> Coordinator::NewLookups() {
  Lookups::Parts parts;
  parts.clock = &clock_;
  parts.stats = stats_;
  parts.keys = &keys_;
  parts.tier = tier_.get();
  parts.upstream = upstream_.get();
  parts.gangs = gangs_.get();
  parts.joinable = &joinable_;
  parts.disk = threads_.disk.get();
  parts.fingerprint = compiler_.fingerprint();
  parts.job_of = [this](const std::string& slot, std::function<void(std::string)> then) {
    threads_.strand->Post([this, slot, then = std::move(then)] { then(table_.JobOf(slot)); });
  };
  return std::make_unique<Lookups>(std::move(parts));
}

// ---- Inputs ----------------------------------------------------------------------------------

void Coordinator::Join(const FlightRequest& request, FlightCall* call) {
  if (upstream_ != nullptr || call->gang.id().empty()) return;
  GangName name = {request.ns, std::move(*call->gang.mutable_id()), request.compile_key};
  if (request.hops.empty()) name.request_key = request.request_key;
  call->gang.Clear();
  call->subscriber = std::make_shared<GangSubscriber>(gangs_.get(), std::move(name), call->hints,
                                                      std::move(call->subscriber));
}

void Coordinator::Compile(CallId id, FlightRequest request, FlightCall call) {
  stats_->job_keys.Add(request.caller.tenant, request.caller.job, request.compile_key);
  if (upstream_ == nullptr) request.gang.Clear();
  Join(request, &call);
  threads_.strand->Post([this, id, request = std::move(request), call = std::move(call)]() mutable {
    const std::string slot = FlightSlot(request.compile_key, request.gang, call.hints);
    if (!request.debug && table_.FlightOfKey(slot) != 0) stats_->flights.joined++;
    table_.Compile(id, std::move(request), std::move(call));
  });
}

void Coordinator::Attach(CallId id, const std::string& ns, const std::string& job_id, FlightCall call) {
  threads_.strand->Post([this, id, ns, job_id, call = std::move(call)]() mutable {
    if (const FlightRequestPtr request = table_.RequestOfJob(job_id); request != nullptr)
      Join(*request, &call);
    table_.Attach(id, ns, job_id, std::move(call));
    if (table_.FlightOfCall(id) != 0) stats_->flights.joined++;
  });
}

// What it was packed in is gone with the function, before the table is told.
void Coordinator::Unpack(CallId id, std::function<absl::StatusOr<GraphPtr>()> unpack) {
  threads_.strand->Post([this, id, unpack = std::move(unpack)]() mutable {
    if (!table_.Unpacks(id)) return;
    threads_.disk->Post([this, id, unpack = std::move(unpack)]() mutable {
      absl::StatusOr<GraphPtr> graph = std::exchange(unpack, nullptr)();
      Uploaded(id, std::move(graph));
    });
  });
}

void Coordinator::Uploaded(CallId id, absl::StatusOr<GraphPtr> graph) {
  threads_.strand->Post([this, id, graph = std::move(graph)]() mutable {
    if (graph.ok()) stats_->transfers.uploaded_graphs++;
    table_.Uploaded(id, std::move(graph));
  });
}

void Coordinator::Cancel(CallId id, std::function<bool()> lost) {
  threads_.strand->Post([this, id, lost = std::move(lost)] {
    // Of most calls that are over there is nothing left to cancel.
    if (table_.FlightOfCall(id) == 0) return;
    table_.Cancel(id, lost() ? FlightTable::Gone::kLost : FlightTable::Gone::kLeft);
  });
}

// ---- What the table asks for -----------------------------------------------------------------

void Coordinator::Look(FlightId flight, const FlightRequest& request) {
  if (workers_.closed()) return;
  if (!request.gang.id().empty()) {  // what is here has no say
    SayLooked(flight, std::make_shared<const KnownKey>(), FlightTable::Where::kHere);
    return;
  }
  threads_.disk->Post([this, flight, ns = request.ns, key = request.compile_key,
                       request_key = request.request_key, forwarded = !request.hops.empty()] {
    SayLooked(flight, keys_.LoadFor(ns, key, request_key, forwarded), FlightTable::Where::kHere);
  });
}

void Coordinator::SayLooked(FlightId flight, KnownKeyPtr known, FlightTable::Where where) {
  threads_.strand->Post([this, flight, known = std::move(known), where]() mutable {
    table_.Looked(flight, std::move(known), where);
  });
}

void Coordinator::Write(FlightId flight, std::shared_ptr<const Artifact> artifact) {
  keys_.Announce(artifact);
  if (tier_steps_ != nullptr) tier_steps_->flights().Made(flight);
  threads_.disk->Post([this, flight, artifact = std::move(artifact)] {
    absl::Status stored = keys_.Put(artifact);
    if (tier_ != nullptr) tier_->Offer(artifact, flight);
    threads_.strand->Post([this, flight, stored = std::move(stored)] { table_.Stored(flight, stored); });
  });
}

// ---- The rest --------------------------------------------------------------------------------

absl::StatusOr<EntryValue> Coordinator::ReadObject(const v1::FetchObjectsRequest& request,
                                                   const std::string& digest) {
  stats_->transfers.fetched_objects++;
  return keys_.ReadObject(request, digest);
}

std::vector<v1::JobInfo> Coordinator::Jobs() {
  std::vector<v1::JobInfo> jobs;
  threads_.strand->Run([&] { jobs = table_.Jobs(); });
  return jobs;
}

Coordinator::Load Coordinator::load() {
  Load load;
  threads_.strand->Run([&] { load = {table_.flights(), table_.queued(), table_.begun(), table_.drained()}; });
  return load;
}

std::map<std::string, FlightTable::TenantLoad> Coordinator::Tenants() {
  std::map<std::string, FlightTable::TenantLoad> loads;
  threads_.strand->Run([&] { loads = table_.Tenants(); });
  return loads;
}

void Coordinator::SetDrained(bool drained) {
  threads_.strand->Run([&] { table_.SetDrained(drained); });
}

bool Coordinator::MayMeasureFor(const std::string& tenant) {
  bool may = false;
  threads_.strand->Run([&] { may = table_.MayMeasureFor(tenant); });
  return may;
}

void Coordinator::Forget(const std::string& compile_key) {
  compiler_.Forget(compile_key);
  keys_.Forget(compile_key);
}

bool Coordinator::Drain(absl::Duration limit) {
  threads_.strand->Run([this] { table_.Drain(); });
  const MonotonicTime deadline = clock_.Now() + absl::ToChronoMilliseconds(limit);
  while (load().flights > 0) {
    if (clock_.Now() >= deadline) return false;
    absl::SleepFor(kDrainStep);
  }
  return true;
}

}  // namespace kiln
