// Connections to one server of the Redis protocol, where that is a master that becomes a replica.
#include "cache/shared/redis_pool.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/fault/redis_server.h"

namespace kiln {
namespace {

class RedisPoolTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::IsThere())
      GTEST_SKIP() << "no redis-server on this host (apt-get install redis-server)";
    for (int i = 0; i < 2; ++i) {
      ports_.push_back(RedisServer::FreePort());
      servers_.push_back(std::make_unique<RedisServer>(
          std::vector<std::string>{"--port", absl::StrCat(ports_.back()), "--bind", "127.0.0.1"}));
    }
  }
  // To whom `master_` names.
  std::unique_ptr<RedisPool> Connect(bool master_only = true, size_t connections = 4,
                                     absl::Duration slow_after = absl::ZeroDuration()) {
    RedisPool::Options options;
    options.find = [this](MonotonicTime) {
      return RedisAddress::Parse(absl::StrCat("127.0.0.1:", ports_[static_cast<size_t>(master_.load())]));
    };
    options.connections = connections;
    options.slow_after = slow_after;
    options.master_only = master_only;
    absl::StatusOr<std::unique_ptr<RedisPool>> pool = RedisPool::Create(std::move(options));
    EXPECT_TRUE(pool.ok()) << pool.status();
    (*pool)->AwaitFirst(MonotonicAfter(absl::Seconds(20)));
    return *std::move(pool);
  }
  // The first becomes the second's replica, which closes nobody's connection.
  void FailOver() { EXPECT_EQ(servers_[0]->Ask({"REPLICAOF", "127.0.0.1", absl::StrCat(ports_[1])}), "OK"); }
  static RedisEngine::Answer Set(RedisPool& pool, const std::string& name, absl::Duration limit) {
    return std::move(pool.RunEach({{"SET", name, "value"}, {"EXPIRE", name, "100"}}, MonotonicAfter(limit),
                                  RedisEngine::Asker::kBackground)[0]);
  }

  std::vector<int> ports_;
  std::vector<std::unique_ptr<RedisServer>> servers_;
  std::atomic<int> master_{0};
};

TEST_F(RedisPoolTest, WhatAReplicaRefusesTheNextMasterIsAsked) {
  const std::unique_ptr<RedisPool> pool = Connect();
  EXPECT_TRUE(Set(*pool, "before", absl::Seconds(20)).ok());
  FailOver();
  master_ = 1;
  const RedisEngine::Answer answer = Set(*pool, "after", absl::Seconds(20));
  EXPECT_TRUE(answer.ok() && RedisError(**answer).ok()) << answer.status();
  EXPECT_EQ(servers_[1]->Keys("after").size(), 1);
}

// Connections that lead to the one that was the master are nobody's any more, whoever comes back with one.
TEST_F(RedisPoolTest, NobodyIsToldOfTheReplicaByAnyOfItsConnections) {
  const std::unique_ptr<RedisPool> pool = Connect();
  for (int tries = 0; servers_[0]->Clients() < 5 && tries < 500; ++tries)
    absl::SleepFor(absl::Milliseconds(10));
  FailOver();
  master_ = 1;
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&, i] {
      const auto write = [&] { return Set(*pool, absl::StrCat("after ", i), absl::Seconds(20)); };
      RedisEngine::Answer answer = write();
      for (int tries = 0; !answer.ok() && tries < 500; ++tries) {  // while none is free
        EXPECT_TRUE(absl::IsUnavailable(answer.status())) << answer.status();
        absl::SleepFor(absl::Milliseconds(10));
        answer = write();
      }
      EXPECT_TRUE(answer.ok() && RedisError(**answer).ok()) << answer.status();
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(servers_[1]->Keys("after *").size(), 4);
}

// As sentinels that have not noticed yet: the caller waits for it no longer than he would.
TEST_F(RedisPoolTest, WhereNobodyIsTheNextMasterItIsUnavailable) {
  const std::unique_ptr<RedisPool> pool = Connect();
  FailOver();
  const MonotonicTime begin = MonotonicNow();
  const RedisEngine::Answer answer = Set(*pool, "lost", absl::Milliseconds(500));
  EXPECT_TRUE(absl::IsUnavailable(answer.status())) << answer.status();
  EXPECT_GE(MonotonicNow() - begin, std::chrono::milliseconds(400));
  EXPECT_LT(MonotonicNow() - begin, std::chrono::seconds(5));
}

// Who came late to his turn has not found out that the server is slow.
TEST_F(RedisPoolTest, ShortTimeIsNoSlowServer) {
  const std::unique_ptr<RedisPool> pool = Connect(/*master_only=*/false, 8, absl::Milliseconds(200));
  for (int tries = 0; servers_[0]->Clients() < 9 && tries < 500; ++tries)
    absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(servers_[0]->Ask({"CLIENT", "PAUSE", "60000"}), "OK");
  const auto asks = [&](absl::Duration limit) {
    return pool->RunEach({{"GET", "x"}}, MonotonicAfter(limit), RedisEngine::Asker::kWaits)[0].status();
  };
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(asks(absl::Milliseconds(10))));
    EXPECT_EQ(pool->slow(), "");
  }
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(absl::IsDeadlineExceeded(asks(absl::Milliseconds(300))));
  EXPECT_NE(pool->slow(), "") << "the control: in time enough it is";
}

// The control: a server that is to be asked whatever it is.
TEST_F(RedisPoolTest, WithoutMastersItIsToldAsTheServerSaysIt) {
  const std::unique_ptr<RedisPool> pool = Connect(/*master_only=*/false);
  FailOver();
  master_ = 1;
  const RedisEngine::Answer answer = Set(*pool, "lost", absl::Seconds(20));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(IsReadOnly(**answer));
}

}  // namespace
}  // namespace kiln
