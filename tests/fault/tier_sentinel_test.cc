// A shared tier whose master sentinels name: one master, one replica, three sentinels, and a fail-over.
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/shared/redis_sentinel.h"
#include "gtest/gtest.h"
#include "tests/fault/tier_daemons.h"

namespace kiln {
namespace {

constexpr char kMaster[] = "main";

class TierSentinel : public TierDaemons {
 protected:
  void SetUp() override {
    TierDaemons::SetUp();
    if (IsSkipped()) return;
    for (int i = 0; i < 2; ++i) {
      ports_.push_back(RedisServer::FreePort());
      std::vector<std::string> flags = {"--port", absl::StrCat(ports_.back()), "--bind", "127.0.0.1"};
      if (i == 1)
        flags.insert(flags.end(), {"--replicaof", absl::StrCat("127.0.0.1 ", ports_[0]),
                                   "--repl-diskless-sync-delay", "0"});
      servers_.push_back(std::make_unique<RedisServer>(flags));
    }
    EXPECT_TRUE(
        Eventually([&] { return Replication(1).find("master_link_status:up") != std::string::npos; }));
    for (int i = 0; i < 3; ++i) {
      const int port = RedisServer::FreePort();
      const std::string file = absl::StrCat("sentinel monitor ", kMaster, " 127.0.0.1 ", ports_[0], " 2\n",
                                            "sentinel down-after-milliseconds ", kMaster, " 1000\n",
                                            "sentinel failover-timeout ", kMaster, " 5000\n");
      sentinels_.push_back(std::make_unique<RedisServer>(
          std::vector<std::string>{"--port", absl::StrCat(port), "--bind", "127.0.0.1", "--sentinel"}, file));
      absl::StrAppend(&addresses_, "addresses: \"127.0.0.1:", port, "\" ");
      parsed_.push_back(*RedisAddress::Parse(absl::StrCat("127.0.0.1:", port)));
    }
    // Each knows the replica and the two others.
    for (const auto& sentinel : sentinels_) {
      EXPECT_TRUE(Eventually([&] {
        return sentinel->Ask({"SENTINEL", "REPLICAS", kMaster}) == "(array of 1)" &&
               sentinel->Ask({"SENTINEL", "SENTINELS", kMaster}) == "(array of 2)";
      }));
    }
  }
  std::string Replication(int server) {
    return servers_[static_cast<size_t>(server)]->Ask({"INFO", "replication"});
  }
  std::string Sentinels(const std::string& key, const std::vector<std::string>& trusted) {
    return absl::StrCat(Config(key, trusted, /*tier=*/false),
                        "tier { lookup_ms_max: 1000 sentinel_master: \"", kMaster, "\" ", addresses_, "}\n");
  }
  // The port of the master that the sentinels name.
  int MasterPort() {
    const absl::StatusOr<RedisAddress> master =
        FindMaster(parsed_, {}, kMaster, MonotonicAfter(absl::Seconds(5)));
    return master.ok() ? master->port : 0;
  }

  std::vector<int> ports_;
  std::vector<std::unique_ptr<RedisServer>> servers_, sentinels_;
  std::string addresses_;
  std::vector<RedisAddress> parsed_;
};

TEST_F(TierSentinel, NameTheMasterAndOnlyThatName) {
  EXPECT_EQ(MasterPort(), ports_[0]);
  const auto other = FindMaster(parsed_, {}, "other", MonotonicAfter(absl::Seconds(5)));
  EXPECT_TRUE(absl::IsUnavailable(other.status())) << other.status();
  // Two that are away cost their share of the time.
  sentinels_[0]->Kill();
  sentinels_[1]->Pause();
  EXPECT_EQ(MasterPort(), ports_[0]);
  sentinels_[1]->Continue();
}

// With an ACL of their own, which is not the servers'.
TEST_F(TierSentinel, AreAskedByAUserOfTheirOwn) {
  const int port = RedisServer::FreePort();
  const RedisServer sentinel({"--port", absl::StrCat(port), "--bind", "127.0.0.1", "--sentinel"},
                             absl::StrCat("sentinel monitor ", kMaster, " 127.0.0.1 ", ports_[0],
                                          " 1\n"
                                          "user asker on >secret +auth +sentinel|get-master-addr-by-name\n"
                                          "user default off\n"));
  const RedisAddress address = *RedisAddress::Parse(absl::StrCat("127.0.0.1:", port));
  const auto master = FindMaster({address}, {"asker", "secret"}, kMaster, MonotonicAfter(absl::Seconds(5)));
  ASSERT_TRUE(master.ok()) << master.status();
  EXPECT_EQ(master->port, ports_[0]);
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
  EXPECT_EQ(CompileAll(first, {"name before\nkernels 3"}), 1);
  AwaitWrites(first, 1);
  EXPECT_TRUE(Eventually([&] { return servers_[1]->Ask({"DBSIZE"}) == servers_[0]->Ask({"DBSIZE"}); }));

  std::atomic<bool> over{false};
  std::atomic<int> compiled{0}, failed{0};
  std::thread caller([&] {
    for (int i = 0; !over; ++i) {
      const CompileResult result = first.Compile(absl::StrCat("name during ", i));
      ++(result.done ? compiled : failed);
    }
  });
  servers_[0]->Kill();
  const absl::Time died = absl::Now();
  EXPECT_TRUE(Eventually([&] { return MasterPort() == ports_[1]; }, absl::Seconds(60)));
  EXPECT_TRUE(Eventually([&] { return StatusOf(first).connected() && StatusOf(second).connected(); },
                         absl::Seconds(60)));
  std::cout << "connected to the new master " << absl::Now() - died << " after the old one died; " << compiled
            << " programs compiled meanwhile\n";
  over = true;
  caller.join();
  EXPECT_GT(compiled, 0);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(CompileAll(second, {"name before\nkernels 3"}), 0);
  EXPECT_EQ(CompileAll(second, {"name after\nkernels 3"}), 1);
  AwaitWrites(second, 1);
  EXPECT_EQ(CompileAll(first, {"name after\nkernels 3"}), 0);
}

// Without a death: the master becomes a replica, and says so to who would write.
TEST_F(TierSentinel, AMasterThatIsNoneAnyMoreIsLeft) {
  TestDaemon daemon(Sentinels("daemon", {}));
  EXPECT_TRUE(Eventually([&] { return StatusOf(daemon).connected(); }));
  EXPECT_EQ(sentinels_[0]->Ask({"SENTINEL", "FAILOVER", kMaster}), "OK");
  EXPECT_TRUE(
      Eventually([&] { return Replication(0).find("role:slave") != std::string::npos; }, absl::Seconds(60)));
  EXPECT_TRUE(Eventually(
      [&] {
        const std::string script = absl::StrCat("name to ", absl::ToUnixNanos(absl::Now()));
        return daemon.Compile(script).done && StatusOf(daemon).writes() > 0 &&
               Replication(1).find("role:master") != std::string::npos && servers_[1]->Ask({"DBSIZE"}) != "0";
      },
      absl::Seconds(60)));
}

}  // namespace
}  // namespace kiln
