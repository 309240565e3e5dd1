// kilnd: wiring only. Flags make the configuration, the configuration makes the parts, signals and
// idleness end it.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cache/chain/old_stores.h"
#include "cache/chain/store_config.h"
#include "cache/shared/tier_config.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/kernel_abi.h"
#include "compiler/support/private_directory.h"
#include "compiler/support/status_macros.h"
#include "compiler/worker/build_id.h"
#include "server/auth/gate.h"
#include "server/config/config.h"
#include "server/daemonize.h"
#include "server/flight/coordinator.h"
#include "server/flight/tier_workers.h"
#include "server/listen/kiln_server.h"
#include "server/listen/runtime_dir.h"
#include "server/observe/log.h"
#include "server/observe/prometheus.h"
#include "server/pool/measuring_pool.h"
#include "server/pool/zygote.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/bundle_service.h"
#include "server/rpc/compile_service.h"
#include "server/rpc/metrics.h"
#include "server/rpc/reflection_service.h"
#include "server/rpc/silence_watch.h"
#include "server/rpc/spool_budget.h"
#include "server/schedule/thread_executor.h"
#include "server/tune/tuner.h"
#include "server/upstream/embedded_upstream.h"
#include "server/upstream/upstream.h"
#include "server/upstream/upstream_config.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr size_t kPeopleThreads = 2;  // for what kilnctl asks
constexpr size_t kBundleThreads = 2;  // an import holds one until all of it is in the store
// After the socket is gone, a client that connected just before is still served.
constexpr absl::Duration kBacklogGrace = absl::Milliseconds(200);
constexpr absl::Duration kLastWordsGrace = absl::Seconds(1);

struct Flags {
  std::string config_file, socket, tcp, store, log_file, runtime_dir, worker, cublas_lt, cudnn, cuda_driver;
  std::string signing_key;
  struct {
    std::string address, certificate, key, authority;
  } upstream;
  uint32_t workers = 0;
  int64_t idle_exit_seconds = -1;
  bool embedded = false;
};

// Returns the exit code when the program is over (help, version, misuse), -1 otherwise.
int ParseFlags(int argc, char** argv, Flags* flags) {
  CLI::App app(
      "kilnd, the kiln compilation daemon. Compiles PyTorch graphs for processes of this machine and, by "
      "TLS, of others.");
  app.set_version_flag("--version", absl::StrCat("kilnd ", KILN_VERSION, " (build ", OwnBuildId(), ")"));
  app.add_option("--config", flags->config_file, "Textproto of kiln.v1.Config; flags override it");
  app.add_option("--socket", flags->socket, "Unix socket to listen on (absolute path)");
  app.add_option("--tcp", flags->tcp, "HOST:PORT to listen on, by mutual TLS (listen.tls); port 0 picks one");
  app.add_option("--store", flags->store, "Directory of the store (absolute path)");
  app.add_option(
      "--signing-key", flags->signing_key,
      "File of the key that signs what is made here, made where there is none; default: signing.pem "
      "beside the configuration, or the socket");
  app.add_option("--workers", flags->workers, "Compiler processes; default: cores that kilnd may use");
  app.add_option("--worker-binary", flags->worker, "Default: kiln-worker beside kilnd");
  app.add_option("--cublas-lt", flags->cublas_lt,
                 "cuBLASLt's file, for max-autotune; default: what the system's loader finds");
  app.add_option("--cudnn", flags->cudnn, "cuDNN's file; likewise");
  app.add_option("--cuda-driver", flags->cuda_driver, "libcuda.so.1's file; likewise");
  app.add_option("--upstream", flags->upstream.address,
                 "HOST:PORT of a kilnd that is asked for what this one lacks, by mutual TLS; or unix:/path");
  app.add_option("--upstream-ca", flags->upstream.authority,
                 "PEM file: who signed the upstream's certificate");
  app.add_option("--upstream-cert", flags->upstream.certificate, "PEM file: this daemon's certificate there");
  app.add_option("--upstream-key", flags->upstream.key, "PEM file (0600): its key");
  app.add_option("--idle-exit-seconds", flags->idle_exit_seconds,
                 "Exit after so long without a call; 0: never")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--log-file", flags->log_file, "Append the log here instead of standard error");
  app.add_flag("--embedded", flags->embedded,
               "Serve the user's own processes from the background: sockets, lock and log in --runtime-dir; "
               "exits 0 at once if another daemon serves it already");
  app.add_option("--runtime-dir", flags->runtime_dir, "Directory for --embedded");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help, version
    std::cerr << "kilnd: " << error.what() << "; kilnd --help tells what it takes\n";
    return kExitUsage;
  }
  if (flags->embedded && (flags->runtime_dir.empty() || flags->store.empty())) {
    std::cerr << "kilnd: --embedded needs --runtime-dir and --store\n";
    return kExitUsage;
  }
  return -1;
}

