#include "server/config/config.h"

#include <sched.h>
#include <sys/un.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cache/cache_limits.h"
#include "cache/shared/tier_config.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/host_memory.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/tls_files.h"
#include "compiler/support/zstd.h"
#include "compiler/worker/namespaces.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "server/server_limits.h"
#include "server/upstream/upstream_config.h"

namespace kiln {
namespace {

constexpr char kTenantNameRule[] = "1 to 64 letters, digits, \"_\", \"-\", \".\"";
constexpr uint32_t kNobody = 65534;
constexpr uint64_t kListenBytesDefault = 512u << 20;

class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text.empty()) text = absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
  }
  std::string text;
};

absl::Status Refuse(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", why));
}

absl::Status CheckAtMost(absl::string_view field, uint64_t value, uint64_t max) {
  if (value <= max) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value, " is more than ", max));
}

absl::Status CheckAtLeast(absl::string_view field, uint64_t value, uint64_t min) {
  if (value >= min) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value, " is less than ", min));
}

// Of "HOST:PORT".
absl::StatusOr<absl::string_view> HostOf(absl::string_view field, absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return Refuse(field, "is no HOST:PORT");
  uint32_t port = 0;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return Refuse(field, "the port is no number up to 65535");
  }
  return address.substr(0, colon);
}

bool IsTenantName(const std::string& name) {
  const auto valid = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.'; };
  return !name.empty() && name.size() <= kTenantNameBytesMax && absl::c_all_of(name, valid);
}

absl::Status CheckRoles(const v1::TenantConfig& tenant, const absl::flat_hash_set<std::string>& names) {
  bool forwards = false;
  for (const int role : tenant.roles()) {
    if (role == v1::ROLE_UNSPECIFIED || !v1::Role_IsValid(role)) {
      return Refuse("listen.tenants.roles", absl::StrCat(tenant.name(), ": ", role, " is no role"));
    }
    forwards = forwards || role == v1::ROLE_FORWARD;
  }
  if (forwards == tenant.speaks_for().empty()) {
    return Refuse("listen.tenants.speaks_for",
                  absl::StrCat(tenant.name(), ": goes with ROLE_FORWARD, one is there without the other"));
  }
  for (const std::string& name : tenant.speaks_for()) {
    if (!names.contains(name)) {
      return Refuse("listen.tenants.speaks_for", absl::StrCat(tenant.name(), ": there is no tenant ", name));
    }
  }
  return absl::OkStatus();
}

// What a tenant's callers compile is not for others to run.
absl::Status CheckReads(const v1::TenantConfig& tenant, const absl::flat_hash_set<std::string>& names) {
  const auto refuse = [&](absl::string_view why) {
    return Refuse("listen.tenants.reads", absl::StrCat(tenant.name(), ": ", why));
  };
  if (tenant.reads_size() > kTenantReadsMax) return refuse(absl::StrCat("more than ", kTenantReadsMax));
  absl::flat_hash_set<std::string> seen;
  for (const std::string& name : tenant.reads()) {
    if (!IsTenantName(name))
      return refuse(absl::StrCat("\"", name, "\" is no namespace's name: ", kTenantNameRule));
    if (names.contains(name)) {
      return refuse(absl::StrCat("\"", name,
                                 "\" is a tenant, who compiles there; a namespace that others read is "
                                 "filled by `kilnctl import --into` alone"));
    }
    if (!seen.insert(name).second) return refuse(absl::StrCat(name, " is there twice"));
  }
  return absl::OkStatus();
}

