// Daemons with stores of their own and one shared tier: what one has compiled the others do not.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/signature.h"
#include "gtest/gtest.h"
#include "tests/fault/daemon.h"
#include "tests/fault/redis_server.h"

namespace kiln {
namespace {

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
    if (tier) absl::StrAppend(&config, "tier { addresses: \"", redis_->address(), "\" }\n");
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

std::vector<std::string> Scripts(int count) {
  std::vector<std::string> scripts;
  for (int i = 0; i < count; ++i) scripts.push_back(absl::StrCat("name program ", i, "\nkernels 3"));
  return scripts;
}

TEST_F(TierDaemons, TheSecondCompilesNothing) {
  const std::vector<std::string> scripts = Scripts(20);
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}));
  EXPECT_EQ(CompileAll(first, scripts), 20);
  AwaitWrites(first, 20);
  EXPECT_EQ(CompileAll(second, scripts), 0);
  const v1::TierStatus status = StatusOf(second);
  EXPECT_EQ(status.hits(), 20) << status.DebugString();
  EXPECT_EQ(status.refused(), 0);

  // What it serves is what was compiled, durable, with its objects, and known without the tier from now on.
  const CompileResult made = first.Compile(scripts[0]);
  const CompileResult taken = second.Compile(scripts[0]);
  EXPECT_EQ(made.manifest_bytes, taken.manifest_bytes);
  EXPECT_TRUE(taken.durable);
  ASSERT_EQ(taken.manifest.kernels_size(), 3);
  std::vector<std::string> digests;
  for (const v1::ManifestKernel& kernel : taken.manifest.kernels())
    digests.push_back(kernel.object().digest());
  grpc::Status fetched;
  EXPECT_FALSE(second.Fetch(taken.manifest, digests, &fetched).empty());
  EXPECT_TRUE(fetched.ok()) << fetched.error_message();
  redis_->Kill();
  EXPECT_EQ(CompileAll(second, scripts), 0);
}

// The control.
TEST_F(TierDaemons, WithoutATierTheSecondCompilesAll) {
  const std::vector<std::string> scripts = Scripts(5);
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}, /*tier=*/false));
  EXPECT_EQ(CompileAll(first, scripts), 5);
  AwaitWrites(first, 5);
  EXPECT_EQ(CompileAll(second, scripts), 5);
}

TEST_F(TierDaemons, WhoseKeyIsNotTrustedIsBelievedNothing) {
  const std::vector<std::string> scripts = Scripts(5);
  TestDaemon first(Config("first", {}));
  TestDaemon second(Config("second", {}));
  EXPECT_EQ(CompileAll(first, scripts), 5);
  AwaitWrites(first, 5);
  EXPECT_EQ(CompileAll(second, scripts), 5);
  EXPECT_EQ(StatusOf(second).refused(), 5);
}

TEST_F(TierDaemons, RefusalsAreSharedToo) {
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}));
  const std::string script = "refuse 12 no such operator";
  EXPECT_EQ(first.Compile(script).failed_code, 12);
  AwaitWrites(first, 1);
  const CompileResult told = second.Compile(script);
  EXPECT_EQ(told.failed_code, 12);
  EXPECT_EQ(told.failed_reason, "no such operator");
  EXPECT_EQ(second.Stats().compiles(), 0);
}

// A variant that the first has and the second has not, though it has another of the same key.
TEST_F(TierDaemons, VariantsComeOneByOne) {
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}));
  const std::string script = "name sized\nguarded";
  EXPECT_TRUE(first.Compile(script, {150}).done);
  AwaitWrites(first, 1);
  EXPECT_TRUE(second.Compile(script, {160}).done);
  EXPECT_EQ(second.Stats().compiles(), 0);
  EXPECT_TRUE(first.Compile(script, {250}).done);
  AwaitWrites(first, 2);
  EXPECT_TRUE(second.Compile(script, {260}).done);
  EXPECT_EQ(second.Stats().compiles(), 0);
  EXPECT_TRUE(second.Compile(script, {350}).done);
  EXPECT_EQ(second.Stats().compiles(), 1);
}

}  // namespace
}  // namespace kiln
