#include "tests/fault/redis_sentinels.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cache/shared/redis_sentinel.h"
#include "compiler/support/monotonic_time.h"
#include "gtest/gtest.h"
#include "tests/fault/test_daemon.h"

namespace kiln {

RedisSentinels::RedisSentinels() {
  for (int i = 0; i < 2; ++i) {
    ports_.push_back(RedisServer::FreePort());
    std::vector<std::string> flags = {"--port", absl::StrCat(ports_.back()), "--bind", "127.0.0.1"};
    if (i == 1)
      flags.insert(flags.end(),
                   {"--replicaof", absl::StrCat("127.0.0.1 ", ports_[0]), "--repl-diskless-sync-delay", "0"});
    servers_.push_back(std::make_unique<RedisServer>(flags));
  }
  EXPECT_TRUE(Eventually([&] { return Replication(1).find("master_link_status:up") != std::string::npos; }));
  for (int i = 0; i < 3; ++i) {
    const int port = RedisServer::FreePort();
    const std::string file = absl::StrCat("sentinel monitor ", kMaster, " 127.0.0.1 ", ports_[0], " 2\n",
                                          "sentinel down-after-milliseconds ", kMaster, " 1000\n",
                                          "sentinel failover-timeout ", kMaster, " 5000\n");
    sentinels_.push_back(std::make_unique<RedisServer>(
        std::vector<std::string>{"--port", absl::StrCat(port), "--bind", "127.0.0.1", "--sentinel"}, file));
    addresses_.push_back(absl::StrCat("127.0.0.1:", port));
    parsed_.push_back(*RedisAddress::Parse(addresses_.back()));
  }
  // Each knows the replica and the two others.
  for (const auto& sentinel : sentinels_) {
    EXPECT_TRUE(Eventually([&] {
      return sentinel->Ask({"SENTINEL", "REPLICAS", kMaster}) == "(array of 1)" &&
             sentinel->Ask({"SENTINEL", "SENTINELS", kMaster}) == "(array of 2)";
    }));
  }
}

std::string RedisSentinels::TierConfig(int lookup_ms_max) const {
  std::string config =
      absl::StrCat("tier { lookup_ms_max: ", lookup_ms_max, " sentinel_master: \"", kMaster, "\" ");
  for (const std::string& address : addresses_) absl::StrAppend(&config, "addresses: \"", address, "\" ");
  return config + "}\n";
}

std::string RedisSentinels::Replication(int server) {
  return servers_[static_cast<size_t>(server)]->Ask({"INFO", "replication"});
}

int RedisSentinels::MasterPort() const {
  const absl::StatusOr<RedisAddress> master =
      FindMaster(parsed_, {}, kMaster, MonotonicAfter(absl::Seconds(5)));
  return master.ok() ? master->port : 0;
}

}  // namespace kiln