absl::Status CheckIdentities(const v1::ListenConfig& listen) {
  absl::flat_hash_set<std::string> uris;
  for (const v1::TenantConfig& tenant : listen.tenants()) {
    for (const std::string& uri : tenant.identities()) {
      if (uri.empty() || uri.size() > kIdentityBytesMax || !absl::StrContains(uri, ':')) {
        return Refuse(
            "listen.tenants.identities",
            absl::StrCat(tenant.name(), ": \"", uri, "\" is no URI, such as spiffe://example.org/train"));
      }
      if (!uris.insert(uri).second) {
        return Refuse("listen.tenants.identities", absl::StrCat(uri, " is there twice"));
      }
    }
  }
  if (uris.empty() == listen.has_tls()) {
    return listen.has_tls() ? Refuse("listen.tls",
                                     "no tenant has identities, so that nobody could call "
                                     "(listen.tenants.identities)")
                            : Refuse("listen.tenants.identities", "are of certificates: give listen.tls");
  }
  return absl::OkStatus();
}

absl::Status CheckTcp(const v1::ListenConfig& listen) {
  if (listen.tcp().empty()) {
    return listen.has_tls() ? Refuse("listen.tls", "is for listen.tcp, which is not given")
                            : absl::OkStatus();
  }
  KILN_RETURN_IF_ERROR(HostOf("listen.tcp", listen.tcp()).status());
  if (!listen.has_tls()) {
    if (!listen.dangerously_without_tls()) {
      return Refuse("listen.tcp",
                    "is mutual TLS: give listen.tls, and listen.tenants.identities; or, where "
                    "everybody on this machine may call, listen.dangerously_without_tls");
    }
    if (!listen.tenants().empty()) {
      return Refuse("listen.tcp", "can't be had with tenants and without TLS: it would not say who calls");
    }
    return CheckLoopback("listen.tcp", listen.tcp());
  }
  if (listen.dangerously_without_tls()) {
    return Refuse("listen.dangerously_without_tls", "contradicts listen.tls");
  }
  KILN_RETURN_IF_ERROR(
      CheckTlsPaths({listen.tls().certificate(), listen.tls().key(), listen.tls().authority()},
                    {"listen.tls.certificate", "listen.tls.key", "listen.tls.authority"}));
  return CheckAtMost("listen.tls.reload_seconds", listen.tls().reload_seconds(), kSecondsMax);
}

absl::Status CheckTenants(const v1::ListenConfig& listen) {
  if (listen.tenants().empty()) return absl::OkStatus();
  absl::flat_hash_set<std::string> names;
  absl::flat_hash_set<uint32_t> uids;
  for (const v1::TenantConfig& tenant : listen.tenants()) {
    if (!IsTenantName(tenant.name())) {
      return Refuse("listen.tenants.name",
                    absl::StrCat("\"", tenant.name(), "\" is no tenant's name: ", kTenantNameRule));
    }
    if (!names.insert(tenant.name()).second) {
      return Refuse("listen.tenants.name", absl::StrCat(tenant.name(), " is there twice"));
    }
    if (tenant.uids().empty() && tenant.identities().empty()) {
      return Refuse("listen.tenants.uids", absl::StrCat(tenant.name(), " has none, and no identities"));
    }
    if (tenant.has_compile_seconds_per_hour()) {
      KILN_RETURN_IF_ERROR(
          CheckAtLeast("listen.tenants.compile_seconds_per_hour", tenant.compile_seconds_per_hour(), 1));
    }
    for (const uint32_t uid : tenant.uids()) {
      if (uid == kNobody) return Refuse("listen.tenants.uids", "65534 is nobody's own");
      if (uid == kWorkerUid)
        return Refuse("listen.tenants.uids", absl::StrCat(kWorkerUid, " is what workers run as"));
      if (!uids.insert(uid).second) {
        return Refuse("listen.tenants.uids", absl::StrCat(uid, " belongs to two tenants"));
      }
    }
  }
  for (const v1::TenantConfig& tenant : listen.tenants()) {
    KILN_RETURN_IF_ERROR(CheckRoles(tenant, names));
    KILN_RETURN_IF_ERROR(CheckReads(tenant, names));
  }
  return absl::OkStatus();
}

