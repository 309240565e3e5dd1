// A scrape of a running kilnd: what it is told, and that nobody listens unless asked to.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/tier_daemons.h"
#include "tests/fault/upstream_daemons.h"

namespace kiln {
namespace {

constexpr char kOn[] = "metrics { address: \"127.0.0.1:0\" }";

// The port that the daemon's log tells; 0 where it tells none.
int PortOf(const TestDaemon& daemon) {
  std::ifstream log(daemon.directory() + "/log");
  std::stringstream text;
  text << log.rdbuf();
  const std::string words = "metrics at http://127.0.0.1:";
  const size_t at = text.str().find(words);
  int port = 0;
  if (at == std::string::npos) return 0;
  const std::string rest = text.str().substr(at + words.size());
  EXPECT_TRUE(absl::SimpleAtoi(rest.substr(0, rest.find('/')), &port));
  return port;
}

std::string Scrape(int port) {
  const int file = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(file, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET /metrics HTTP/1.1\r\nHost: kilnd\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(write(file, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char block[4096];
    for (ssize_t got; (got = read(file, block, sizeof(block))) > 0;) answer.append(block, got);
  }
  close(file);
  return answer;
}

// NaN, which equals nothing, where the scrape does not tell it.
double ValueOf(const std::string& scrape, const std::string& name) {
  const size_t at = scrape.find(absl::StrCat("\n", name, " "));
  double value = std::numeric_limits<double>::quiet_NaN();
  if (at == std::string::npos) return value;
  const size_t begin = at + name.size() + 2;
  EXPECT_TRUE(absl::SimpleAtod(scrape.substr(begin, scrape.find_first_of("\r\n", begin) - begin), &value));
  return value;
}

TEST(Metrics, AScrapeTellsWhatHappened) {
  TestDaemon daemon(kOn);
  const int port = PortOf(daemon);
  ASSERT_GT(port, 0);
  const std::string before = Scrape(port);
  EXPECT_TRUE(absl::StrContains(before, "200 OK")) << before;
  EXPECT_TRUE(absl::StrContains(before, "# TYPE kiln_hits_total counter")) << before;
  EXPECT_TRUE(absl::StrContains(before, "# TYPE kiln_queued gauge")) << before;
  for (const char* name : {"kiln_lookups_total", "kiln_hits_total", "kiln_misses_total",
                           "kiln_compiles_total", "kiln_store_evicted_total", "kiln_store_manifests",
                           "kiln_store_unread", "kiln_flights", "kiln_queued", "kiln_workers_busy"}) {
    EXPECT_EQ(ValueOf(before, name), 0) << name;
  }
  EXPECT_EQ(ValueOf(before, "kiln_workers"), 2);
  ASSERT_TRUE(daemon.Lookup("kernels 2").has_miss());
  ASSERT_TRUE(daemon.Compile("kernels 2").durable);
  ASSERT_TRUE(daemon.Lookup("kernels 2").has_hit());
  const std::string after = Scrape(port);
  EXPECT_EQ(ValueOf(after, "kiln_lookups_total"), 2);
  EXPECT_EQ(ValueOf(after, "kiln_hits_total"), 1);
  EXPECT_EQ(ValueOf(after, "kiln_misses_total"), 1);
  EXPECT_EQ(ValueOf(after, "kiln_compiles_total"), 1);
  EXPECT_EQ(ValueOf(after, "kiln_kernels_emitted_total"), 2);
  EXPECT_EQ(ValueOf(after, "kiln_store_manifests"), 1);
  EXPECT_GT(ValueOf(after, "kiln_store_disk_bytes"), 0);
  EXPECT_EQ(ValueOf(after, "kiln_tenant_hits_total{tenant=\"test\"}"), 1);
  EXPECT_EQ(ValueOf(after, "kiln_tenant_compiles_total{tenant=\"test\"}"), 1);
  EXPECT_EQ(ValueOf(after, "kiln_tenant_executed_total{tenant=\"test\"}"), 0);
  EXPECT_TRUE(std::isnan(ValueOf(after, "kiln_tenant_hits_total{tenant=\"other\"}")));
  ASSERT_TRUE(daemon.Lookup("kernels 2", {}, "other\"\n}").has_miss());
  ASSERT_TRUE(daemon.Compile("kernels 2", {}, absl::Seconds(60), "other\"\n}").durable);
  const std::string escaped = Scrape(port);
  EXPECT_EQ(ValueOf(escaped, "kiln_tenant_compiles_total{tenant=\"other\\\"\\n}\"}"), 1) << escaped;
  EXPECT_EQ(ValueOf(escaped, "kiln_tenant_compiles_total{tenant=\"test\"}"), 1);
  v1::EvictReply reply;
  grpc::ClientContext context;
  ASSERT_TRUE(daemon.admin().Evict(&context, v1::EvictRequest(), &reply).ok());
  EXPECT_GT(ValueOf(Scrape(port), "kiln_store_evicted_total"), 0);
  EXPECT_EQ(ValueOf(Scrape(port), "kiln_store_manifests"), 0);
}

TEST(Metrics, NobodyListensUnlessAsked) {
  const auto threads = [](const TestDaemon& daemon) {
    const std::filesystem::path tasks = absl::StrCat("/proc/", daemon.pid(), "/task");
    return std::distance(std::filesystem::directory_iterator(tasks), {});
  };
  TestDaemon off, on(kOn);
  EXPECT_EQ(PortOf(off), 0);
  EXPECT_GT(PortOf(on), 0);
  EXPECT_LT(threads(off), threads(on));
}

using MetricsOfATier = TierDaemons;

TEST_F(MetricsOfATier, AreThereWhereThereIsOne) {
  TestDaemon daemon(absl::StrCat(Config("first", {}), kOn)),
      alone(absl::StrCat(Config("alone", {}, false), kOn));
  ASSERT_TRUE(daemon.Compile("kernels 2").done);
  AwaitWrites(daemon, 1);
  const std::string told = Scrape(PortOf(daemon));
  EXPECT_EQ(ValueOf(told, "kiln_tier_hits_total"), 0);
  EXPECT_EQ(ValueOf(told, "kiln_tier_misses_total"), StatusOf(daemon).misses());
  EXPECT_GT(ValueOf(told, "kiln_tier_misses_total"), 0);
  EXPECT_EQ(ValueOf(told, "kiln_tier_writes_total"), 1);
  EXPECT_EQ(ValueOf(told, "kiln_tier_dropped_writes_total"), 0);
  EXPECT_EQ(ValueOf(told, "kiln_tier_refused_total"), 0);
  EXPECT_EQ(ValueOf(told, "kiln_tier_connected"), 1);
  EXPECT_EQ(ValueOf(told, "kiln_tier_breaker_open"), 0);
  EXPECT_EQ(ValueOf(told, "kiln_tier_work_waiting"), 0);
  EXPECT_EQ(ValueOf(told, "kiln_tier_work_measured_total"), 0);
  EXPECT_TRUE(std::isnan(ValueOf(Scrape(PortOf(alone)), "kiln_tier_connected")));
  redis_->Kill();
  EXPECT_TRUE(daemon.Compile("kernels 3").done);  // which finds its connection closed
  EXPECT_TRUE(Eventually([&] { return ValueOf(Scrape(PortOf(daemon)), "kiln_tier_connected") == 0; }));
}

using MetricsOfAnUpstream = UpstreamDaemons;

TEST_F(MetricsOfAnUpstream, AreThereWhereThereIsOne) {
  TestDaemon farm(absl::StrCat(Signing("farm", {}), kOn));
  TestDaemon local(LocalOf(farm) + kOn), untrusting(Signing("other", {}) + Asks(farm) + kOn);
  ASSERT_TRUE(farm.Compile("name there\nkernels 2").done);
  ASSERT_TRUE(local.Compile("name there\nkernels 2").done);
  ASSERT_TRUE(local.Compile("name new\nkernels 3").done);
  const auto told = [&](const std::string& name) {
    return ValueOf(Scrape(PortOf(local)), absl::StrCat("kiln_upstream_", name));
  };
  EXPECT_EQ(told("hits_total"), 1);
  EXPECT_EQ(told("misses_total"), 1);
  EXPECT_EQ(told("forwarded_total"), 1);
  EXPECT_EQ(told("refused_total"), 0);
  EXPECT_EQ(told("away_total"), 0);
  EXPECT_EQ(told("fetched_objects_total"), StatusOf(local).fetched_objects());
  EXPECT_GT(told("fetched_objects_total"), 0);
  EXPECT_EQ(told("connected"), 1);
  EXPECT_TRUE(std::isnan(ValueOf(Scrape(PortOf(farm)), "kiln_upstream_connected")));

  ASSERT_TRUE(untrusting.Compile("name there\nkernels 2").done);
  EXPECT_EQ(ValueOf(Scrape(PortOf(untrusting)), "kiln_upstream_refused_total"), 1);

  farm.Stop(SIGKILL);
  ASSERT_TRUE(local.Compile("name here").done);
  EXPECT_EQ(told("away_total"), 1);
  EXPECT_EQ(told("connected"), 0);
}

}  // namespace
}  // namespace kiln