void SetUpstream(const Flags& flags, v1::UpstreamConfig* config) {
  if (!flags.upstream.address.empty()) config->set_address(flags.upstream.address);
  if (!flags.upstream.certificate.empty()) config->mutable_tls()->set_certificate(flags.upstream.certificate);
  if (!flags.upstream.key.empty()) config->mutable_tls()->set_key(flags.upstream.key);
  if (!flags.upstream.authority.empty()) config->mutable_tls()->set_authority(flags.upstream.authority);
}

absl::StatusOr<v1::Config> MakeConfig(const Flags& flags) {
  v1::Config config;
  if (!flags.config_file.empty()) {
    KILN_ASSIGN_OR_RETURN(config, ReadConfigFile(flags.config_file));
  }
  if (flags.embedded) {
    config.mutable_listen()->set_unix_socket(absl::StrCat(flags.runtime_dir, "/kilnd.sock"));
    if (config.idle_exit_seconds() == 0) config.set_idle_exit_seconds(kEmbeddedIdleSeconds);
    if (config.has_tier()) return absl::InvalidArgumentError("tier: an embedded daemon has none");
    UseAllCores();
  }
  if (!flags.socket.empty()) config.mutable_listen()->set_unix_socket(flags.socket);
  if (!flags.tcp.empty()) config.mutable_listen()->set_tcp(flags.tcp);
  if (!flags.store.empty()) config.mutable_store()->set_directory(flags.store);
  if (flags.workers > 0) config.mutable_workers()->set_count(flags.workers);
  if (!flags.worker.empty()) config.mutable_workers()->set_binary(flags.worker);
  if (flags.idle_exit_seconds >= 0) config.set_idle_exit_seconds(flags.idle_exit_seconds);
  if (!flags.cublas_lt.empty()) config.mutable_measuring()->set_cublas_lt(flags.cublas_lt);
  if (!flags.cudnn.empty()) config.mutable_measuring()->set_cudnn(flags.cudnn);
  if (!flags.cuda_driver.empty()) config.mutable_measuring()->set_driver(flags.cuda_driver);
  if (!flags.signing_key.empty()) config.mutable_signing()->set_key_file(flags.signing_key);
  const bool names_upstream = !flags.upstream.address.empty() || !flags.upstream.certificate.empty() ||
                              !flags.upstream.key.empty() || !flags.upstream.authority.empty();
  if (names_upstream) SetUpstream(flags, config.mutable_upstream());
  ApplyDefaults(FolderOfSelf(), flags.config_file, &config);
  KILN_RETURN_IF_ERROR(CheckConfig(config));
  return config;
}

std::string ParentOf(const std::string& path) { return path.substr(0, std::max<size_t>(1, path.rfind('/'))); }

// The parent of all kiln-tuners; nullptr where there is nothing to measure on, and `without` says why.
std::unique_ptr<Zygote> ForkMeasuring(const v1::MeasuringConfig& config, std::string* without) {
  if (config.off()) {
    *without = "measuring is off in the daemon's configuration";
    return nullptr;
  }
  if (config.gpus() == 0) {
    *without = "the daemon's machine shows no GPU to measure on";
    return nullptr;
  }
  auto zygote = Zygote::Fork(
      {.binary = config.binary(),
       .args = {absl::StrCat("--cublas-lt=", config.cublas_lt()), absl::StrCat("--cudnn=", config.cudnn()),
                absl::StrCat("--driver=", config.driver())},
       .gpu = true});
  if (zygote.ok()) return *std::move(zygote);
  *without = std::string(zygote.status().message());
  spdlog::warn("max-autotune measures nothing: {}", *without);
  return nullptr;
}