void ListenDefaults(v1::ListenConfig* listen) {
  if (listen->connections_max() == 0) listen->set_connections_max(2048);
  if (listen->tenant_connections_max() == 0) listen->set_tenant_connections_max(1024);
  if (listen->handshake_seconds_max() == 0) listen->set_handshake_seconds_max(10);
  if (listen->idle_seconds_max() == 0) listen->set_idle_seconds_max(300);
  if (listen->age_seconds_max() == 0) listen->set_age_seconds_max(3600);
  if (listen->age_grace_seconds_max() == 0) listen->set_age_grace_seconds_max(1800);
  if (listen->streams_max() == 0) listen->set_streams_max(100);
  if (listen->has_tls() && listen->tls().reload_seconds() == 0) listen->mutable_tls()->set_reload_seconds(10);
  if (listen->memory_bytes() == 0) {
    listen->set_memory_bytes(std::max(kListenBytesDefault, kListenBytesMin * MemoryPartsOf(*listen)));
  }
}

absl::Status CheckConnections(const v1::ListenConfig& listen) {
  KILN_RETURN_IF_ERROR(CheckAtMost("listen.connections_max", listen.connections_max(), kConnectionsMax));
  KILN_RETURN_IF_ERROR(
      CheckAtMost("listen.tenant_connections_max", listen.tenant_connections_max(), kConnectionsMax));
  if (!listen.tenants().empty() && listen.tenant_connections_max() > listen.connections_max())
    return Refuse("listen.tenant_connections_max", "is more than listen.connections_max");
  KILN_RETURN_IF_ERROR(
      CheckAtMost("listen.handshake_seconds_max", listen.handshake_seconds_max(), kSecondsMax));
  KILN_RETURN_IF_ERROR(CheckAtMost("listen.idle_seconds_max", listen.idle_seconds_max(), kSecondsMax));
  KILN_RETURN_IF_ERROR(CheckAtMost("listen.age_seconds_max", listen.age_seconds_max(), kSecondsMax));
  KILN_RETURN_IF_ERROR(
      CheckAtMost("listen.age_grace_seconds_max", listen.age_grace_seconds_max(), kSecondsMax));
  KILN_RETURN_IF_ERROR(CheckAtMost("listen.streams_max", listen.streams_max(), kStreamsMax));
  return CheckAtLeast("listen.memory_bytes", listen.memory_bytes(), kListenBytesMin * MemoryPartsOf(listen));
}

absl::Status CheckUpstream(const v1::Config& config) {
  if (!config.has_upstream()) return absl::OkStatus();
  KILN_RETURN_IF_ERROR(CheckUpstreamConfig(config.upstream()));
  if (config.has_tier())
    return Refuse("upstream", "goes without tier: it is the upstream that has the cluster's");
  if (config.upstream().names_tenants() && config.listen().tenants().empty())
    return Refuse("upstream.names_tenants", "takes listen.tenants, which say whom a caller may speak for");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Config> ReadConfigFile(const std::string& path) {
  std::ifstream file(path);
  // A directory opens as a file, and does not read.
  if (!file || std::filesystem::is_directory(path)) {
    return absl::NotFoundError(absl::StrCat("configuration file ", path, " cannot be read"));
  }
  std::stringstream text;
  text << file.rdbuf();
  v1::Config config;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(text.str(), &config)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.text));
  }
  return config;
}

// Slurm, containers and `taskset` leave a process a part of the machine.
uint32_t CountCores() {
  cpu_set_t set;
  uint32_t cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<uint32_t>(CPU_COUNT(&set)) : 1;
  std::ifstream limit("/sys/fs/cgroup/cpu.max");  // microseconds of a period, or "max"
  uint64_t quota = 0, period = 0;
  if (limit >> quota >> period && period > 0)
    cores = std::min(cores, static_cast<uint32_t>(std::max<uint64_t>(1, quota / period)));
  return cores;
}

uint32_t CountGpus() {
  uint32_t count = 0;
  std::error_code ignored;
  for (uint32_t i = 0; i < kGpusMax; ++i)
    count += std::filesystem::exists(absl::StrCat("/dev/nvidia", i), ignored);
  return count;
}

