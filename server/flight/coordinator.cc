#include "server/flight/coordinator.h"

#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "compiler/support/limits.h"
#include "compiler/support/status_macros.h"
#include "openssl/rand.h"

namespace kiln {
namespace {

constexpr size_t kJobIdBytes = 16;
constexpr size_t kDiskThreads = 8;
constexpr absl::Duration kDrainStep = absl::Milliseconds(20);

std::string NewJobId() {
  std::string id(kJobIdBytes, '\0');
  RAND_bytes(reinterpret_cast<unsigned char*>(id.data()), id.size());
  return id;
}

FlightTable::Options TableOptions(const v1::Config& config) {
  FlightTable::Options options;
  options.runners = config.workers().count();
  options.queue_max = config.admission().queue_max();
  options.graphs_bytes_max = config.admission().graphs_bytes_max();
  options.new_job_id = NewJobId;
  return options;
}

std::shared_ptr<const std::string> Serialized(const v1::LookupReply& reply) {
  return std::make_shared<const std::string>(reply.SerializeAsString());
}

}  // namespace

Coordinator::Coordinator(const v1::Config& config, Store* store, HitIndex* index, WorkerPool* pool,
                         Tuner* tuner, Stats* stats)
    : store_(store),
      pool_(pool),
      stats_(stats),
      keys_(store, index, &clock_),
      compiler_(config, store, &keys_, pool, tuner, stats),
      table_(TableOptions(config), &clock_, this, this) {}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(const v1::Config& config, Store* store,
                                                                 HitIndex* index, WorkerPool* pool,
                                                                 Tuner* tuner, Stats* stats) {
  std::unique_ptr<Coordinator> made(new Coordinator(config, store, index, pool, tuner, stats));
  FlightTable* const table = &made->table_;
  KILN_ASSIGN_OR_RETURN(
      made->strand_,
      Strand::Create(&made->clock_, [table] { return table->NextTick(); }, [table] { table->Tick(); }));
  KILN_ASSIGN_OR_RETURN(made->disk_, ThreadExecutor::Create(kDiskThreads));
  KILN_ASSIGN_OR_RETURN(made->runners_, ThreadExecutor::Create(config.workers().count()));
  return made;
}

Coordinator::~Coordinator() {
  if (strand_ != nullptr) {
    strand_->Run([this] {
      closing_ = true;
      for (const auto& [id, compilation] : compilations_) compilation->stopped = true;
    });
  }
  runners_ = nullptr;
  // What the last runners told becomes writes, which are finished.
  if (strand_ != nullptr) strand_->Run([] {});
  disk_ = nullptr;
  strand_ = nullptr;
}

std::string Coordinator::KeyOf(const std::string& ns, const std::string& request_key) const {
  return CompileKey(ns, request_key, kProgramFormatVersion, pool_->hello().compiler_fingerprint());
}

// ---- Look-ups --------------------------------------------------------------------------------

std::shared_ptr<const std::string> Coordinator::Find(const std::string& compile_key, const v1::Hints& hints) {
  const KnownKeyPtr known = keys_.Find(compile_key);
  const KnownVariant* variant = known == nullptr ? nullptr : ChooseVariant(*known, hints);
  if (variant == nullptr) return nullptr;
  stats_->lookups++;
  stats_->hits++;
  keys_.RecordUse(*variant);
  return variant->reply;
}

void Coordinator::Lookup(const std::string& compile_key, const v1::Hints& hints,
                         std::function<void(std::shared_ptr<const std::string>)> answer) {
  stats_->lookups++;
  disk_->Post([this, compile_key, hints, answer = std::move(answer)] {
    const KnownKeyPtr known = keys_.Load(compile_key);
    if (const KnownVariant* variant = ChooseVariant(*known, hints); variant != nullptr) {
      stats_->hits++;
      keys_.RecordUse(*variant);
      answer(variant->reply);
      return;
    }
    stats_->misses++;
    if (absl::Status refusal = RefusalOf(*known, clock_.WallNow()); !refusal.ok()) {
      v1::LookupReply reply;
      reply.mutable_failed()->set_code(static_cast<int>(refusal.code()));
      reply.mutable_failed()->set_reason(std::string(refusal.message()));
      answer(Serialized(reply));
      return;
    }
    strand_->Post([this, compile_key, answer] {
      v1::LookupReply reply;
      reply.mutable_miss();
      if (std::string job = table_.JobOf(compile_key); !job.empty()) {
        reply.mutable_in_flight()->set_job_id(std::move(job));
      }
      answer(Serialized(reply));
    });
  });
}

// ---- Inputs ----------------------------------------------------------------------------------

void Coordinator::Compile(CallId id, FlightRequest request, FlightCall call) {
  strand_->Post([this, id, request = std::move(request), call = std::move(call)]() mutable {
    if (!request.debug && table_.FlightOfKey(request.compile_key) != 0) stats_->joined++;
    table_.Compile(id, std::move(request), std::move(call));
  });
}

void Coordinator::Attach(CallId id, const std::string& ns, const std::string& job_id, FlightCall call) {
  strand_->Post([this, id, ns, job_id, call = std::move(call)]() mutable {
    table_.Attach(id, ns, job_id, std::move(call));
    if (table_.FlightOfCall(id) != 0) stats_->joined++;
  });
}

void Coordinator::Uploaded(CallId id, absl::StatusOr<GraphPtr> graph) {
  strand_->Post([this, id, graph = std::move(graph)]() mutable {
    if (graph.ok()) stats_->graphs_uploaded++;
    table_.Uploaded(id, std::move(graph));
  });
}

void Coordinator::Cancel(CallId id) {
  strand_->Post([this, id] { table_.Cancel(id); });
}

// ---- What the table asks for -----------------------------------------------------------------

void Coordinator::Start(FlightId flight, FlightRequestPtr request) {
  if (closing_) return;
  auto compilation = std::make_shared<Compilation>();
  compilation->request = std::move(request);
  compilation->progress = [this, flight](absl::string_view phase, FlightEventPtr event) {
    strand_->Post([this, flight, phase = std::string(phase), event = std::move(event)] {
      table_.Progress(flight, phase, event);
    });
  };
  compilations_[flight] = compilation;
  runners_->Post([this, flight, compilation] {
    absl::StatusOr<std::shared_ptr<const Artifact>> artifact = compiler_.Compile(compilation);
    strand_->Post([this, flight, lost = compilation->workers_lost, artifact = std::move(artifact)]() mutable {
      compilations_.erase(flight);
      table_.Compiled(flight, std::move(artifact), lost);
    });
  });
}

void Coordinator::Stop(FlightId flight) {
  if (const auto found = compilations_.find(flight); found != compilations_.end()) {
    found->second->stopped = true;
  }
}

void Coordinator::Look(FlightId flight, const std::string& compile_key) {
  if (closing_) return;
  disk_->Post([this, flight, compile_key] {
    KnownKeyPtr known = keys_.Load(compile_key);
    strand_->Post(
        [this, flight, known = std::move(known)]() mutable { table_.Looked(flight, std::move(known)); });
  });
}

void Coordinator::Write(FlightId flight, std::shared_ptr<const Artifact> artifact) {
  keys_.Announce(artifact);
  disk_->Post([this, flight, artifact = std::move(artifact)] {
    absl::Status stored = keys_.Put(artifact);
    strand_->Post([this, flight, stored = std::move(stored)] { table_.Stored(flight, stored); });
  });
}

// ---- The rest --------------------------------------------------------------------------------

absl::StatusOr<EntryValue> Coordinator::ReadObject(const v1::FetchObjectsRequest& request,
                                                   const Artifact* fresh, const std::string& digest) {
  stats_->fetched_objects++;
  return keys_.ReadObject(request, fresh, digest);
}

void Coordinator::ReportUse(const v1::ReportUseRequest& request) {
  store_->catalog().RecordUse(
      {EntryKind::kManifest, ManifestEntryKey(request.compile_key(), request.variant_id())});
}

std::vector<v1::JobInfo> Coordinator::Jobs() {
  std::vector<v1::JobInfo> jobs;
  strand_->Run([&] { jobs = table_.Jobs(); });
  return jobs;
}

Coordinator::Load Coordinator::load() {
  Load load;
  strand_->Run([&] { load = {table_.flights(), table_.queued(), table_.running()}; });
  return load;
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
