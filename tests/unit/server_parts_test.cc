// Parts of kilnd by themselves: frames, configuration, directories, queues, what is stored, plans.
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cache/chain/store_config.h"
#include "compiler/support/digest.h"
#include "compiler/support/host_memory.h"
#include "compiler/support/limits.h"
#include "compiler/worker/build_id.h"
#include "compiler/worker/frame.h"
#include "gtest/gtest.h"
#include "server/build/artifact.h"
#include "server/config/config.h"
#include "server/flight/hit_index.h"
#include "server/flight/stored_keys.h"
#include "server/listen/listening_socket.h"
#include "server/listen/runtime_dir.h"
#include "server/observe/log.h"
#include "server/schedule/clock.h"
#include "server/schedule/fair_queue.h"
#include "server/schedule/hourly_quotas.h"
#include "server/schedule/recent_means.h"
#include "server/schedule/strand.h"
#include "server/schedule/task_queue.h"
#include "server/schedule/thread_executor.h"

namespace kiln {
namespace {

// ---- Frames ----------------------------------------------------------------------------------

class Frames : public testing::Test {
 protected:
  Frames() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    ours_ = std::make_unique<FrameChannel>(pair[0]);
    theirs_ = pair[1];
  }
  ~Frames() override { Hangup(); }
  void Hangup() {
    if (theirs_ >= 0) close(theirs_);
    theirs_ = -1;
  }
  void Raw(const std::string& bytes) { ASSERT_EQ(write(theirs_, bytes.data(), bytes.size()), bytes.size()); }
  static FrameWait Soon() { return {MonotonicAfter(absl::Milliseconds(200)), nullptr}; }

  std::unique_ptr<FrameChannel> ours_;
  int theirs_ = -1;
};

TEST_F(Frames, TravelWhole) {
  FrameChannel peer(theirs_);
  theirs_ = -1;
  v1::Frame frame;
  frame.set_id(7);
  frame.mutable_plan()->set_graph(std::string(5 << 20, 'g'));  // more than the socket's buffer
  std::thread writer([&] { EXPECT_TRUE(peer.Write(frame, {}).ok()); });
  const auto got = ours_->Read({MonotonicAfter(absl::Seconds(10)), nullptr});
  writer.join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->SerializeAsString(), frame.SerializeAsString());
}