void ApplyDefaults(const std::string& programs, const std::string& file, v1::Config* config) {
  if (config->drain_seconds() == 0) config->set_drain_seconds(30);
  ListenDefaults(config->mutable_listen());
  if (config->has_tier()) TierDefaults(config->mutable_tier());
  if (config->has_upstream()) UpstreamDefaults(config->mutable_upstream());
  if (config->signing().key_file().empty()) {
    const std::filesystem::path beside = !file.empty() ? file : config->listen().unix_socket();
    if (!beside.empty()) {
      config->mutable_signing()->set_key_file(std::filesystem::absolute(beside).parent_path() /
                                              "signing.pem");
    }
  }
  if (config->store().hit_index_bytes() == 0)
    config->mutable_store()->set_hit_index_bytes(uint64_t{256} << 20);
  v1::WorkerPoolConfig* workers = config->mutable_workers();
  if (workers->count() == 0) workers->set_count(CountCores());
  if (workers->memory_bytes() == 0)
    workers->set_memory_bytes(WorkerBytesDefault(HostMemoryBytes(), workers->count()));
  if (workers->plan_seconds_max() == 0) workers->set_plan_seconds_max(120);
  if (workers->emit_seconds_max() == 0) workers->set_emit_seconds_max(60);
  if (workers->jobs_max() == 0) workers->set_jobs_max(500);
  if (workers->resident_bytes_max() == 0) workers->set_resident_bytes_max(workers->memory_bytes() / 4);
  if (workers->binary().empty()) workers->set_binary(programs + "kiln-worker");
  v1::MeasuringConfig* measuring = config->mutable_measuring();
  if (measuring->gpus() == 0) measuring->set_gpus(CountGpus());
  if (measuring->binary().empty()) measuring->set_binary(programs + "kiln-tuner");
  if (measuring->candidate_seconds_max() == 0) measuring->set_candidate_seconds_max(10);
  if (measuring->lease_seconds_max() == 0) measuring->set_lease_seconds_max(5);
  v1::AdmissionConfig* admission = config->mutable_admission();
  if (admission->queue_max() == 0) admission->set_queue_max(256);
  if (admission->graph_bytes_max() == 0) admission->set_graph_bytes_max(kGraphBytesMax);
  if (admission->graphs_bytes_max() == 0) admission->set_graphs_bytes_max(uint64_t{1} << 30);
  if (admission->silent_seconds_max() == 0) admission->set_silent_seconds_max(60);
  if (admission->objects_bytes_max() == 0) admission->set_objects_bytes_max(uint64_t{512} << 20);
}

