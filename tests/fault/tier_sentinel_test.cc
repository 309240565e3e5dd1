// A shared tier whose master sentinels name: one master, one replica, three sentinels, and a fail-over.
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/shared/redis_sentinel.h"
#include "gtest/gtest.h"
#include "tests/fault/redis_sentinels.h"
#include "tests/fault/tier_daemons.h"

namespace kiln {
namespace {

constexpr const char* kMaster = RedisSentinels::kMaster;

class TierSentinel : public TierDaemons {
 protected:
  void SetUp() override {
    TierDaemons::SetUp();
    if (!IsSkipped()) nodes_ = std::make_unique<RedisSentinels>();
  }
  std::string Sentinels(const std::string& key, const std::vector<std::string>& trusted) {
    return Config(key, trusted, /*tier=*/false) + nodes_->TierConfig(/*lookup_ms_max=*/1000);
  }

  std::unique_ptr<RedisSentinels> nodes_;
};

TEST_F(TierSentinel, NameTheMasterAndOnlyThatName) {
  EXPECT_EQ(nodes_->MasterPort(), nodes_->port(0));
  const auto other = FindMaster(nodes_->sentinels(), {}, "other", MonotonicAfter(absl::Seconds(5)));
  EXPECT_TRUE(absl::IsUnavailable(other.status())) << other.status();
  // Two that are away cost their share of the time.
  nodes_->sentinel(0).Kill();
  nodes_->sentinel(1).Pause();
  EXPECT_EQ(nodes_->MasterPort(), nodes_->port(0));
  nodes_->sentinel(1).Continue();
}

// With an ACL of their own, which is not the servers'.
TEST_F(TierSentinel, AreAskedByAUserOfTheirOwn) {
  const int port = RedisServer::FreePort();
  const RedisServer sentinel({"--port", absl::StrCat(port), "--bind", "127.0.0.1", "--sentinel"},
                             absl::StrCat("sentinel monitor ", kMaster, " 127.0.0.1 ", nodes_->port(0),
                                          " 1\n"
                                          "user asker on >secret +auth +sentinel|get-master-addr-by-name\n"
                                          "user default off\n"));
  const RedisAddress address = *RedisAddress::Parse(absl::StrCat("127.0.0.1:", port));
  const auto master = FindMaster({address}, {"asker", "secret"}, kMaster, MonotonicAfter(absl::Seconds(5)));
  ASSERT_TRUE(master.ok()) << master.status();
  EXPECT_EQ(master->port, nodes_->port(0));
  for (const RedisLogin& login : {RedisLogin{}, RedisLogin{"asker", "wrong"}}) {
    const auto refused = FindMaster({address}, login, kMaster, MonotonicAfter(absl::Seconds(5)));
    EXPECT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find(login.user.empty() ? "NOAUTH" : "WRONGPASS"),
              absl::string_view::npos)
        << refused.status();
  }

  const std::string password = keys_ + "/sentinel.password";
  std::ofstream(password) << "secret\n";
  chmod(password.c_str(), 0600);
  const std::string config = absl::StrCat(Config("daemon", {}, /*tier=*/false), "tier { sentinel_master: \"",
                                          kMaster, "\" addresses: \"127.0.0.1:", port, "\" ");
  TestDaemon daemon(
      absl::StrCat(config, "sentinel_user: \"asker\" sentinel_password_file: \"", password, "\" }\n"));
  EXPECT_TRUE(Eventually([&] { return StatusOf(daemon).connected(); })) << StatusOf(daemon).DebugString();
  TestDaemon without(config + "}\n");  // the control
  EXPECT_NE(StatusOf(without).message().find("NOAUTH"), std::string::npos) << StatusOf(without).DebugString();
}

// Nobody's compile fails while the master is away, and what was there is there afterwards.
TEST_F(TierSentinel, AFailOverIsFollowed) {
  TestDaemon first(Sentinels("first", {"second"}));
  TestDaemon second(Sentinels("second", {"first"}));
  EXPECT_TRUE(Eventually([&] { return StatusOf(first).connected() && StatusOf(second).connected(); }))
      << StatusOf(first).DebugString();
  const CompileResult before = first.Compile("name before\nkernels 3");
  EXPECT_TRUE(before.done);
  AwaitWrites(first, 1);
  EXPECT_TRUE(
      Eventually([&] { return nodes_->server(1).Ask({"DBSIZE"}) == nodes_->server(0).Ask({"DBSIZE"}); }));

  std::atomic<bool> over{false};
  std::atomic<int> compiled{0}, failed{0};
  constexpr size_t kCompared = 50;
  std::map<std::string, std::string> during;  // script → manifest
  std::thread caller([&] {
    for (int i = 0; !over; ++i) {
      const std::string script = absl::StrCat("name during ", i);
      const CompileResult result = first.Compile(script);
      ++(result.done ? compiled : failed);
      if (during.size() < kCompared) during[script] = result.manifest_bytes;
    }
  });
  nodes_->server(0).Kill();
  const absl::Time died = absl::Now();
  EXPECT_TRUE(Eventually([&] { return nodes_->MasterPort() == nodes_->port(1); }, absl::Seconds(60)));
  EXPECT_TRUE(Eventually([&] { return StatusOf(first).connected() && StatusOf(second).connected(); },
                         absl::Seconds(60)));
  std::cout << "connected to the new master " << absl::Now() - died << " after the old one died; " << compiled
            << " programs compiled meanwhile\n";
  over = true;
  caller.join();
  EXPECT_GT(compiled, 0);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(CompileAll(second, {"name before\nkernels 3"}), 0);
  EXPECT_EQ(second.Compile("name before\nkernels 3").manifest_bytes, before.manifest_bytes);
  // What was made while nobody was the master is what a daemon without a tier makes.
  TestDaemon alone(Config("alone", {}, /*tier=*/false));
  for (const auto& [script, manifest] : during) {
    EXPECT_EQ(alone.Compile(script).manifest_bytes, manifest) << script;
    EXPECT_EQ(second.Compile(script).manifest_bytes, manifest) << script;
  }
  EXPECT_EQ(CompileAll(second, {"name after\nkernels 3"}), 1);
  AwaitWrites(second, 1);
  EXPECT_EQ(CompileAll(first, {"name after\nkernels 3"}), 0);
}

// Without a death: the master becomes a replica, and says so to who would write.
TEST_F(TierSentinel, AMasterThatIsNoneAnyMoreIsLeft) {
  TestDaemon daemon(Sentinels("daemon", {}));
  EXPECT_TRUE(Eventually([&] { return StatusOf(daemon).connected(); }));
  EXPECT_EQ(nodes_->sentinel(0).Ask({"SENTINEL", "FAILOVER", kMaster}), "OK");
  EXPECT_TRUE(Eventually([&] { return nodes_->Replication(0).find("role:slave") != std::string::npos; },
                         absl::Seconds(60)));
  EXPECT_TRUE(Eventually(
      [&] {
        const std::string script = absl::StrCat("name to ", absl::ToUnixNanos(absl::Now()));
        return daemon.Compile(script).done && StatusOf(daemon).writes() > 0 &&
               nodes_->Replication(1).find("role:master") != std::string::npos &&
               nodes_->server(1).Ask({"DBSIZE"}) != "0";
      },
      absl::Seconds(60)));
}

}  // namespace
}  // namespace kiln