TEST_F(Frames, ALengthBeyondTheLimitIsRefusedAtOnce) {
  const uint32_t length = kFrameBytesMax + 1;
  Raw(std::string(reinterpret_cast<const char*>(&length), 4));
  EXPECT_EQ(ours_->Read(Soon()).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(Frames, AClaimedLengthCostsNothingUntilBytesCome) {
  const uint32_t length = kFrameBytesMax;
  Raw(std::string(reinterpret_cast<const char*>(&length), 4) + "few");
  EXPECT_EQ(ours_->Read(Soon()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(Frames, NonsenseIsDataLossAndAnEndIsUnavailable) {
  Raw(std::string("\x03\0\0\0\xff\xff\xff", 7));
  EXPECT_EQ(ours_->Read(Soon()).status().code(), absl::StatusCode::kDataLoss);
  Raw(std::string("\x09\0\0\0half", 8));
  Hangup();
  EXPECT_EQ(ours_->Read(Soon()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(Frames, AnAbandonedReadEndsSoon) {
  const absl::Time start = absl::Now();
  const auto got =
      ours_->Read({MonotonicTime::max(), [&] { return absl::Now() - start > absl::Milliseconds(50); }});
  EXPECT_EQ(got.status().code(), absl::StatusCode::kCancelled);
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

TEST_F(Frames, AWriteNobodyReadsEndsAtItsDeadline) {
  v1::Frame frame;
  frame.mutable_plan()->set_graph(std::string(8 << 20, 'g'));
  EXPECT_EQ(ours_->Write(frame, Soon()).code(), absl::StatusCode::kDeadlineExceeded);
}

// ---- Configuration ---------------------------------------------------------------------------

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

// A host as its files say.
class HostFiles {
 public:
  HostFiles() {
    std::string path = testing::TempDir() + "/hostXXXXXX";
    root_ = mkdtemp(path.data());
  }
  ~HostFiles() { std::filesystem::remove_all(root_); }
  void Say(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

TEST(HostMemory, IsTheLeastOfTheMachinesAndItsGroups) {
  HostFiles host;
  EXPECT_EQ(HostMemoryBytes(host.root()), UINT64_MAX) << "it does not say";
  host.Say("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
  EXPECT_EQ(HostMemoryBytes(host.root()), uint64_t{16} << 30);
  host.Say("/proc/self/cgroup", "4:memory:/elsewhere\n0::/kiln/daemon\n");
  host.Say("/sys/fs/cgroup/kiln/daemon/memory.max", "max\n");
  EXPECT_EQ(HostMemoryBytes(host.root()), uint64_t{16} << 30);
  host.Say("/sys/fs/cgroup/kiln/memory.max", "8589934592\n");
  EXPECT_EQ(HostMemoryBytes(host.root()), uint64_t{8} << 30) << "its parent's";
  host.Say("/sys/fs/cgroup/memory.max", "4294967296\n");
  EXPECT_EQ(HostMemoryBytes(host.root()), uint64_t{4} << 30) << "of a container, the root's";
}

TEST(HostMemory, CountsKillsOfItsGroup) {
  HostFiles host;
  EXPECT_EQ(OomKills(host.root()), std::nullopt);
  host.Say("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(OomKills(host.root()), std::nullopt);
  host.Say("/sys/fs/cgroup/memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n");
  EXPECT_EQ(OomKills(host.root()), 2u);
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
  WithoutTls(&config);
  for (const char* tcp : {"127.0.0.1:0", "localhost:7711", "[::1]:65535"}) {
    config.mutable_listen()->set_tcp(tcp);
    EXPECT_TRUE(CheckConfig(config).ok()) << CheckConfig(config);
  }
}

// ---- Directories -----------------------------------------------------------------------------

class Scratch : public testing::Test {
 protected:
  Scratch() {
    char path[] = "/tmp/kiln-test-XXXXXX";
    directory_ = mkdtemp(path);
  }
  ~Scratch() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(Scratch, ConfigFileErrorsSayWhere) {
  std::ofstream(directory_ + "/c") << "listen {\n  unix_sock: \"/x\"\n}\n";
  const auto config = ReadConfigFile(directory_ + "/c");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(config.status().message().find("line 2"), absl::string_view::npos) << config.status();
  std::ofstream(directory_ + "/q") << "listen {\n  tenants {\n    compile_seconds_per_hour: -1 } }\n";
  EXPECT_NE(ReadConfigFile(directory_ + "/q").status().message().find("line 3"), absl::string_view::npos);
  EXPECT_EQ(ReadConfigFile(directory_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Scratch, ALockHasOneHolder) {
  auto first = FileLock::Acquire(directory_ + "/lock");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(FileLock::Acquire(directory_ + "/lock").status().code(), absl::StatusCode::kAlreadyExists);
  *first = nullptr;
  EXPECT_TRUE(FileLock::Acquire(directory_ + "/lock").ok());
}

TEST_F(Scratch, BuildIds) {
  const auto own = BuildIdOfFile("/proc/self/exe");
  if (own.ok()) {
    EXPECT_EQ(*own, OwnBuildId());
  }
  std::ofstream(directory_ + "/text") << "#!/bin/sh\n";
  EXPECT_EQ(BuildIdOfFile(directory_ + "/text").status().code(), absl::StatusCode::kNotFound);
  std::ofstream(directory_ + "/torn") << std::string(
      "\x7f"
      "ELF\2\1\1",
      7);
  EXPECT_EQ(BuildIdOfFile(directory_ + "/torn").status().code(), absl::StatusCode::kNotFound);
}

// ---- Threads ---------------------------------------------------------------------------------

TEST(Strand, RunsInOrderOneAtATimeAndTicksWhenItIsTime) {
  SystemClock clock;
  std::vector<int> order;
  std::optional<MonotonicTime> next;
  absl::Notification ticked;
  auto strand = Strand::Create(
      &clock, [&] { return next; },
      [&] {
        next.reset();
        ticked.Notify();
      });
  ASSERT_TRUE(strand.ok()) << strand.status();
  for (int i = 0; i < 100; ++i) (*strand)->Post([&order, i] { order.push_back(i); });
  std::vector<int> seen;
  (*strand)->Run([&] { seen = order; });
  ASSERT_EQ(seen.size(), 100u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_FALSE(ticked.HasBeenNotified()) << "no time was set";
  const MonotonicTime due = clock.Now() + std::chrono::milliseconds(20);
  (*strand)->Post([&] { next = due; });
  ticked.WaitForNotification();
  EXPECT_GE(clock.Now(), due);
}

TEST(ThreadExecutor, RunsAllThatWasPostedOnItsThreads) {
  std::atomic<int> ran{0};
  absl::Notification first, second;
  {
    auto executor = ThreadExecutor::Create(2);
    ASSERT_TRUE(executor.ok()) << executor.status();
    // Two that wait for each other need two threads.
    (*executor)->Post([&] {
      first.Notify();
      second.WaitForNotification();
    });
    (*executor)->Post([&] {
      first.WaitForNotification();
      second.Notify();
    });
    for (int i = 0; i < 50; ++i) (*executor)->Post([&] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

// ---- Fair shares -----------------------------------------------------------------------------

FairQueue::Task TaskOf(uint64_t id, const std::string& tenant, const std::string& job, double seconds) {
  FairQueue::Task task;
  task.id = task.program = id;
  task.caller.tenant = tenant;
  task.caller.job = job;
  task.seconds = seconds;
  return task;
}

TEST(FairQueue, SharesSecondsBetweenTenantsWhateverTheyAskFor) {
  // The greedy one asks for ten times as much, in long tasks; estimates are wrong, and set right.
  const std::map<std::string, std::pair<int, double>> tenants = {
      {"greedy", {3000, 4.0}}, {"modest", {1000, 1.0}}, {"small", {3000, 0.25}}};
  FairQueue queue;
  std::map<uint64_t, std::pair<Caller, double>> tasks;
  for (const auto& [tenant, load] : tenants) {
    for (int i = 0; i < load.first; ++i) {
      const FairQueue::Task task = TaskOf(tasks.size() + 1, tenant, absl::StrCat("job", i % 3), 1.0);
      tasks[task.id] = {task.caller, load.second};
      queue.Push(task);
    }
  }
  std::map<std::string, double> served;
  for (double time = 0; time < 1500;) {
    const auto& [caller, seconds] = tasks.at(*queue.Pop());
    queue.Correct(caller, seconds - 1.0);
    served[caller.tenant] += seconds;
    time += seconds;
  }
  for (const auto& [tenant, seconds] : served) EXPECT_NEAR(seconds, 500, 50) << tenant;
}

TEST(FairQueue, WhoWasIdleHasNoCredit) {
  FairQueue queue;
  uint64_t id = 0;
  for (int i = 0; i < 100; ++i) queue.Push(TaskOf(++id, "busy", "", 1));
  for (int i = 0; i < 50; ++i) queue.Pop();
  for (int i = 0; i < 50; ++i) queue.Push(TaskOf(++id, "late", "", 1));
  int late = 0;
  for (int i = 0; i < 20; ++i) late += *queue.Pop() > 100;
  EXPECT_NEAR(late, 10, 1);
}

// It is taken, and others are served while it runs: what it took is known only then, and is charged.
TEST(FairQueue, LongWorkOfWhoDoesNotWaitIsCharged) {
  FairQueue queue;
  const FairQueue::Task slow = TaskOf(1, "slow", "", 1);
  queue.Push(slow);
  EXPECT_EQ(queue.Pop(), 1u);
  for (uint64_t id = 2; id <= 20; ++id) queue.Push(TaskOf(id, "other", "", 1));
  for (int i = 0; i < 5; ++i) queue.Correct(TaskOf(*queue.Pop(), "other", "", 1).caller, 0);
  queue.Correct(slow.caller, 9);
  queue.Push(TaskOf(30, "slow", "", 1));
  int before = 0;
  while (*queue.Pop() != 30) ++before;
  EXPECT_NEAR(before, 5, 1) << "as many seconds as the slow one had more of";
}

TEST(FairQueue, ManyNamesWithATaskEachAreForgotten) {
  FairQueue tenants, jobs;
  for (uint64_t id = 1; id <= 4 * kFairQueueIdleMax; ++id) {
    const std::string name = absl::StrCat(id);
    const FairQueue::Task tenant = TaskOf(id, name, "", 1), job = TaskOf(id, "t", name, 1);
    for (auto& [queue, task] : {std::pair{&tenants, tenant}, std::pair{&jobs, job}}) {
      queue->Push(task);
      EXPECT_EQ(queue->Pop(), id);
      queue->Correct(task.caller, 0);
    }
  }
  // The last is idle since it was taken; a tenant has a job.
  EXPECT_EQ(jobs.remembered(), 1 + kFairQueueIdleMax + 1);
  EXPECT_LE(tenants.remembered(), 2 * (kFairQueueIdleMax + 1));
}

TEST(FairQueue, AJobsFirstProgramFinishesFirst) {
  FairQueue queue;
  queue.Push(TaskOf(1, "t", "job", 1));
  queue.Push(TaskOf(2, "t", "job", 1));
  EXPECT_EQ(queue.Pop(), 1u);
  // What the first one needs next goes before what came meanwhile.
  for (const uint64_t id : {10u, 11u}) {
    FairQueue::Task step = TaskOf(id, "t", "job", 1);
    step.program = 1;
    step.step = 1;
    queue.Push(step);
  }
  EXPECT_TRUE(queue.Remove(11));
  EXPECT_FALSE(queue.Remove(11));
  EXPECT_EQ(queue.Pop(), 10u);
  EXPECT_EQ(queue.Pop(), 2u);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(FairQueue, BackgroundWaitsForItsOwnTenantAlone) {
  FairQueue queue;
  FairQueue::Task background = TaskOf(1, "t", "", 1);
  background.caller.work_class = Caller::Class::kBackground;
  queue.Push(background);
  queue.Push(TaskOf(2, "t", "", 1));
  queue.Push(TaskOf(3, "u", "", 1));
  queue.Push(TaskOf(4, "u", "", 1));
  std::vector<uint64_t> order;
  while (!queue.empty()) order.push_back(*queue.Pop());
  EXPECT_EQ(order, (std::vector<uint64_t>{2, 3, 1, 4}));
}

// Of others no more than of its own: who has nothing waiting is next.
TEST(FairQueue, WhatIsAheadOfACallerIsNoMoreOfOthersThanOfItsOwn) {
  FairQueue queue;
  for (uint64_t id = 1; id <= 10; ++id) queue.Push(TaskOf(id, "greedy", "", 4));
  queue.Push(TaskOf(11, "modest", "", 1));
  const auto ahead = [&queue](const char* tenant, double more = 0) {
    const Caller caller = TaskOf(0, tenant, "", 1).caller;
    return queue.SecondsToServe(caller, queue.SecondsOf(caller) + more);
  };
  EXPECT_DOUBLE_EQ(ahead("new"), 0);
  EXPECT_DOUBLE_EQ(ahead("modest"), 1 + 1);
  EXPECT_DOUBLE_EQ(ahead("greedy"), 40 + 1);
  EXPECT_DOUBLE_EQ(ahead("new", 3), 3 + 3 + 1) << "a third each, while the modest one has some";
  EXPECT_DOUBLE_EQ(queue.SecondsToServe(TaskOf(0, "greedy", "", 1).caller, 4), 4 + 1) << "next of its own";
  Caller background = TaskOf(0, "modest", "", 1).caller;
  background.work_class = Caller::Class::kBackground;
  EXPECT_DOUBLE_EQ(queue.SecondsToServe(background, queue.SecondsOf(background)), 1 + 1);
  while (!queue.empty()) queue.Pop();
  EXPECT_DOUBLE_EQ(ahead("greedy"), 0);
}

TaskQueue::Task Work(TaskQueue::Kind kind, const std::string& tenant, bool urgent = false) {
  TaskQueue::Task task;
  task.kind = kind;
  task.caller.tenant = tenant;
  task.urgent = urgent;
  return task;
}

TEST(TaskQueue, WorkersAndGpusAreTakenApart) {
  TaskQueue queue({1, 1});
  const auto tune = queue.Push(Work(TaskQueue::Kind::kTune, "t"));
  const auto second = queue.Push(Work(TaskQueue::Kind::kTune, "t"));
  const auto emit = queue.Push(Work(TaskQueue::Kind::kEmit, "t"));
  EXPECT_EQ(queue.Take(), emit);
  EXPECT_EQ(queue.Take(), tune);
  EXPECT_EQ(queue.Take(), std::nullopt) << "there is one GPU";
  queue.Ended(emit, 1, true);
  EXPECT_EQ(queue.Take(), std::nullopt) << "what waits for a GPU takes no worker";
  EXPECT_FALSE(queue.Remove(tune)) << "it runs";
  queue.Ended(tune, 1, true);
  EXPECT_EQ(queue.Take(), second);
}

TEST(TaskQueue, UrgentGoesFirstAndIsCharged) {
  TaskQueue queue({1, 0});
  for (int i = 0; i < 40; ++i) {
    queue.Push(Work(TaskQueue::Kind::kEmit, "a"));
    queue.Push(Work(TaskQueue::Kind::kEmit, "b"));
  }
  const auto urgent = queue.Push(Work(TaskQueue::Kind::kEmit, "a", /*urgent=*/true));
  EXPECT_EQ(queue.Take(), urgent);
  queue.Ended(urgent, 0.5, false);
  // Ten of b's, each of 0.05 s, before they are even. The odd ids are a's.
  int of_b = 0;
  for (int i = 0; i < 10; ++i) {
    const auto id = *queue.Take();
    of_b += id % 2 == 0;
    queue.Ended(id, 0.05, true);
  }
  EXPECT_GE(of_b, 9);
}

// The others are the controls: another tenant's comes in its turn, and one that stays background comes last.
TEST(TaskQueue, WhatBecomesInteractiveOvertakes) {
  TaskQueue queue({1, 0});
  TaskQueue::Task background = Work(TaskQueue::Kind::kPlan, "t");
  background.caller.work_class = Caller::Class::kBackground;
  const auto stays = queue.Push(background);
  const auto raised = queue.Push(background);
  const auto interactive = queue.Push(Work(TaskQueue::Kind::kPlan, "t"));
  const auto other = queue.Push(Work(TaskQueue::Kind::kPlan, "u"));
  queue.MakeInteractive(raised);
  queue.MakeInteractive(4711);
  std::vector<TaskQueue::TaskId> order;
  while (const auto id = queue.Take()) {
    order.push_back(*id);
    queue.Ended(*id, 1, true);
  }
  EXPECT_EQ(order, (std::vector<TaskQueue::TaskId>{raised, other, interactive, stays}));
}

TEST(TaskQueue, TheFirstOnesSayWhatIsTypical) {
  TaskQueue queue({1, 0});
  for (const double seconds : {4.0, 2.0}) {
    const auto id = queue.Push(Work(TaskQueue::Kind::kEmit, "t"));
    ASSERT_EQ(queue.Take(), id);
    queue.Ended(id, seconds, /*typical=*/true);
  }
  const auto typical = [&queue](TaskQueue::Kind kind, const Caller& of) { return queue.Typical(kind, of); };
  const Caller background{"t", "", Caller::Class::kBackground};
  EXPECT_DOUBLE_EQ(typical(TaskQueue::Kind::kEmit, {"t", "any job"}), 3);
  // Nothing is said of what is none of these.
  EXPECT_DOUBLE_EQ(typical(TaskQueue::Kind::kPlan, {"t"}), TaskQueue::Options().plan_seconds);
  EXPECT_DOUBLE_EQ(typical(TaskQueue::Kind::kEmit, {"u"}), TaskQueue::Options().emit_seconds);
  EXPECT_DOUBLE_EQ(typical(TaskQueue::Kind::kEmit, background), TaskQueue::Options().emit_seconds);
}

TEST(RecentMeans, ThoseThatCameLastAreKept) {
  RecentMeans means(1);
  means.Add({"first"}, 5);
  means.Add({"second"}, 5);
  for (size_t i = 0; i < RecentMeans::kKept - 2; ++i) means.Add({absl::StrCat("tenant ", i)}, 2);
  means.Add({"first"}, 7);
  means.Add({"one more"}, 3);
  EXPECT_DOUBLE_EQ(means.Of({"first"}), 6);
  EXPECT_DOUBLE_EQ(means.Of({"second"}), 1);
  EXPECT_DOUBLE_EQ(means.Of({"one more"}), 3);
}

TEST(HourlyQuotas, WhatWasTakenCountsForAnHour) {
  HourlyQuotas quotas({{"bounded", 10}});
  const MonotonicTime begin(std::chrono::hours(5));
  const auto left_after = [&](int minutes) {
    return quotas.SecondsUntilLeft("bounded", begin + std::chrono::minutes(minutes));
  };
  quotas.Spend("bounded", 6, begin);
  EXPECT_EQ(left_after(0), std::nullopt);
  quotas.Spend("bounded", 5, begin + std::chrono::minutes(10));
  quotas.Spend("free", 1000, begin);
  EXPECT_EQ(quotas.SecondsUntilLeft("free", begin), std::nullopt);
  EXPECT_EQ(left_after(10), 51 * 60) << "what was taken first goes first";
  EXPECT_EQ(left_after(60), 60);
  EXPECT_EQ(left_after(61), std::nullopt);
  // One that was as large as the whole.
  quotas.Spend("bounded", 10, begin + std::chrono::minutes(65));
  EXPECT_EQ(left_after(66), 60 * 60);
  EXPECT_EQ(left_after(126), std::nullopt);
}

TEST(HourlyQuotas, TellsWhatEverybodyTook) {
  HourlyQuotas quotas({{"bounded", 10}});
  const MonotonicTime begin(std::chrono::hours(5));
  EXPECT_TRUE(quotas.Taken(begin).empty());
  quotas.Spend("bounded", 6, begin);
  quotas.Spend("free", 1000, begin);
  quotas.Spend("free", 1, begin + std::chrono::minutes(30));
  using Taken = std::map<std::string, double>;
  EXPECT_EQ(quotas.Taken(begin + std::chrono::minutes(30)), (Taken{{"bounded", 6}, {"free", 1001}}));
  EXPECT_EQ(quotas.Taken(begin + std::chrono::minutes(62)), (Taken{{"free", 1}}));
}

TEST(HourlyQuotas, RemembersOnlySoManyWithoutAQuota) {
  HourlyQuotas quotas({{"bounded", 10}});
  const MonotonicTime begin(std::chrono::hours(5));
  quotas.Spend("bounded", 0.5, begin);
  for (size_t i = 0; i < HourlyQuotas::kOthersMax; ++i)
    quotas.Spend(absl::StrCat("name ", i), 10.0 + i, begin);
  EXPECT_EQ(quotas.Taken(begin).size(), HourlyQuotas::kOthersMax + 1);
  quotas.Spend("one more", 1, begin);
  const std::map<std::string, double> taken = quotas.Taken(begin);
  EXPECT_EQ(taken.size(), HourlyQuotas::kOthersMax + 1);
  EXPECT_TRUE(taken.contains("one more") && taken.contains("bounded") && !taken.contains("name 0"));
}

// ---- What is stored --------------------------------------------------------------------------

const Signatures& TestSignatures() {
  static const Signatures& signatures = *new Signatures(Signatures::OfThisProcess());
  return signatures;
}

// Its kernel's record is under "key".
Artifact ArtifactOfOneKernel() {
  v1::EmitReply reply;
  reply.set_kind(v1::FLAT_IMAGE);
  reply.set_object("an object");
  const auto kernel = PackKernel("key", "loops", reply);
  EXPECT_TRUE(kernel.ok()) << kernel.status();
  ArtifactIngredients ingredients;
  ingredients.signatures = &TestSignatures();
  ingredients.compile_key = Sha256("graph");
  ingredients.kernels = absl::MakeConstSpan(&*kernel, 1);
  v1::PlanReply plan;
  plan.add_kernels()->set_kernel("loops");
  plan.mutable_program()->add_steps()->mutable_launch()->set_kernel(0);
  return AssembleArtifact(ingredients, plan);
}

// Control: without the holds its objects go with the only manifest that names them.
TEST_F(Scratch, WhatAFlightTakesFromTheStoreIsNotEvicted) {
  for (const bool held : {true, false}) {
    int64_t now = 1'700'000'000;
    StoreEnvironment environment;
    environment.now_unix_seconds = [&now] { return now; };
    v1::StoreConfig config;
    config.set_directory(absl::StrCat(directory_, held ? "/held" : "/not"));
    auto store = NewStore(config, environment);
    ASSERT_TRUE(store.ok()) << store.status();
    const Artifact artifact = ArtifactOfOneKernel();
    ASSERT_TRUE((*store)->artifacts().Put(artifact.entries).ok());

    now += 24 * 3600;  // nobody has used it for long
    HitIndex index(1 << 20);
    SystemClock clock;
    StoredKeys keys(store->get(), /*tier=*/nullptr, &index, &clock, &TestSignatures());
    std::vector<Holds::Hold> holds;
    ASSERT_TRUE(keys.ReadKernel("", "key", &holds).ok());
    if (!held) holds.clear();
    now += 3600;  // a long flight
    ASSERT_TRUE((*store)->EvictTo(0).ok());
    EXPECT_EQ((*store)->statistics().entries, 0u);
    EXPECT_EQ((*store)->statistics().objects, held ? artifact.objects.size() : 0u);
  }
}

// A pinned variant is older than all others. The control: the oldest of those has gone.
TEST_F(Scratch, ANewVariantTakesNoPinnedOnesPlace) {
  int64_t now = 1'700'000'000;
  StoreEnvironment environment;
  environment.now_unix_seconds = [&now] { return now; };
  v1::StoreConfig config;
  config.set_directory(directory_ + "/store");
  auto store = NewStore(config, environment);
  ASSERT_TRUE(store.ok()) << store.status();
  HitIndex index(1 << 20);
  SystemClock clock;
  StoredKeys keys(store->get(), /*tier=*/nullptr, &index, &clock, &TestSignatures());
  std::vector<EntryId> variants;
  for (size_t i = 0; i < kVariantsPerKeyMax + 2; ++i) {
    ArtifactIngredients ingredients;
    ingredients.signatures = &TestSignatures();
    ingredients.compile_key = Sha256("graph");
    v1::PlanReply plan;
    plan.mutable_guards()->add_conditions(static_cast<uint32_t>(i));
    const auto artifact = std::make_shared<const Artifact>(AssembleArtifact(ingredients, plan));
    variants.push_back({EntryKind::kManifest, ManifestEntryKey(artifact->compile_key, artifact->variant_id)});
    keys.Announce(artifact);
    ASSERT_TRUE(keys.Put(artifact).ok());
    if (i == 0) {
      ASSERT_TRUE((*store)->catalog().SetPinned(variants[0], true).ok());
    }
    ++now;
  }
  for (size_t i = 0; i < variants.size(); ++i) {
    EXPECT_EQ((*store)->catalog().Find(variants[i]).ok(), i != 1) << i;
  }
}

// Its objects went while it was made. The control: with them it is a hit.
TEST_F(Scratch, AVariantWithoutItsObjectsIsNoHit) {
  v1::StoreConfig config;
  config.set_directory(directory_ + "/store");
  auto store = NewStore(config);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto whole = std::make_shared<const Artifact>(ArtifactOfOneKernel());
  auto torn = std::make_shared<Artifact>(ArtifactOfOneKernel());
  std::erase_if(torn->entries, [](const Entry& entry) { return entry.id.kind == EntryKind::kObject; });
  HitIndex index(1 << 20);
  SystemClock clock;
  StoredKeys keys(store->get(), /*tier=*/nullptr, &index, &clock, &TestSignatures());
  keys.Announce(torn);
  EXPECT_EQ(keys.Put(torn).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(keys.Load("", whole->compile_key)->variants.empty());
  keys.Announce(whole);
  EXPECT_TRUE(keys.Put(whole).ok());
  EXPECT_EQ(keys.Load("", whole->compile_key)->variants.size(), 1u);
}

// What waits goes last; outdated it is passed over, unless the key is refused by now. One that is made anew
// is what there is.
TEST_F(Scratch, AVariantThatWaitsIsServedWhileNoOtherCanBe) {
  struct : public WaitingPrograms {
    bool IsOutdated(const std::string&, const std::string&, const std::string&) override { return outdated; }
    void Made(const std::string&, const std::string&) override { ++made; }
    bool outdated = false;
    int made = 0;
  } waiting;
  v1::StoreConfig config;
  config.set_directory(directory_ + "/store");
  auto store = NewStore(config);
  ASSERT_TRUE(store.ok()) << store.status();
  HitIndex index(1 << 20);
  SystemClock clock;
  StoredKeys keys(store->get(), /*tier=*/nullptr, &index, &clock, &TestSignatures());
  keys.SetWaiting(&waiting);
  const auto put = [&](const std::string& waits_for) {
    v1::Tuning tuning;
    tuning.set_waits_for(waits_for);
    ArtifactIngredients ingredients;
    ingredients.signatures = &TestSignatures();
    ingredients.compile_key = Sha256("graph");
    ingredients.tuning = &tuning;
    const auto artifact = std::make_shared<const Artifact>(AssembleArtifact(ingredients, v1::PlanReply()));
    keys.Announce(artifact);
    EXPECT_TRUE(keys.Put(artifact).ok());
    return artifact->variant_id;
  };
  const auto served = [&] {
    index.Clear();
    const KnownKeyPtr known = keys.Load("", Sha256("graph"));
    const KnownVariant* const variant = ChooseVariant(*known, {});
    return variant == nullptr ? "" : variant->variant_id;
  };
  const std::string waits = put("sm_90");
  EXPECT_EQ(waiting.made, 1);
  EXPECT_EQ(served(), waits);
  waiting.outdated = true;
  EXPECT_EQ(served(), "");
  FlightRequest request;
  request.compile_key = Sha256("graph");
  keys.PutRefusal(request, "compiler", absl::UnimplementedError("it crashes"), /*quarantine=*/true);
  EXPECT_EQ(served(), waits);
  waiting.outdated = false;
  const std::string made = put("");
  EXPECT_EQ(served(), made);
}

// Who guesses another namespace's variant takes nothing from its owner. The control: one that has gone is
// forgotten.
TEST_F(Scratch, AGuessLeavesTheOwnersHits) {
  v1::StoreConfig config;
  config.set_directory(directory_ + "/store");
  auto store = NewStore(config);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto artifact = std::make_shared<const Artifact>(ArtifactOfOneKernel());
  HitIndex index(1 << 20);
  SystemClock clock;
  StoredKeys keys(store->get(), /*tier=*/nullptr, &index, &clock, &TestSignatures());
  keys.Announce(artifact);
  ASSERT_TRUE(keys.Put(artifact).ok());
  v1::FetchObjectsRequest request;
  request.set_compile_key(artifact->compile_key);
  request.set_variant_id(artifact->variant_id);
  EXPECT_TRUE(keys.CheckFetch(request).ok());
  request.set_namespace_("guesser");
  EXPECT_TRUE(absl::IsNotFound(keys.CheckFetch(request).status()));
  EXPECT_NE(index.Find(artifact->compile_key), nullptr);
  ASSERT_TRUE((*store)->EvictTo(0).ok());
  EXPECT_TRUE(absl::IsNotFound(keys.CheckFetch(request).status()));
  EXPECT_EQ(index.Find(artifact->compile_key), nullptr);
}

// ---- Hits ------------------------------------------------------------------------------------

KnownKeyPtr KnownOf(size_t bytes) {
  auto known = std::make_shared<KnownKey>();
  known->variants.emplace_back().reply = std::make_shared<const std::string>(bytes, 'x');
  return known;
}

std::string KeyNumber(int number) { return Sha256(absl::StrCat(number)); }

TEST(HitIndex, KeepsWhatWasUsedLastWithinItsBytes) {
  constexpr uint64_t kBytes = 16 * 10'000;  // ten thousand a shard
  HitIndex index(kBytes);
  const std::string used = KeyNumber(0);
  index.Load(used, [] { return KnownOf(1000); });
  for (int i = 1; i < 2000; ++i) {
    index.Load(KeyNumber(i), [] { return KnownOf(1000); });
    EXPECT_NE(index.Find(used), nullptr) << i;
    EXPECT_LE(index.bytes(), kBytes);
  }
  EXPECT_EQ(index.Find(KeyNumber(1)), nullptr) << "others took its place";
  EXPECT_GT(index.entries(), 16u);
  const std::string large = KeyNumber(3000);
  EXPECT_NE(index.Load(large, [] { return KnownOf(10'000); }), nullptr) << "answered all the same";
  EXPECT_EQ(index.Find(large), nullptr) << "and not kept";
}

TEST(HitIndex, ForgetsByName) {
  HitIndex index(1 << 20);
  for (int i = 0; i < 10; ++i) index.Load(KeyNumber(i), [] { return KnownOf(10); });
  index.Erase(KeyNumber(3));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(index.Find(KeyNumber(i)) == nullptr, i == 3) << i;
  index.Load(KeyNumber(11), [] { return std::make_shared<const KnownKey>(); });
  EXPECT_EQ(index.Find(KeyNumber(11)), nullptr) << "nothing is known of it";
  index.Load(KeyNumber(11), [] { return std::make_shared<const KnownKey>(); }, HitIndex::Keep::kAll);
  EXPECT_NE(index.Find(KeyNumber(11)), nullptr) << "that it has nothing is worth knowing";
  index.Clear();
  EXPECT_EQ(index.entries() + index.bytes(), 0u);
}

TEST(HitIndex, WhatGoesWhileItIsReadIsNotPutBack) {
  HitIndex index(1 << 20);
  for (const bool goes : {true, false}) {
    const KnownKeyPtr read = index.Load(KeyNumber(1), [&] {
      if (goes) index.Erase(KeyNumber(1));
      return KnownOf(10);
    });
    EXPECT_NE(read, nullptr);
    EXPECT_EQ(index.Find(KeyNumber(1)) == nullptr, goes);
  }
}

// A herd: there is always somebody who reads. Who begins after the erasure keeps what it finds.
TEST(HitIndex, AnErasureIsOverForWhoBeginsAfterIt) {
  HitIndex index(1 << 20);
  index.Load(KeyNumber(1), [&] {
    index.Erase(KeyNumber(1));
    index.Load(KeyNumber(1), [] { return KnownOf(10); });
    EXPECT_NE(index.Find(KeyNumber(1)), nullptr);
    return KnownOf(20);
  });
  ASSERT_NE(index.Find(KeyNumber(1)), nullptr) << "what began before is not kept, and takes nothing away";
  EXPECT_EQ(index.Find(KeyNumber(1))->variants[0].reply->size(), 10u);
  index.Load(KeyNumber(2), [&] {
    index.Load(KeyNumber(2), [&] {
      index.Clear();
      return KnownOf(10);
    });
    return KnownOf(10);
  });
  EXPECT_EQ(index.Find(KeyNumber(2)), nullptr);
}

// ---- The log ---------------------------------------------------------------------------------

TEST(LogText, IsOneLineOfLimitedLength) {
  EXPECT_EQ(LogText("Größe 3"), "Größe 3");
  EXPECT_EQ(LogText("a\nb\r\x1b[31m\x7f"), "a\\nb\\x0d\\x1b[31m\\x7f");
  EXPECT_EQ(LogText(absl::string_view("\0", 1)), "\\x00");
  const std::string longest(kLogLineBytesMax, 'x');
  EXPECT_EQ(LogText(longest), longest);
  EXPECT_EQ(LogText(longest + "x"), longest + " …");
}

// ---- What a worker sends ---------------------------------------------------------------------

v1::PlanReply GoodPlan() {
  v1::PlanReply plan;
  plan.mutable_program()->set_format_version(kProgramFormatVersion);
  plan.mutable_program()->add_buffers();
  plan.add_kernels()->set_kernel("k");
  plan.mutable_program()->add_steps()->mutable_launch()->add_buffers(0);
  return plan;
}

TEST(CheckPlan, RefusesWhatDoesNotFitTogether) {
  ASSERT_TRUE(CheckPlan(GoodPlan()).ok()) << CheckPlan(GoodPlan());
  const std::function<void(v1::PlanReply*)> spoils[] = {
      [](v1::PlanReply* p) { p->mutable_program()->set_format_version(kProgramFormatVersion + 1); },
      [](v1::PlanReply* p) { p->mutable_kernels(0)->clear_kernel(); },
      [](v1::PlanReply* p) { p->mutable_program()->mutable_steps(0)->mutable_launch()->set_kernel(1); },
      [](v1::PlanReply* p) { p->mutable_program()->mutable_steps(0)->mutable_launch()->set_buffers(0, 1); },
      [](v1::PlanReply* p) { p->mutable_program()->add_steps()->mutable_free()->set_buffer(1); },
      [](v1::PlanReply* p) { p->mutable_program()->add_steps()->mutable_alloc()->set_reuse(1); },
      [](v1::PlanReply* p) { p->mutable_program()->add_steps()->mutable_call(); },
      [](v1::PlanReply* p) { p->mutable_program()->add_steps(); },
      [](v1::PlanReply* p) { p->mutable_program()->add_outputs()->set_buffer(1); },
      [](v1::PlanReply* p) { p->mutable_guards()->add_conditions(0); },
      [](v1::PlanReply* p) { p->mutable_kernels(0)->mutable_notes()->add_sources("model.py:3 in forward"); },
  };
  for (size_t i = 0; i < std::size(spoils); ++i) {
    v1::PlanReply plan = GoodPlan();
    spoils[i](&plan);
    EXPECT_EQ(CheckPlan(plan).code(), absl::StatusCode::kInternal) << i;
  }
}

TEST(PlainNames, StayBelowTheirDirectory) {
  for (const char* good : {"00_graph.txt", "kernels/softmax-1.loops.txt", "a"})
    EXPECT_TRUE(IsPlainName(good)) << good;
  for (const char* bad :
       {"", ".", "..", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "a/.b", "a b", "a\n", "a\\b"}) {
    EXPECT_FALSE(IsPlainName(bad)) << bad;
  }
}

TEST(Manifests, HoldNoTimes) {
  v1::EmitReply reply;
  reply.set_kind(v1::FLAT_IMAGE);
  reply.set_object("code");
  const auto kernel = PackKernel("key", "k", reply);
  ASSERT_TRUE(kernel.ok());
  std::string first;
  for (double seconds : {0.5, 1.5}) {
    v1::PlanReply plan = GoodPlan();
    plan.mutable_statistics()->set_plan_seconds(seconds);
    ArtifactIngredients ingredients;
    ingredients.signatures = &TestSignatures();
    ingredients.compile_key = std::string(32, 'c');
    ingredients.request_key = std::string(32, 'r');
    ingredients.kernels = absl::MakeConstSpan(&*kernel, 1);
    const Artifact artifact = AssembleArtifact(ingredients, std::move(plan));
    if (first.empty()) first = artifact.signed_manifest.manifest();
    EXPECT_EQ(artifact.signed_manifest.manifest(), first);
    EXPECT_EQ(artifact.entries.back().id.kind, EntryKind::kManifest)
        << "last: nothing refers to what is not there";
  }
}

TEST(PackKernel, RefusesNonsense) {
  v1::EmitReply reply;
  reply.set_object("code");
  EXPECT_EQ(PackKernel("key", "k", reply).status().code(), absl::StatusCode::kInternal);
  reply.set_kind(v1::OBJECT_UNSPECIFIED);
  EXPECT_EQ(PackKernel("key", "k", reply).status().code(), absl::StatusCode::kInternal);
  reply.set_kind(v1::GPU_IMAGE);
  EXPECT_TRUE(PackKernel("key", "k", reply).ok());
  reply.clear_object();
  EXPECT_EQ(PackKernel("key", "k", reply).status().code(), absl::StatusCode::kInternal);
}

TEST(ListeningSocket, ANameOfWhichAnotherHasOneAddressIsRefused) {
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(stranger, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(bind(stranger, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(listen(stranger, 1), 0);
  ASSERT_EQ(getsockname(stranger, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  const std::string name = absl::StrCat("localhost:", ntohs(address.sin_port));
  EXPECT_TRUE(absl::IsAlreadyExists(ListenOnTcp(name).status()));
  close(stranger);
  // The control: the same port, when it is free.
  absl::StatusOr<TcpSockets> sockets = ListenOnTcp(name);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  for (const int descriptor : sockets->descriptors) close(descriptor);
}

}  // namespace
}  // namespace kiln