// Where max-autotune measures, or why it does not.
struct Measuring {
  std::unique_ptr<Zygote> zygote;
  std::string without;
};

std::unique_ptr<MeasuringPool> NewMeasuringPool(const v1::MeasuringConfig& config, Zygote* zygote) {
  if (zygote == nullptr) return nullptr;
  MeasuringPool::Options options;
  options.gpus = config.gpus();
  options.call_limit = absl::Seconds(config.candidate_seconds_max());
  options.lease_limit = absl::Seconds(config.lease_seconds_max());
  return std::make_unique<MeasuringPool>(options, zygote);
}

enum class End { kAsked, kIdle, kNoMoreWorkers };

// Blocks until a signal asks for the end, the daemon has been idle for long enough, or nothing can start
// workers any more: another daemon can.
End WaitForEnd(const v1::Config& config, const sigset_t& signals, const Stats& stats,
               Coordinator* coordinator, const Zygote& zygote, const std::function<void()>& end_idle) {
  MonotonicTime idle_since = std::chrono::steady_clock::now();
  uint64_t calls_seen = stats.calls.begun;
  while (true) {
    const timespec step{0, 200'000'000};
    if (sigtimedwait(&signals, nullptr, &step) > 0) return End::kAsked;
    if (!zygote.Lives()) return End::kNoMoreWorkers;
    end_idle();
    if (config.idle_exit_seconds() == 0) continue;
    const MonotonicTime now = std::chrono::steady_clock::now();
    if (stats.calls.running > 0 || stats.calls.begun != calls_seen || coordinator->load().flights > 0) {
      calls_seen = stats.calls.begun;
      idle_since = now;
    } else if (now - idle_since >= std::chrono::seconds(config.idle_exit_seconds())) {
      return End::kIdle;
    }
  }
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, HOST_NAME_MAX);
  return name;
}

// Null where none is configured.
absl::StatusOr<std::unique_ptr<SharedTier>> OpenTier(const v1::Config& config, const Signatures& signatures,
                                                     const std::string& fingerprint) {
  if (!config.has_tier()) return nullptr;
  KILN_ASSIGN_OR_RETURN(SharedTier::Options options, TierOptions(config.tier()));
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<SharedTier> tier,
                        SharedTier::Create(std::move(options), &signatures));
  const v1::TierStatus status = tier->status();
  if (status.connected()) {
    spdlog::info("shared tier at {}", status.address());
  } else {
    spdlog::warn("the shared tier at {} does not answer yet: {}", status.address(), status.message());
  }
  v1::DaemonRecord own;
  own.set_host(HostName());
  own.set_version(KILN_VERSION);
  own.set_build_id(OwnBuildId());
  own.set_compiler_fingerprint(fingerprint);
  std::vector<std::string> namespaces;
  for (const v1::TenantConfig& tenant : config.listen().tenants()) namespaces.push_back(tenant.name());
  KILN_RETURN_IF_ERROR(tier->members()->Announce(std::move(own), std::move(namespaces)));
  return tier;
}

// Null where none is configured.
absl::StatusOr<std::unique_ptr<Upstream>> OpenUpstream(const v1::Config& config) {
  if (!config.has_upstream()) return nullptr;
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<Upstream> upstream,
                        Upstream::Create(UpstreamOptions(config.upstream())));
  if (const absl::Status usable = upstream->Usable(); usable.ok())
    spdlog::info("what this kilnd lacks is asked of {}", upstream->address());
  return upstream;
}

