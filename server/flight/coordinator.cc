#include "server/flight/coordinator.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "compiler/support/status_macros.h"
#include "openssl/rand.h"
#include "server/flight/gang_subscriber.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr size_t kJobIdBytes = 16;
constexpr size_t kDiskThreads = 8;
constexpr size_t kLookThreads = kTierReaders / 2;  // and as many for transfers: a connection each
constexpr uint64_t kCallersBytesMin = 32u << 20;   // so that one tenant has room for two headers
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
    : store_(store),
      pool_(pool),
      stats_(stats),
      tier_(tier == nullptr ? nullptr : std::make_unique<TierKeys>(tier, store)),
      readable_(config.listen(), pool->hello().compiler_fingerprint()),
      keys_(store, tier_.get(), index, &clock_, signatures, &readable_),
      compiler_(config, pool->hello().compiler_fingerprint(), signatures, &keys_, tier_.get(), tuner, stats),
      upstream_(NewUpstreamFlights(config, signatures, upstream)),
      tier_flights_(tier == nullptr ? nullptr : NewTierFlights()),
      table_(TableOptions(config, &joinable_), &clock_, this, this,
             upstream_ != nullptr ? static_cast<FlightClaims*>(upstream_.get()) : tier_flights_.get()) {}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(const v1::Config& config,
                                                                 const Signatures* signatures, Store* store,
                                                                 SharedTier* tier, Upstream* upstream,
                                                                 HitIndex* index, WorkerPool* pool,
                                                                 Tuner* tuner, Stats* stats) {
  std::unique_ptr<Coordinator> made(
      new Coordinator(config, signatures, store, tier, upstream, index, pool, tuner, stats));
  FlightTable* const table = &made->table_;
  KILN_ASSIGN_OR_RETURN(
      made->strand_,
      Strand::Create(&made->clock_, [table] { return table->NextTick(); }, [table] { table->Tick(); }));
  KILN_ASSIGN_OR_RETURN(made->disk_, ThreadExecutor::Create(kDiskThreads));
  if (tier != nullptr) {
    KILN_ASSIGN_OR_RETURN(made->transfers_, ThreadExecutor::Create(kLookThreads));
    KILN_ASSIGN_OR_RETURN(made->looks_, ThreadExecutor::Create(kLookThreads));
  }
  KILN_ASSIGN_OR_RETURN(made->gangs_, Gangs::Create(&made->clock_, &made->keys_, made->tier_.get()));
  made->lookups_ = made->NewLookups();
  if (upstream != nullptr) KILN_RETURN_IF_ERROR(made->upstream_->Start(made->strand_.get()));
  KILN_ASSIGN_OR_RETURN(made->gpus_, ThreadExecutor::Create(config.measuring().gpus()));
  return made;
}

Coordinator::~Coordinator() {
  if (gpus_ != nullptr) {
    strand_->Run([this] {
      closing_ = true;
      for (const auto& [id, compile] : compiles_) compile->Stop();
      if (upstream_ != nullptr) upstream_->Close();
      for (const auto& [id, chore] : chores_) chore.Cancel("the daemon stops");
    });
    absl::MutexLock lock(&work_mutex_);
    work_mutex_.Await(absl::Condition(this, &Coordinator::NothingIsAtWork));
  }
  gpus_ = nullptr;
  if (upstream_ != nullptr) upstream_->EndThreads();
  gangs_ = nullptr;
  looks_ = nullptr;
  if (tier_ != nullptr && strand_ != nullptr) {
    // Those that wait are answered no more.
    strand_->Run([this] { tier_flights_->Close(); });
  }
  transfers_ = nullptr;
  // Made artifacts have become writes, which are finished.
  disk_ = nullptr;
  strand_ = nullptr;
}

