#include "tests/fault/redis_nodes.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

bool Soon(const std::function<bool()>& condition) {
  for (int tries = 0; tries < 1500; ++tries) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return false;
}

}  // namespace

RedisNodes::RedisNodes() {
  for (int i = 0; i < 2 * kMasters; ++i) StartNode();
  for (int i = 0; i < kMasters; ++i) {
    const int first = i * static_cast<int>(kRedisSlots) / kMasters;
    const int last = (i + 1) * static_cast<int>(kRedisSlots) / kMasters - 1;
    EXPECT_EQ(Ask(i, {"CLUSTER", "ADDSLOTSRANGE", absl::StrCat(first), absl::StrCat(last)}), "OK");
    EXPECT_EQ(Ask(i, {"CLUSTER", "SET-CONFIG-EPOCH", absl::StrCat(i + 1)}), "OK");
  }
  for (int i = 1; i < 2 * kMasters; ++i)
    EXPECT_EQ(Ask(i, {"CLUSTER", "MEET", "127.0.0.1", absl::StrCat(port(0))}), "OK");
  for (int i = kMasters; i < 2 * kMasters; ++i)
    EXPECT_TRUE(Soon([&] { return Ask(i, {"CLUSTER", "REPLICATE", IdOf(i - kMasters)}) == "OK"; }));
  EXPECT_TRUE(Soon([&] { return IsWhole(); }));
}

void RedisNodes::StartNode() {
  ports_.push_back(RedisServer::FreePort());
  servers_.push_back(std::make_unique<RedisServer>(
      std::vector<std::string>{"--port", absl::StrCat(ports_.back()), "--bind", "127.0.0.1",
                               "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
                               "--cluster-node-timeout", "1500", "--cluster-require-full-coverage", "no"}));
  ids_.push_back(servers_.back()->Ask({"CLUSTER", "MYID"}));
}

std::string RedisNodes::address(int number) const { return absl::StrCat("127.0.0.1:", port(number)); }

// Everybody knows all slots, and each master has a replica that is up to date.
bool RedisNodes::IsWhole() {
  for (int i = 0; i < 2 * kMasters; ++i) {
    const std::string facts = Ask(i, {"CLUSTER", "INFO"});
    if (facts.find("cluster_state:ok") == std::string::npos) return false;
    if (facts.find("cluster_known_nodes:6") == std::string::npos) return false;
    const std::string info = Ask(i, {"INFO", "replication"});
    if (info.find(i < kMasters ? "state=online" : "master_link_status:up") == std::string::npos) return false;
  }
  return true;
}

void RedisNodes::BeginMove(int slot, int from, int to) {
  EXPECT_EQ(Ask(to, {"CLUSTER", "SETSLOT", absl::StrCat(slot), "IMPORTING", IdOf(from)}), "OK");
  EXPECT_EQ(Ask(from, {"CLUSTER", "SETSLOT", absl::StrCat(slot), "MIGRATING", IdOf(to)}), "OK");
}

void RedisNodes::MoveKeys(const std::vector<std::string>& names, int from, int to) {
  for (const std::string& name : names)
    EXPECT_EQ(Ask(from, {"MIGRATE", "127.0.0.1", absl::StrCat(port(to)), name, "0", "5000"}), "OK");
}

void RedisNodes::EndMove(int slot, int to) {
  for (const int node : {to, 0, 1, 2})
    Ask(node, {"CLUSTER", "SETSLOT", absl::StrCat(slot), "NODE", IdOf(to)});
}

}  // namespace kiln