// Null where none is configured, or nothing is known of it yet: then the daemon compiles by itself, and ends
// soon.
absl::StatusOr<std::unique_ptr<Upstream>> OpenEmbeddedUpstream(v1::Config* config) {
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<Upstream> upstream, OpenUpstream(*config));
  if (upstream == nullptr) return nullptr;
  if (const absl::Status adopted = AdoptUpstream(*upstream, geteuid(), config); !adopted.ok()) {
    spdlog::warn("{}; this kilnd compiles by itself, and a later one asks again", adopted.ToString());
    config->clear_upstream();
    // 0 is never.
    if (config->idle_exit_seconds() == 0 || config->idle_exit_seconds() > kUnknownUpstreamIdleSeconds)
      config->set_idle_exit_seconds(kUnknownUpstreamIdleSeconds);
    return nullptr;
  }
  KILN_RETURN_IF_ERROR(CheckConfig(*config));
  return upstream;
}

BundleCompiler BundleCompilerOf(const WorkerPool& pool) {
  BundleCompiler compiler;
  compiler.fingerprint = pool.hello().compiler_fingerprint();
  compiler.program_format = kProgramFormatVersion;
  compiler.kernel_abi = KILN_KERNEL_ABI_VERSION;
  compiler.tuning_policy = std::string(Tuner::Policy());
  compiler.kiln_version = KILN_VERSION;
  return compiler;
}

// What compiles and keeps, below what serves. In the order in which it is made: a later part uses those
// before it, and ends first.
struct Engine {
  absl::Status OpenStore(WhereInUse where_in_use);
  absl::Status StartWorkers(Zygote* zygote, const Measuring& measuring);
  absl::Status StartCoordinator(const Measuring& measuring);

  v1::Config config;
  Stats stats;
  std::unique_ptr<Upstream> upstream;  // null: none
  std::optional<Signatures> signatures;
  std::optional<HitIndex> index;
  std::unique_ptr<Store> store;
  std::unique_ptr<WorkerPool> pool;
  std::unique_ptr<MeasuringPool> gpus;  // null: none
  std::unique_ptr<SharedTier> tier;     // null: none
  std::optional<TuningRecords> tuning_records;
  std::optional<TierWorkers> tier_workers;
  std::optional<Tuner> tuner;
  std::unique_ptr<Coordinator> coordinator;
};

absl::Status Engine::OpenStore(WhereInUse where_in_use) {
  KILN_ASSIGN_OR_RETURN(upstream, where_in_use == WhereInUse::kMemoryOnly ? OpenEmbeddedUpstream(&config)
                                                                          : OpenUpstream(config));
  // After the fork of those who start workers: none of them ever held the key.
  KILN_ASSIGN_OR_RETURN(signatures, Signatures::Load(config.signing()));
  index.emplace(config.store().hit_index_bytes());
  StoreEnvironment environment;
  environment.signatures = &*signatures;
  KILN_ASSIGN_OR_RETURN(store, NewStore(config.store(), environment, where_in_use));
  store->OnEvicted([this](absl::Span<const EntryId> ids) {
    for (const EntryId& id : ids) {
      if (id.kind == EntryKind::kManifest) index->Erase(absl::string_view(id.key).substr(0, kDigestBytes));
    }
  });
  if (const StoreStatistics facts = store->statistics(); !facts.writable) {
    spdlog::warn("the store cannot be written: {}", facts.message);
  }
  // A store that an embedded daemon has to itself is named by its build.
  if (where_in_use == WhereInUse::kMemoryOnly) {
    const size_t gone = RemoveOldStores(config.store().directory(), time(nullptr));
    if (gone > 0) spdlog::info("{} stores of builds that nobody has run for 14 days are removed", gone);
  }
  return absl::OkStatus();
}

absl::Status Engine::StartWorkers(Zygote* zygote, const Measuring& measuring) {
  WorkerPool::Options options;
  options.workers = config.workers().count();
  options.jobs_max = config.workers().jobs_max();
  options.memory_bytes = config.workers().memory_bytes();
  options.resident_bytes_max = config.workers().resident_bytes_max();
  absl::StatusOr<std::unique_ptr<WorkerPool>> started = WorkerPool::Start(options, zygote, &stats);
  if (!started.ok()) {
    return absl::Status(started.status().code(),
                        absl::StrCat(config.workers().binary(), ": ", started.status().message()));
  }
  pool = *std::move(started);
  store->SetCompiler(pool->hello().compiler_fingerprint());
  gpus = NewMeasuringPool(config.measuring(), measuring.zygote.get());
  return absl::OkStatus();
}