std::unique_ptr<UpstreamFlights> Coordinator::NewUpstreamFlights(const v1::Config& config,
                                                                 const Signatures* signatures,
                                                                 Upstream* upstream) {
  if (upstream == nullptr) return nullptr;
  UpstreamFlights::Outside outside;
  outside.looked = [this](FlightId flight, KnownKeyPtr known, FlightTable::Where where) {
    SayLooked(flight, std::move(known), where);
  };
  outside.progress = [this](FlightId flight, absl::string_view phase, FlightEventPtr event) {
    strand_->Post([this, flight, phase = std::string(phase), event = std::move(event)] {
      table_.Progress(flight, phase, event);
    });
  };
  outside.deadline = [this](FlightId flight) { return table_.DeadlineOf(flight); };
  outside.ended = [this](TaskId id, FlightId flight, FlightNext next) {
    strand_->Post([this, id, flight, next = std::move(next)]() mutable {
      table_.Ended(id, /*seconds=*/0, /*typical=*/false);
      table_.Advanced(flight, std::move(next));
      CountWork(-1);
    });
  };
  return std::make_unique<UpstreamFlights>(UpstreamFlights::Parts{upstream, signatures, store_, &keys_},
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
  parts.disk = disk_.get();
  parts.fingerprint = pool_->hello().compiler_fingerprint();
  parts.job_of = [this](const std::string& slot, std::function<void(std::string)> then) {
    strand_->Post([this, slot, then = std::move(then)] { then(table_.JobOf(slot)); });
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
  strand_->Post([this, id, request = std::move(request), call = std::move(call)]() mutable {
    const std::string slot = FlightSlot(request.compile_key, request.gang, call.hints);
    if (!request.debug && table_.FlightOfKey(slot) != 0) stats_->joined++;
    table_.Compile(id, std::move(request), std::move(call));
  });
}

void Coordinator::Attach(CallId id, const std::string& ns, const std::string& job_id, FlightCall call) {
  strand_->Post([this, id, ns, job_id, call = std::move(call)]() mutable {
    if (const FlightRequestPtr request = table_.RequestOfJob(job_id); request != nullptr)
      Join(*request, &call);
    table_.Attach(id, ns, job_id, std::move(call));
    if (table_.FlightOfCall(id) != 0) stats_->joined++;
  });
}

// What it was packed in is gone with the function, before the table is told.
void Coordinator::Unpack(CallId id, std::function<absl::StatusOr<GraphPtr>()> unpack) {
  strand_->Post([this, id, unpack = std::move(unpack)]() mutable {
    if (!table_.Unpacks(id)) return;
    disk_->Post([this, id, unpack = std::move(unpack)]() mutable {
      absl::StatusOr<GraphPtr> graph = std::exchange(unpack, nullptr)();
      Uploaded(id, std::move(graph));
    });
  });
}

void Coordinator::Uploaded(CallId id, absl::StatusOr<GraphPtr> graph) {
  strand_->Post([this, id, graph = std::move(graph)]() mutable {
    if (graph.ok()) stats_->graphs_uploaded++;
    table_.Uploaded(id, std::move(graph));
  });
}

void Coordinator::Cancel(CallId id, std::function<bool()> lost) {
  strand_->Post([this, id, lost = std::move(lost)] {
    // Of most calls that are over there is nothing left to cancel.
    if (table_.FlightOfCall(id) == 0) return;
    table_.Cancel(id, lost() ? FlightTable::Gone::kLost : FlightTable::Gone::kLeft);
  });
}

// ---- What the table asks for -----------------------------------------------------------------

void Coordinator::Start(TaskId id, FlightId flight, FlightRequestPtr request, const FlightTask& task) {
  if (closing_) return;
  CountWork(1);
  if (flight == 0) {
    StartChore(id, task.number);
    return;
  }
  if (task.kind == TaskQueue::Kind::kForward) {
    upstream_->Forward(id, flight, std::move(request));
    return;
  }
  const CompilePtr compile = CompileOf(flight, request);
  if (task.kind == TaskQueue::Kind::kTune) {
    StartTuning(id, flight, compile, request->caller);
  } else {
    StartWork(id, flight, compile, request->caller, task.number);
  }
}

Coordinator::CompilePtr Coordinator::CompileOf(FlightId flight, const FlightRequestPtr& request) {
  CompilePtr& compile = compiles_[flight];
  if (compile != nullptr) return compile;
  FlightCompile::Outside outside;
  outside.progress = [this, flight](absl::string_view phase, FlightEventPtr event) {
    strand_->Post([this, flight, phase = std::string(phase), event = std::move(event)] {
      table_.Progress(flight, phase, event);
    });
  };
  outside.ask = [this, flight](std::vector<FlightTask> tasks) {
    strand_->Post([this, flight, tasks = std::move(tasks)] { table_.Asked(flight, tasks); });
  };
  compile = std::make_shared<FlightCompile>(&compiler_, request, std::move(outside));
  return compile;
}

void Coordinator::CountSeconds(const Caller& caller, double seconds) {
  Use use;
  use.spent_us = static_cast<uint64_t>(std::max(0.0, 1e6 * seconds));
  stats_->uses.Count(caller.tenant, caller.job, use);
}

void Coordinator::StartWork(TaskId id, FlightId flight, const CompilePtr& compile, const Caller& caller,
                            uint64_t number) {
  WorkerTask task = compile->TaskFor(number);
  task.done = [this, id, flight, compile, caller, number](WorkerResult result) {
    CountSeconds(caller, result.seconds);
    strand_->Post(
        [this, id, seconds = result.seconds, ok = result.status.ok()] { table_.Ended(id, seconds, ok); });
    auto taken = std::make_shared<WorkerResult>(std::move(result));  // std::function copies
    Take(flight, compile, [compile, number, taken] { return compile->After(number, std::move(*taken)); });
  };
  pool_->Submit(std::move(task));
}

void Coordinator::StartTuning(TaskId id, FlightId flight, const CompilePtr& compile, const Caller& caller) {
  gpus_->Post([this, id, flight, compile, caller] {
    const MonotonicTime begin = clock_.Now();
    compile->TuneOnGpu();
    const double seconds = SecondsBetween(begin, clock_.Now());
    CountSeconds(caller, seconds);
    strand_->Post([this, id, seconds] { table_.Ended(id, seconds, /*typical=*/true); });
    Take(flight, compile, [compile] { return compile->AfterTuning(); });
  });
}

void Coordinator::Chore::Cancel(const char* why) const {
  if (measure) {
    measure(/*runs=*/false);
  } else {
    task.done({absl::CancelledError(why), {}, false});
  }
}

void Coordinator::StartChore(TaskId id, uint64_t number) {
  Chore chore = std::move(chores_.extract(number).mapped());
  if (chore.measure) {
    StartMeasuring(id, std::move(chore));
    return;
  }
  chore.task.done = [this, id, done = std::move(chore.task.done)](WorkerResult result) {
    const double seconds = result.seconds;
    const bool ok = result.status.ok();
    done(std::move(result));
    strand_->Post([this, id, seconds, ok] {
      table_.Ended(id, seconds, ok);
      CountWork(-1);
    });
  };
  pool_->Submit(std::move(chore.task));
}

void Coordinator::StartMeasuring(TaskId id, Chore chore) {
  gpus_->Post([this, id, chore = std::move(chore)] {
    const MonotonicTime begin = clock_.Now();
    chore.measure(/*runs=*/true);
    const double seconds = SecondsBetween(begin, clock_.Now());
    CountSeconds(chore.caller, seconds);
    strand_->Post([this, id, seconds] {
      table_.Ended(id, seconds, /*typical=*/false);
      CountWork(-1);
    });
  });
}

void Coordinator::Take(FlightId flight, const CompilePtr& compile, std::function<FlightNext()> step) {
  disk_->Post([this, flight, compile, step = std::move(step)] { Advance(flight, compile, step()); });
}

void Coordinator::Advance(FlightId flight, const CompilePtr& compile, FlightNext next) {
  if (next.tries_tuning) {
    // Not where look-ups wait, whose limits run.
    ThreadExecutor* const threads = transfers_ == nullptr ? disk_.get() : transfers_.get();
    threads->Post([this, flight, compile] { Advance(flight, compile, compile->TryTuning()); });
    return;
  }
  strand_->Post([this, flight, next = std::move(next)]() mutable {
    const bool over = next.outcome.has_value();
    table_.Advanced(flight, std::move(next));
    if (over) compiles_.erase(flight);
    CountWork(-1);
  });
}

void Coordinator::CountWork(int more) {
  absl::MutexLock lock(&work_mutex_);
  at_work_ += static_cast<size_t>(more);
}

uint64_t Coordinator::Submit(const Caller& caller, WorkerTask task) {
  return Add(std::make_shared<Chore>(Chore{caller, std::move(task), nullptr}));
}

uint64_t Coordinator::SubmitMeasuring(const Caller& caller, std::function<void(bool runs)> measure) {
  return Add(std::make_shared<Chore>(Chore{caller, {}, std::move(measure)}));
}

// Shared, since std::function copies.
uint64_t Coordinator::Add(std::shared_ptr<Chore> chore) {
  const uint64_t number = ++last_chore_;
  strand_->Post([this, number, chore = std::move(chore)] {
    if (closing_) {
      chore->Cancel("the daemon stops");
      return;
    }
    const TaskQueue::Kind kind = chore->measure ? TaskQueue::Kind::kTune : TaskQueue::Kind::kEmit;
    const Caller caller = chore->caller;
    chores_[number] = std::move(*chore);
    table_.Chore(number, caller, kind);
  });
  return number;
}

void Coordinator::Withdraw(uint64_t number) {
  strand_->Post([this, number] {
    const auto found = chores_.find(number);
    if (found == chores_.end()) return;
    table_.Withdraw(number);
    const Chore withdrawn = std::move(chores_.extract(found).mapped());
    withdrawn.Cancel("nobody waits for the answer");
  });
}

void Coordinator::Stop(FlightId flight) {
  if (upstream_ != nullptr) upstream_->Stop(flight);
  const auto found = compiles_.find(flight);
  if (found == compiles_.end()) return;
  found->second->Stop();
  compiles_.erase(found);
}

void Coordinator::Look(FlightId flight, const FlightRequest& request) {
  if (closing_) return;
  if (!request.gang.id().empty()) {  // what is here has no say
    SayLooked(flight, std::make_shared<const KnownKey>(), FlightTable::Where::kHere);
    return;
  }
  disk_->Post([this, flight, ns = request.ns, key = request.compile_key, request_key = request.request_key,
               forwarded = !request.hops.empty()] {
    SayLooked(flight, keys_.LoadFor(ns, key, request_key, forwarded), FlightTable::Where::kHere);
  });
}

void Coordinator::SayLooked(FlightId flight, KnownKeyPtr known, FlightTable::Where where) {
  strand_->Post([this, flight, known = std::move(known), where]() mutable {
    table_.Looked(flight, std::move(known), where);
  });
}

std::unique_ptr<TierFlights> Coordinator::NewTierFlights() {
  TierFlights::Outside outside;
  outside.look = [this](FlightId flight, const TierKeys::Name& key, MonotonicTime deadline) {
    if (!closing_) LookInTier(flight, key, deadline);
  };
  outside.claim = [this](FlightId flight, const TierKeys::Name& key, MonotonicTime deadline) {
    if (!closing_) ClaimInTier(flight, key, deadline);
  };
  outside.give_back = [this](FlightId flight) { tier_->ReleaseAfterWrites(flight); };
  outside.looked = [this](FlightId flight, KnownKeyPtr known, FlightTable::Where where) {
    table_.Looked(flight, std::move(known), where);
  };
  return std::make_unique<TierFlights>(std::move(outside), &clock_, tier_->lookup_limit());
}

void Coordinator::LookInTier(FlightId flight, const TierKeys::Name& key, MonotonicTime deadline) {
  looks_->Post([this, flight, key, deadline] {
    const MonotonicTime begin = clock_.Now();
    absl::StatusOr<SharedTier::Found> found = tier_->LookUp(key, deadline);
    if (found.ok()) {
      TakeFromTier(flight, key, std::make_shared<SharedTier::Found>(*std::move(found)));
    } else {
      // The store may have it by now, as where a gang's member brought it.
      KnownKeyPtr known = absl::IsNotFound(found.status()) ? keys_.Load(key.ns, key.compile_key) : nullptr;
      // A claim, and a look after it, take as long again each.
      const MonotonicTime now = clock_.Now();
      absl::Status why = found.status();
      if (absl::IsNotFound(why) && now + 2 * (now - begin) > deadline)
        why = absl::DeadlineExceededError("the shared tier is too far away to claim a key there in time");
      strand_->Post([this, flight, why = std::move(why), known = std::move(known)]() mutable {
        tier_flights_->Missed(flight, why, std::move(known));
      });
    }
  });
}

void Coordinator::TakeFromTier(FlightId flight, const TierKeys::Name& key,
                               std::shared_ptr<SharedTier::Found> found) {
  transfers_->Post([this, flight, key, found] {
    const absl::Status status = tier_->Take(key.ns, std::move(*found));
    if (!status.ok()) spdlog::warn("take a key from the shared tier: {}", status.ToString());
    keys_.Forget(key.compile_key);
    strand_->Post([this, flight, known = keys_.Load(key.ns, key.compile_key), whole = status.ok()]() mutable {
      tier_flights_->Taken(flight, std::move(known), whole);
    });
  });
}

void Coordinator::ClaimInTier(FlightId flight, const TierKeys::Name& key, MonotonicTime deadline) {
  tier_->Claim(flight, key, deadline, [this, flight](TierClaims::Answer answer) {
    strand_->Post([this, flight, answer] { tier_flights_->Claimed(flight, answer); });
  });
}

void Coordinator::Write(FlightId flight, std::shared_ptr<const Artifact> artifact) {
  keys_.Announce(artifact);
  if (tier_flights_ != nullptr) tier_flights_->Made(flight);
  disk_->Post([this, flight, artifact = std::move(artifact)] {
    absl::Status stored = keys_.Put(artifact);
    if (tier_ != nullptr) tier_->Offer(artifact, flight);
    strand_->Post([this, flight, stored = std::move(stored)] { table_.Stored(flight, stored); });
  });
}

// ---- The rest --------------------------------------------------------------------------------

absl::StatusOr<EntryValue> Coordinator::ReadObject(const v1::FetchObjectsRequest& request,
                                                   const std::string& digest) {
  stats_->fetched_objects++;
  return keys_.ReadObject(request, digest);
}

std::vector<v1::JobInfo> Coordinator::Jobs() {
  std::vector<v1::JobInfo> jobs;
  strand_->Run([&] { jobs = table_.Jobs(); });
  return jobs;
}

Coordinator::Load Coordinator::load() {
  Load load;
  strand_->Run([&] { load = {table_.flights(), table_.queued(), table_.begun(), table_.drained()}; });
  return load;
}

std::map<std::string, FlightTable::TenantLoad> Coordinator::Tenants() {
  std::map<std::string, FlightTable::TenantLoad> loads;
  strand_->Run([&] { loads = table_.Tenants(); });
  return loads;
}

void Coordinator::SetDrained(bool drained) {
  strand_->Run([&] { table_.SetDrained(drained); });
}

bool Coordinator::MayMeasureFor(const std::string& tenant) {
  bool may = false;
  strand_->Run([&] { may = table_.MayMeasureFor(tenant); });
  return may;
}

void Coordinator::Forget(const std::string& compile_key) {
  compiler_.Forget(compile_key);
  keys_.Forget(compile_key);
}

bool Coordinator::Drain(absl::Duration limit) {
  strand_->Run([this] { table_.Drain(); });
  const MonotonicTime deadline = clock_.Now() + absl::ToChronoMilliseconds(limit);
  while (load().flights > 0) {
    if (clock_.Now() >= deadline) return false;
    absl::SleepFor(kDrainStep);
  }
  return true;
}

}  // namespace kiln