absl::Status CheckConfig(const v1::Config& config) {
  const v1::ListenConfig& listen = config.listen();
  if (listen.unix_socket().empty() && listen.tcp().empty()) {
    return Refuse("listen", "neither unix_socket nor tcp is given (--socket, --tcp)");
  }
  if (!listen.unix_socket().empty()) {
    if (listen.unix_socket()[0] != '/') return Refuse("listen.unix_socket", "is no absolute path");
    if (listen.unix_socket().size() >= sizeof(sockaddr_un::sun_path)) {
      return Refuse("listen.unix_socket",
                    absl::StrCat("is longer than ", sizeof(sockaddr_un::sun_path) - 1, " bytes"));
    }
  }
  KILN_RETURN_IF_ERROR(CheckTcp(listen));
  if (const std::string& metrics = config.metrics().address(); !metrics.empty()) {
    KILN_RETURN_IF_ERROR(CheckLoopback("metrics.address", metrics));
  }
  KILN_RETURN_IF_ERROR(CheckTenants(listen));
  KILN_RETURN_IF_ERROR(CheckIdentities(listen));
  KILN_RETURN_IF_ERROR(CheckConnections(listen));
  if (config.signing().key_file().empty()) {
    return Refuse("signing.key_file",
                  "is not given (--signing-key), and there is neither a configuration file "
                  "nor a socket to keep a key beside");
  }
  if (config.has_tier()) {
    // A tier's names begin with its tenant's, which a caller must not choose.
    if (listen.tenants().empty())
      return Refuse("tier", "takes listen.tenants, which say who may read and write what");
    KILN_RETURN_IF_ERROR(CheckTierConfig(config.tier()));
  }
  KILN_RETURN_IF_ERROR(CheckUpstream(config));
  const v1::StoreConfig& store = config.store();
  if (store.directory().empty()) return Refuse("store.directory", "is not given (--store)");
  if (store.directory()[0] != '/') return Refuse("store.directory", "is no absolute path");
  if (store.budget_bytes() != 0) {
    KILN_RETURN_IF_ERROR(CheckAtLeast("store.budget_bytes", store.budget_bytes(), kStoreBudgetBytesMin));
  }
  const v1::WorkerPoolConfig& workers = config.workers();
  KILN_RETURN_IF_ERROR(CheckAtMost("workers.count", workers.count(), kWorkersMax));
  KILN_RETURN_IF_ERROR(CheckAtLeast("workers.memory_bytes", workers.memory_bytes(), kWorkerBytesMin));
  KILN_RETURN_IF_ERROR(CheckAtMost("workers.plan_seconds_max", workers.plan_seconds_max(), kSecondsMax));
  KILN_RETURN_IF_ERROR(CheckAtMost("workers.emit_seconds_max", workers.emit_seconds_max(), kSecondsMax));
  const v1::MeasuringConfig& measuring = config.measuring();
  KILN_RETURN_IF_ERROR(CheckAtMost("measuring.gpus", measuring.gpus(), kGpusMax));
  KILN_RETURN_IF_ERROR(
      CheckAtMost("measuring.candidate_seconds_max", measuring.candidate_seconds_max(), kSecondsMax));
  KILN_RETURN_IF_ERROR(
      CheckAtMost("measuring.lease_seconds_max", measuring.lease_seconds_max(), kSecondsMax));
  KILN_RETURN_IF_ERROR(CheckAtMost("admission.queue_max", config.admission().queue_max(), kQueueMax));
  KILN_RETURN_IF_ERROR(
      CheckAtMost("admission.graph_bytes_max", config.admission().graph_bytes_max(), kGraphBytesMax));
  KILN_RETURN_IF_ERROR(CheckAtLeast("admission.graphs_bytes_max", config.admission().graphs_bytes_max(),
                                    GraphsBytesMin(config.admission().graph_bytes_max())));
  KILN_RETURN_IF_ERROR(
      CheckAtLeast("admission.objects_bytes_max", config.admission().objects_bytes_max(), kObjectsBytesMin));
  KILN_RETURN_IF_ERROR(
      CheckAtMost("admission.silent_seconds_max", config.admission().silent_seconds_max(), kSecondsMax));
  KILN_RETURN_IF_ERROR(CheckAtMost("idle_exit_seconds", config.idle_exit_seconds(), kSecondsMax));
  return CheckAtMost("drain_seconds", config.drain_seconds(), kSecondsMax);
}

uint64_t WorkerBytesDefault(uint64_t host_bytes, uint32_t workers) {
  return std::clamp(host_bytes / std::max(workers, 1u), uint64_t{1} << 30, uint64_t{4} << 30);
}

uint64_t GraphsBytesMin(uint64_t graph_bytes_max) {
  return graph_bytes_max + ZstdPackedMax(graph_bytes_max) + kHeaderMemoryBytesMax;
}

uint64_t MemoryPartsOf(const v1::ListenConfig& listen) {
  const uint64_t tenants = listen.tenants_size();
  return tenants == 0 ? 1 : tenants * (listen.has_tls() ? 2 : 1) + 1;
}

absl::Status CheckLoopback(absl::string_view field, absl::string_view address) {
  KILN_ASSIGN_OR_RETURN(const absl::string_view host, HostOf(field, address));
  if (host == "127.0.0.1" || host == "localhost" || host == "[::1]") return absl::OkStatus();
  return Refuse(field,
                absl::StrCat("\"", host, "\" is not the loopback; without TLS this machine alone is served"));
}

}  // namespace kiln
