// Daemons of one tier: a redis-server, and configurations whose daemons trust each other's keys.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/signature.h"
#include "gtest/gtest.h"
#include "tests/fault/redis_server.h"
#include "tests/fault/test_daemon.h"

namespace kiln {

class TierDaemons : public testing::Test {
 protected:
  TierDaemons() {
    char path[] = "/tmp/kiln-keys-XXXXXX";
    keys_ = mkdtemp(path);
  }
  ~TierDaemons() override { std::filesystem::remove_all(keys_); }
  void SetUp() override {
    if (!RedisServer::IsThere())
      GTEST_SKIP() << "no redis-server on this host (apt-get install redis-server)";
    redis_ = std::make_unique<RedisServer>();
  }

  // A daemon of this user's tenant, "test", with a key of its own that all others of `keys` trust.
  std::string Config(const std::string& key, const std::vector<std::string>& trusted, bool tier = true) {
    std::string config = absl::StrCat("listen { tenants { name: \"test\" uids: ", geteuid(), " } }\n",
                                      "signing { key_file: \"", keys_, "/", key, ".pem\"\n");
    for (const std::string& other : trusted) {
      absl::StatusOr<SigningKey> made = SigningKey::LoadOrMake(absl::StrCat(keys_, "/", other, ".pem"));
      EXPECT_TRUE(made.ok()) << made.status();
      absl::StrAppend(&config, "trusted { public_key: \"", absl::Base64Escape(made->public_key()),
                      "\" namespaces: \"test\" }\n");
    }
    absl::StrAppend(&config, "}\n");
    // The limit is a loaded machine's.
    if (tier)
      absl::StrAppend(&config, "tier { lookup_ms_max: 10000 addresses: \"", redis_->address(), "\" }\n");
    return config;
  }
  v1::TierStatus StatusOf(TestDaemon& daemon) {
    grpc::ClientContext context;
    v1::StatusReply reply;
    EXPECT_TRUE(daemon.admin().Status(&context, {}, &reply).ok());
    return reply.tier();
  }
  // How many of them it had to compile.
  uint64_t CompileAll(TestDaemon& daemon, const std::vector<std::string>& scripts) {
    const uint64_t before = daemon.Stats().compiles();
    for (const std::string& script : scripts) {
      const CompileResult result = daemon.Compile(script);
      EXPECT_TRUE(result.status.ok()) << result.status.error_message();
      EXPECT_TRUE(result.done) << result.failed_reason;
    }
    return daemon.Stats().compiles() - before;
  }
  void AwaitWrites(TestDaemon& daemon, uint64_t count) {
    EXPECT_TRUE(Eventually([&] { return StatusOf(daemon).writes() >= count; }))
        << StatusOf(daemon).DebugString();
  }

  std::string keys_;
  std::unique_ptr<RedisServer> redis_;
};

}  // namespace kiln