absl::Status Engine::StartCoordinator(const Measuring& measuring) {
  const std::string& fingerprint = pool->hello().compiler_fingerprint();
  KILN_ASSIGN_OR_RETURN(tier, OpenTier(config, *signatures, fingerprint));
  tuning_records.emplace(&*signatures, store.get(), tier.get());
  tier_workers.emplace(config, fingerprint, tier.get());
  KILN_RETURN_IF_ERROR(tier_workers->StartAsking(store.get(), &*tuning_records, &*index));
  tuner.emplace(gpus.get(), measuring.without, &*tuning_records, tier_workers->elsewhere(), &stats);
  KILN_ASSIGN_OR_RETURN(
      coordinator, Coordinator::Create(config, &*signatures, store.get(), tier.get(), upstream.get(), &*index,
                                       pool.get(), &*tuner, &stats));
  return absl::OkStatus();
}

// What serves, in the order in which it is made; it ends before the engine does.
struct Services {
  // `of` outlives it.
  explicit Services(Engine* of) : engine(*of) {}

  absl::Status Start();
  // Who has connected is served, and nobody else.
  void WaitForLast();
  // Nothing starts any more, and what runs has the time that the configuration gives it.
  void Drain();

  Engine& engine;
  std::unique_ptr<ThreadExecutor> people;
  std::optional<SpoolBudget> spools;
  std::optional<SentObjects> sent;
  std::unique_ptr<ThreadExecutor> bundles;
  std::atomic<bool> draining{false};
  AdminFacts facts;
  std::unique_ptr<SilenceWatch> silence;
  std::atomic<KilnServer*> listening{nullptr};
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::unique_ptr<PrometheusListener> metrics;  // null: none
  std::unique_ptr<KilnServer> server;

 private:
  void SetFacts();
  std::vector<grpc::Service*> ServicesOf(const Gate& gate, const std::string& address);
  absl::Status StartMetrics();
};

absl::Status Services::Start() {
  const v1::Config& config = engine.config;
  KILN_ASSIGN_OR_RETURN(people, ThreadExecutor::Create(kPeopleThreads));
  spools.emplace(config.store().budget_bytes() != 0 ? config.store().budget_bytes()
                                                    : kStoreBudgetBytesDefault);
  sent.emplace(config.admission().objects_bytes_max());
  KILN_ASSIGN_OR_RETURN(bundles, ThreadExecutor::Create(kBundleThreads));
  SetFacts();
  // One for all: a server's services are made at a connection, where nothing more may fail.
  KILN_ASSIGN_OR_RETURN(silence,
                        SilenceWatch::Create(std::chrono::seconds(config.admission().silent_seconds_max())));
  // Before the first call is served: an address that cannot be had ends kilnd while nobody relies on it.
  if (!config.metrics().address().empty()) KILN_RETURN_IF_ERROR(StartMetrics());
  KILN_ASSIGN_OR_RETURN(
      server, KilnServer::Start(config.listen(), [this](const Gate& gate, const std::string& address) {
        return ServicesOf(gate, address);
      }));
  listening = server.get();
  spdlog::info("kilnd {} serves {} with {} workers of compiler {}", KILN_VERSION, server->address(),
               engine.pool->size(), engine.pool->hello().compiler_fingerprint());
  return absl::OkStatus();
}

void Services::SetFacts() {
  facts.started_unix_seconds = time(nullptr);
  facts.draining = &draining;
  facts.tier = engine.tier.get();
  facts.tier_workers = &*engine.tier_workers;
  facts.tuning_records = &*engine.tuning_records;
  facts.upstream = engine.upstream.get();
  facts.connections = [this] {
    KilnServer* const serving = listening;
    return serving == nullptr ? std::map<std::string, size_t>() : serving->Connections();
  };
}

