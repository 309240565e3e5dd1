// kilnd's configuration: defaults, refusals that name the field, and files of it.
#include "server/config/config.h"

#include <sched.h>
#include <string.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/chain/store_config.h"
#include "compiler/support/compiler_limits.h"
#include "gtest/gtest.h"
#include "server/server_limits.h"
#include "tests/unit/temporary_directory.h"

namespace kiln {
namespace {

v1::Config Good() {
  v1::Config config;
  config.mutable_listen()->set_unix_socket("/run/user/0/kiln/kilnd.sock");
  config.mutable_store()->set_directory("/var/cache/kiln");
  ApplyDefaults("/usr/bin/", "/etc/kiln/kilnd.textproto", &config);
  return config;
}

TEST(Config, AWorkerACoreThatIsOurs) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(Good().workers().count(), 1);
  sched_setaffinity(0, sizeof(before), &before);
}

TEST(Config, DefaultsAreComplete) {
  const v1::Config config = Good();
  EXPECT_TRUE(CheckConfig(config).ok()) << CheckConfig(config);
  EXPECT_GT(config.workers().count(), 0);
  EXPECT_EQ(config.workers().binary(), "/usr/bin/kiln-worker");
  EXPECT_EQ(config.admission().queue_max(), 256);
  EXPECT_EQ(config.admission().silent_seconds_max(), 60);
  EXPECT_EQ(config.drain_seconds(), 30);
}

TEST(Config, TheExampleShowsTheDefaults) {
  absl::StatusOr<v1::Config> example = ReadConfigFile(KILN_EXAMPLE_CONFIG);
  ASSERT_TRUE(example.ok()) << example.status();
  v1::Config defaults;
  *defaults.mutable_listen() = example->listen();
  defaults.mutable_store()->set_directory(example->store().directory());
  defaults.mutable_store()->set_budget_bytes(kStoreBudgetBytesDefault);
  defaults.mutable_store()->set_memory_bytes(kStoreMemoryBytesDefault);
  ApplyDefaults("/usr/bin/", "/etc/kiln/kilnd.textproto", &defaults);
  EXPECT_GT(example->measuring().lease_seconds_max(), 0) << "it shows them";
  ApplyDefaults("/usr/bin/", "/etc/kiln/kilnd.textproto", &*example);
  EXPECT_EQ(example->DebugString(), defaults.DebugString());
}

v1::Config* AddTenant(v1::Config* config, const std::string& name, const std::vector<uint32_t>& uids) {
  v1::TenantConfig* tenant = config->mutable_listen()->add_tenants();
  tenant->set_name(name);
  for (const uint32_t uid : uids) tenant->add_uids(uid);
  return config;
}

v1::Config* WithoutTls(v1::Config* config) {
  config->mutable_listen()->set_tcp("127.0.0.1:7711");
  config->mutable_listen()->set_dangerously_without_tls(true);
  return config;
}

v1::Config* WithTls(v1::Config* config) {
  v1::ListenConfig* listen = AddTenant(config, "red", {})->mutable_listen();
  listen->set_tcp("0.0.0.0:7711");
  listen->mutable_tenants(0)->add_identities("kiln:red");
  listen->mutable_tls()->set_certificate("/etc/kiln/server.crt");
  listen->mutable_tls()->set_key("/etc/kiln/server.key");
  listen->mutable_tls()->set_authority("/etc/kiln/ca.crt");
  return config;
}

TEST(Config, TcpBeyondTheLoopbackIsTls) {
  v1::Config config = Good();
  EXPECT_TRUE(CheckConfig(*WithTls(&config)).ok()) << CheckConfig(config);
  EXPECT_EQ(config.listen().tls().reload_seconds(), 0);
  ApplyDefaults("/usr/bin/", "/etc/kiln/kilnd.textproto", &config);
  EXPECT_EQ(config.listen().tls().reload_seconds(), 10);
}

v1::TierConfig* WithTier(v1::Config* config) {
  AddTenant(config, "a", {1});
  config->mutable_tier()->add_addresses("unix:/run/tier.sock");
  ApplyDefaults("/usr/bin/", "/etc/kiln/kilnd.textproto", config);
  return config->mutable_tier();
}

TEST(Config, ATierHasDefaults) {
  v1::Config config = Good();
  const v1::TierConfig& tier = *WithTier(&config);
  EXPECT_TRUE(CheckConfig(config).ok()) << CheckConfig(config);
  EXPECT_EQ(tier.lookup_ms_max(), 50);
  EXPECT_EQ(tier.unused_days_max(), 30);
  EXPECT_EQ(tier.write_bytes_max(), 256u << 20);
}

v1::UpstreamConfig* WithUpstream(v1::Config* config, const std::string& address = "farm.example:7711") {
  config->mutable_upstream()->set_address(address);
  v1::TlsConfig* tls = config->mutable_upstream()->mutable_tls();
  tls->set_certificate("/etc/kiln/a.crt");
  tls->set_key("/etc/kiln/a.key");
  tls->set_authority("/etc/kiln/ca.crt");
  ApplyDefaults("/usr/bin/", "/etc/kiln/kilnd.textproto", config);
  return config->mutable_upstream();
}

TEST(Config, AnUpstreamHasDefaults) {
  v1::Config config = Good();
  const v1::UpstreamConfig& upstream = *WithUpstream(&config);
  EXPECT_TRUE(CheckConfig(config).ok()) << CheckConfig(config);
  EXPECT_EQ(upstream.lookup_ms_max(), 2'000);
  EXPECT_EQ(upstream.when_away(), v1::AWAY_COMPILE_HERE);
  WithUpstream(&config, "unix:/run/farm.sock")->clear_tls();
  EXPECT_TRUE(CheckConfig(config).ok()) << CheckConfig(config);
}

TEST(Config, SentinelsAndNodesOfAClusterMayBeSeveral) {
  for (const bool cluster : {false, true}) {
    v1::Config config = Good();
    v1::TierConfig* tier = WithTier(&config);
    tier->set_addresses(0, "one:6379");
    tier->add_addresses("other:6379");
    EXPECT_FALSE(CheckConfig(config).ok());
    tier->set_cluster(cluster);
    if (!cluster) tier->set_sentinel_master("main");
    EXPECT_TRUE(CheckConfig(config).ok()) << CheckConfig(config);
    for (int i = tier->addresses_size(); i <= 64; ++i) tier->add_addresses("other:6379");
    EXPECT_EQ(CheckConfig(config).message(), "tier.addresses: 65 are given; it takes 1 to 64");
    // Behind a tunnel there is one, and the others would be reached past it.
    tier->clear_addresses();
    tier->add_addresses("unix:/run/tier.sock");
    EXPECT_EQ(CheckConfig(config).message(),
              "tier.addresses: a unix socket leads to one server: not with cluster or sentinel_master");
  }
}

TEST(Config, RefusalsNameTheField) {
  struct Case {
    const char* field;
    std::function<void(v1::Config*)> spoil;
  };
  const Case cases[] = {
      {"listen", [](v1::Config* c) { c->clear_listen(); }},
      {"listen.unix_socket", [](v1::Config* c) { c->mutable_listen()->set_unix_socket("kilnd.sock"); }},
      {"listen.unix_socket",
       [](v1::Config* c) { c->mutable_listen()->set_unix_socket("/" + std::string(107, 'x')); }},
      {"listen.tcp", [](v1::Config* c) { c->mutable_listen()->set_tcp("127.0.0.1:7711"); }},
      {"listen.tcp", [](v1::Config* c) { WithoutTls(c)->mutable_listen()->set_tcp("192.168.0.1:7711"); }},
      {"listen.tcp", [](v1::Config* c) { WithoutTls(c)->mutable_listen()->set_tcp("[::]:7711"); }},
      {"listen.tcp", [](v1::Config* c) { WithoutTls(c)->mutable_listen()->set_tcp("127.0.0.1"); }},
      {"listen.tcp", [](v1::Config* c) { WithoutTls(c)->mutable_listen()->set_tcp("127.0.0.1:65536"); }},
      {"listen.tcp", [](v1::Config* c) { WithoutTls(c)->mutable_listen()->set_tcp("127.0.0.1:x"); }},
      {"signing.key_file", [](v1::Config* c) { c->clear_signing(); }},
      {"listen.tenants.name", [](v1::Config* c) { AddTenant(c, "", {1}); }},
      {"listen.tenants.name", [](v1::Config* c) { AddTenant(c, "a/b", {1}); }},
      {"listen.tenants.name", [](v1::Config* c) { AddTenant(c, std::string(65, 'x'), {1}); }},
      {"listen.tenants.name", [](v1::Config* c) { AddTenant(AddTenant(c, "a", {1}), "a", {2}); }},
      {"listen.tenants.uids", [](v1::Config* c) { AddTenant(AddTenant(c, "a", {1}), "b", {2, 1}); }},
      {"listen.tenants.uids", [](v1::Config* c) { AddTenant(c, "a", {}); }},
      {"listen.tenants.uids", [](v1::Config* c) { AddTenant(c, "a", {65534}); }},
      {"listen.tenants.uids", [](v1::Config* c) { AddTenant(c, "a", {65528}); }},
      {"tier", [](v1::Config* c) { c->mutable_tier()->add_addresses("unix:/run/tier.sock"); }},
      {"tier.addresses", [](v1::Config* c) { WithTier(c)->clear_addresses(); }},
      {"tier.addresses", [](v1::Config* c) { WithTier(c)->add_addresses("other:6379"); }},
      {"tier.addresses", [](v1::Config* c) { WithTier(c)->set_addresses(0, "other"); }},
      {"tier.sentinel_master",
       [](v1::Config* c) {
         WithTier(c)->set_cluster(true);
         c->mutable_tier()->set_sentinel_master("main");
       }},
      {"tier.user", [](v1::Config* c) { WithTier(c)->set_user("kiln"); }},
      {"tier.password_file", [](v1::Config* c) { WithTier(c)->set_password_file("password"); }},
      {"tier.lookup_ms_max", [](v1::Config* c) { WithTier(c)->set_lookup_ms_max(10'001); }},
      {"tier.unused_days_max", [](v1::Config* c) { WithTier(c)->set_unused_days_max(3'651); }},
      {"tier.write_bytes_max", [](v1::Config* c) { WithTier(c)->set_write_bytes_max(1); }},
      {"upstream", [](v1::Config* c) { WithUpstream((WithTier(c), c)); }},
      {"upstream.address", [](v1::Config* c) { WithUpstream(c)->clear_address(); }},
      {"upstream.address", [](v1::Config* c) { WithUpstream(c, "farm"); }},
      {"upstream.address", [](v1::Config* c) { WithUpstream(c, "farm:0"); }},
      {"upstream.address", [](v1::Config* c) { WithUpstream(c, "farm:65536"); }},
      {"upstream.address", [](v1::Config* c) { WithUpstream(c, "unix:farm.sock")->clear_tls(); }},
      {"upstream.tls", [](v1::Config* c) { WithUpstream(c)->clear_tls(); }},
      {"upstream.tls", [](v1::Config* c) { WithUpstream(c, "unix:/run/farm.sock"); }},
      {"upstream.tls.certificate", [](v1::Config* c) { WithUpstream(c)->mutable_tls()->clear_certificate(); }},
      {"upstream.tls.key", [](v1::Config* c) { WithUpstream(c)->mutable_tls()->set_key("key"); }},
      {"upstream.tls.authority", [](v1::Config* c) { WithUpstream(c)->mutable_tls()->clear_authority(); }},
      {"upstream.tls.reload_seconds",
       [](v1::Config* c) { WithUpstream(c)->mutable_tls()->set_reload_seconds(1); }},
      {"upstream.names_tenants", [](v1::Config* c) { WithUpstream(c)->set_names_tenants(true); }},
      {"upstream.when_away",
       [](v1::Config* c) { WithUpstream(c)->set_when_away(static_cast<v1::WhenAway>(3)); }},
      {"upstream.lookup_ms_max", [](v1::Config* c) { WithUpstream(c)->set_lookup_ms_max(60'001); }},
      {"listen.tenants.compile_seconds_per_hour",
       [](v1::Config* c) {
         AddTenant(c, "a", {1})->mutable_listen()->mutable_tenants(0)->set_compile_seconds_per_hour(0);
       }},
      {"listen.tcp", [](v1::Config* c) { WithoutTls(c)->mutable_listen()->set_tcp("0.0.0.0:7711"); }},
      {"listen.tcp", [](v1::Config* c) { WithoutTls(c)->mutable_listen()->set_tcp("127.0.0.1.evil.org:1"); }},
      {"listen.tcp", [](v1::Config* c) { AddTenant(WithoutTls(c), "a", {1}); }},
      {"listen.tcp", [](v1::Config* c) { WithTls(c)->mutable_listen()->set_tcp("0.0.0.0"); }},
      {"listen.tls", [](v1::Config* c) { WithTls(c)->mutable_listen()->clear_tcp(); }},
      {"listen.tls", [](v1::Config* c) { WithTls(c)->mutable_listen()->clear_tenants(); }},
      {"listen.tls.certificate",
       [](v1::Config* c) { WithTls(c)->mutable_listen()->mutable_tls()->clear_certificate(); }},
      {"listen.tls.key", [](v1::Config* c) { WithTls(c)->mutable_listen()->mutable_tls()->set_key("key"); }},
      {"listen.tls.authority",
       [](v1::Config* c) { WithTls(c)->mutable_listen()->mutable_tls()->clear_authority(); }},
      {"listen.tls.reload_seconds",
       [](v1::Config* c) { WithTls(c)->mutable_listen()->mutable_tls()->set_reload_seconds(UINT32_MAX); }},
      {"listen.dangerously_without_tls",
       [](v1::Config* c) { WithTls(c)->mutable_listen()->set_dangerously_without_tls(true); }},
      {"listen.tenants.identities",
       [](v1::Config* c) { WithTls(c)->mutable_listen()->mutable_tenants(0)->set_identities(0, "red"); }},
      {"listen.tenants.identities",
       [](v1::Config* c) { WithTls(c)->mutable_listen()->mutable_tenants(0)->add_identities("kiln:red"); }},
      {"listen.tenants.identities",
       [](v1::Config* c) {
         AddTenant(WithTls(c), "blue", {})->mutable_listen()->mutable_tenants(1)->add_identities("kiln:red");
       }},
      {"listen.tenants.identities",
       [](v1::Config* c) {
         AddTenant(c, "a", {1})->mutable_listen()->mutable_tenants(0)->add_identities("b:c");
       }},
      {"listen.tenants.roles",
       [](v1::Config* c) {
         AddTenant(c, "a", {1})->mutable_listen()->mutable_tenants(0)->add_roles(v1::ROLE_UNSPECIFIED);
       }},
      {"listen.tenants.speaks_for",
       [](v1::Config* c) {
         AddTenant(c, "a", {1})->mutable_listen()->mutable_tenants(0)->add_roles(v1::ROLE_FORWARD);
       }},
      {"listen.tenants.speaks_for",
       [](v1::Config* c) {
         AddTenant(c, "a", {1})->mutable_listen()->mutable_tenants(0)->add_speaks_for("a");
       }},
      {"listen.tenants.speaks_for",
       [](v1::Config* c) {
         v1::TenantConfig* tenant = AddTenant(c, "a", {1})->mutable_listen()->mutable_tenants(0);
         tenant->add_roles(v1::ROLE_FORWARD);
         tenant->add_speaks_for("b");
       }},
      {"listen.tenants.reads",
       [](v1::Config* c) {
         AddTenant(c, "a", {1})->mutable_listen()->mutable_tenants(0)->add_reads("b");
         AddTenant(c, "b", {2});
       }},
      {"listen.tenants.reads",
       [](v1::Config* c) { AddTenant(c, "a", {1})->mutable_listen()->mutable_tenants(0)->add_reads("a b"); }},
      {"listen.tenants.reads",
       [](v1::Config* c) {
         v1::TenantConfig* tenant = AddTenant(c, "a", {1})->mutable_listen()->mutable_tenants(0);
         for (int i = 0; i < 2; ++i) tenant->add_reads("twice");
       }},
      {"listen.tenants.reads",
       [](v1::Config* c) {
         v1::TenantConfig* tenant = AddTenant(c, "a", {1})->mutable_listen()->mutable_tenants(0);
         for (int i = 0; i < 9; ++i) tenant->add_reads(absl::StrCat("shared-", i));
       }},
      {"listen.connections_max", [](v1::Config* c) { c->mutable_listen()->set_connections_max(UINT32_MAX); }},
      {"listen.tenant_connections_max",
       [](v1::Config* c) {
         c->mutable_listen()->set_connections_max(8);
         c->mutable_listen()->add_tenants()->set_name("red");
         c->mutable_listen()->mutable_tenants(0)->add_uids(1001);
       }},
      {"listen.tenant_connections_max",
       [](v1::Config* c) { c->mutable_listen()->set_tenant_connections_max(UINT32_MAX); }},
      {"listen.handshake_seconds_max",
       [](v1::Config* c) { c->mutable_listen()->set_handshake_seconds_max(UINT32_MAX); }},
      {"listen.idle_seconds_max",
       [](v1::Config* c) { c->mutable_listen()->set_idle_seconds_max(UINT32_MAX); }},
      {"listen.age_seconds_max", [](v1::Config* c) { c->mutable_listen()->set_age_seconds_max(UINT32_MAX); }},
      {"listen.age_grace_seconds_max",
       [](v1::Config* c) { c->mutable_listen()->set_age_grace_seconds_max(UINT32_MAX); }},
      {"listen.streams_max", [](v1::Config* c) { c->mutable_listen()->set_streams_max(UINT32_MAX); }},
      {"listen.memory_bytes", [](v1::Config* c) { c->mutable_listen()->set_memory_bytes((32u << 20) - 1); }},
      {"listen.memory_bytes",
       [](v1::Config* c) { AddTenant(c, "a", {1})->mutable_listen()->set_memory_bytes((64u << 20) - 1); }},
      {"metrics.address", [](v1::Config* c) { c->mutable_metrics()->set_address("0.0.0.0:9464"); }},
      {"metrics.address", [](v1::Config* c) { c->mutable_metrics()->set_address("9464"); }},
      {"store.directory", [](v1::Config* c) { c->mutable_store()->clear_directory(); }},
      {"store.directory", [](v1::Config* c) { c->mutable_store()->set_directory("cache"); }},
      {"store.budget_bytes", [](v1::Config* c) { c->mutable_store()->set_budget_bytes(1000); }},
      {"workers.count", [](v1::Config* c) { c->mutable_workers()->set_count(1025); }},
      {"workers.memory_bytes", [](v1::Config* c) { c->mutable_workers()->set_memory_bytes(1 << 20); }},
      {"workers.plan_seconds_max",
       [](v1::Config* c) { c->mutable_workers()->set_plan_seconds_max(UINT32_MAX); }},
      {"workers.emit_seconds_max",
       [](v1::Config* c) { c->mutable_workers()->set_emit_seconds_max(UINT32_MAX); }},
      {"admission.queue_max", [](v1::Config* c) { c->mutable_admission()->set_queue_max(UINT32_MAX); }},
      {"admission.silent_seconds_max",
       [](v1::Config* c) { c->mutable_admission()->set_silent_seconds_max(UINT32_MAX); }},
      {"admission.graph_bytes_max",
       [](v1::Config* c) { c->mutable_admission()->set_graph_bytes_max(kGraphBytesMax + 1); }},
      {"admission.graphs_bytes_max",
       [](v1::Config* c) { c->mutable_admission()->set_graphs_bytes_max(GraphsBytesMin(kGraphBytesMax) - 1); }},
      {"admission.objects_bytes_max",
       [](v1::Config* c) { c->mutable_admission()->set_objects_bytes_max(kObjectsBytesMin - 1); }},
      {"idle_exit_seconds", [](v1::Config* c) { c->set_idle_exit_seconds(UINT32_MAX); }},
      {"drain_seconds", [](v1::Config* c) { c->set_drain_seconds(UINT32_MAX); }},
  };
  for (const Case& bad : cases) {
    v1::Config config = Good();
    bad.spoil(&config);
    const absl::Status status = CheckConfig(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.field;
    EXPECT_EQ(status.message().substr(0, strlen(bad.field) + 1), absl::StrCat(bad.field, ":")) << status;
  }
}

TEST(Config, WorkersShareTheHostsMemory) {
  EXPECT_EQ(WorkerBytesDefault(UINT64_MAX, 8), uint64_t{4} << 30);
  EXPECT_EQ(WorkerBytesDefault(uint64_t{64} << 30, 16), uint64_t{4} << 30);
  EXPECT_EQ(WorkerBytesDefault(uint64_t{16} << 30, 8), uint64_t{2} << 30);
  EXPECT_EQ(WorkerBytesDefault(uint64_t{16} << 30, 64), uint64_t{1} << 30) << "or no graph is compiled";
}

TEST(Config, LimitsThemselvesAreFine) {
  v1::Config config = Good();
  config.mutable_listen()->set_unix_socket("/" + std::string(106, 'x'));
  config.mutable_listen()->set_memory_bytes(32u << 20);
  config.mutable_workers()->set_count(1024);
  config.mutable_admission()->set_graph_bytes_max(kGraphBytesMax);
  config.mutable_admission()->set_graphs_bytes_max(GraphsBytesMin(kGraphBytesMax));
  config.mutable_admission()->set_objects_bytes_max(kObjectsBytesMin);
  WithoutTls(&config);
  for (const char* tcp : {"127.0.0.1:0", "localhost:7711", "[::1]:65535"}) {
    config.mutable_listen()->set_tcp(tcp);
    EXPECT_TRUE(CheckConfig(config).ok()) << CheckConfig(config);
  }
}

TEST_F(InTemporaryDirectory, ConfigFileErrorsSayWhere) {
  std::ofstream(directory_ + "/c") << "listen {\n  unix_sock: \"/x\"\n}\n";
  const auto config = ReadConfigFile(directory_ + "/c");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(config.status().message().find("line 2"), absl::string_view::npos) << config.status();
  std::ofstream(directory_ + "/q") << "listen {\n  tenants {\n    compile_seconds_per_hour: -1 } }\n";
  EXPECT_NE(ReadConfigFile(directory_ + "/q").status().message().find("line 3"), absl::string_view::npos);
  EXPECT_EQ(ReadConfigFile(directory_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kiln