std::vector<grpc::Service*> Services::ServicesOf(const Gate& gate, const std::string& address) {
  const v1::Config& config = engine.config;
  const Signatures* const signatures = &*engine.signatures;
  Store* const store = engine.store.get();
  WorkerPool* const pool = engine.pool.get();
  Coordinator* const coordinator = engine.coordinator.get();
  Stats* const stats = &engine.stats;
  std::vector<grpc::Service*> made;
  const auto add = [&](std::unique_ptr<grpc::Service> service) {
    made.push_back(service.get());
    services.push_back(std::move(service));
  };
  facts.address = address;
  const ConnectionLost lost = [this](const std::string& peer) {
    KilnServer* const serving = listening;
    return serving != nullptr && serving->Lost(peer);
  };
  add(std::make_unique<CompileService>(config, gate, lost, signatures, silence.get(), &*sent, pool,
                                       engine.upstream.get(), coordinator, stats));
  add(std::make_unique<AdminService>(config, gate, facts, signatures, store, pool, engine.gpus.get(),
                                     coordinator, people.get(), stats));
  add(std::make_unique<BundleService>(config, gate, BundleCompilerOf(*pool), signatures, silence.get(), store,
                                      coordinator, &*spools, bundles.get(), stats));
  using grpc::reflection::v1::ServerReflection;
  add(std::make_unique<ReflectionService<ServerReflection>>(gate, silence.get(), stats));
  using OldReflection = grpc::reflection::v1alpha::ServerReflection;
  add(std::make_unique<ReflectionService<OldReflection>>(gate, silence.get(), stats));
  return made;
}

absl::Status Services::StartMetrics() {
  KILN_ASSIGN_OR_RETURN(metrics, PrometheusListener::Start(engine.config.metrics().address(), [this] {
                          return ReadMetrics(engine.stats, *engine.store, engine.coordinator->load(),
                                             *engine.pool, engine.tier.get(), &*engine.tier_workers,
                                             engine.upstream.get());
                        }));
  spdlog::info("metrics at http://{}/metrics", metrics->address());
  return absl::OkStatus();
}

void Services::WaitForLast() {
  // Who connected before the socket went is served like anybody else.
  do {
    absl::SleepFor(kBacklogGrace);
  } while (engine.stats.calls.running > 0 || engine.coordinator->load().flights > 0);
}

void Services::Drain() {
  draining = true;
  engine.tier_workers->Stop();
  if (!engine.coordinator->Drain(absl::Seconds(engine.config.drain_seconds())))
    spdlog::warn("jobs still run at the end of the drain; they are cancelled");
  server->Shutdown(absl::Now() + kLastWordsGrace);
  metrics = nullptr;
}

// Ends processes that measure and are idle, on a thread of its own: a process that does not die holds who
// waits for it, and signals are heard elsewhere. One at a time.
class IdleMeasuring {
 public:
  // `gpus` outlives it; null: there are none.
  explicit IdleMeasuring(MeasuringPool* gpus) : gpus_(gpus) {}
  absl::Status Start() {
    if (gpus_ != nullptr) {
      KILN_ASSIGN_OR_RETURN(thread_, ThreadExecutor::Create(1));
    }
    return absl::OkStatus();
  }
  void End() {
    if (thread_ == nullptr || ending_.exchange(true)) return;
    thread_->Post([this] {
      gpus_->EndIdle();
      ending_ = false;
    });
  }

 private:
  MeasuringPool* const gpus_;
  std::atomic<bool> ending_{false};
  std::unique_ptr<ThreadExecutor> thread_;  // last: it uses both
};

absl::Status Serve(v1::Config config, WhereInUse where_in_use, Zygote* zygote, const Measuring& measuring,
                   const sigset_t& signals) {
  Engine engine;
  engine.config = std::move(config);
  KILN_RETURN_IF_ERROR(engine.OpenStore(where_in_use));
  KILN_RETURN_IF_ERROR(engine.StartWorkers(zygote, measuring));
  KILN_RETURN_IF_ERROR(engine.StartCoordinator(measuring));
  // Whatever happens below: what measures uses the coordinator.
  const absl::Cleanup stop_tier_workers = [&engine] { engine.tier_workers->Stop(); };
  KILN_RETURN_IF_ERROR(engine.tier_workers->StartServing(engine.gpus.get(), &*engine.tuner,
                                                         &*engine.tuning_records, engine.coordinator.get()));
  Services services(&engine);
  KILN_RETURN_IF_ERROR(services.Start());
  IdleMeasuring idle_measuring(engine.gpus.get());
  KILN_RETURN_IF_ERROR(idle_measuring.Start());
  const End end = WaitForEnd(engine.config, signals, engine.stats, engine.coordinator.get(), *zygote,
                             [&idle_measuring] { idle_measuring.End(); });
  if (end != End::kNoMoreWorkers) spdlog::info(end == End::kIdle ? "idle: exit" : "asked to stop: drain");
  services.server->Unlink();
  if (end == End::kIdle) services.WaitForLast();
  services.Drain();
  engine.coordinator = nullptr;
  engine.pool = nullptr;
  spdlog::info("stopped");
  if (end == End::kNoMoreWorkers) return absl::UnavailableError("the process that starts workers is gone");
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags, const v1::Config& config) {
  umask(0077);
  KILN_RETURN_IF_ERROR(AllowOpenFiles());
  const std::string& socket = config.listen().unix_socket();
  std::unique_ptr<FileLock> lock;
  if (!socket.empty()) {
    KILN_RETURN_IF_ERROR(MakePrivateDirectory(ParentOf(socket)));
    const std::string path =
        flags.embedded ? absl::StrCat(flags.runtime_dir, "/kilnd.lock") : absl::StrCat(socket, ".lock");
    KILN_ASSIGN_OR_RETURN(lock, FileLock::Acquire(path));
  }
  if (flags.embedded) KILN_RETURN_IF_ERROR(GoToBackground());
  const std::string log = flags.log_file.empty() && flags.embedded
                              ? absl::StrCat(flags.runtime_dir, "/kilnd.log")
                              : flags.log_file;
  if (!log.empty()) KILN_RETURN_IF_ERROR(RedirectOutput(log));
  SetUpLog();
  // Blocked before there is a thread, so that every thread inherits it and `sigtimedwait` alone sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  KILN_ASSIGN_OR_RETURN(
      std::unique_ptr<Zygote> zygote,
      Zygote::Fork({.binary = config.workers().binary(),
                    .args = {absl::StrCat("--memory-bytes=", config.workers().memory_bytes())}}));
  Measuring measuring;
  measuring.zygote = ForkMeasuring(config.measuring(), &measuring.without);
  // No process of the same user reads or writes its memory. After the zygotes, which write files of their own
  // /proc.
  prctl(PR_SET_DUMPABLE, 0);
  // Two places of embedded daemons may share one store (XDG_RUNTIME_DIR set here, not there): both serve.
  const WhereInUse where_in_use = flags.embedded ? WhereInUse::kMemoryOnly : WhereInUse::kRefuse;
  absl::Status status = Serve(config, where_in_use, zygote.get(), measuring, signals);
  if (!status.ok()) spdlog::error("{}", status.ToString());
  return status;
}

int Main(int argc, char** argv) {
#ifdef NDEBUG
  // Debian builds absl with its search for deadlocks on, which takes one lock of the process at every other.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  // What gRPC would write to standard error comes back as a status as well, in words.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  Flags flags;
  if (const int code = ParseFlags(argc, argv, &flags); code >= 0) return code;
  absl::StatusOr<v1::Config> config = MakeConfig(flags);
  if (!config.ok()) {
    std::cerr << "kilnd: " << config.status().message() << "\n";
    return kExitUsage;
  }
  const absl::Status status = Run(flags, *config);
  if (status.ok()) return 0;
  if (flags.embedded && absl::IsAlreadyExists(status)) return 0;
  std::cerr << "kilnd: " << status.message() << "\n";
  return kExitFailure;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
