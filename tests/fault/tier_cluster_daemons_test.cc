// Daemons whose tier is a Redis cluster, by the user that docs/cluster.md gives them: while a slot moves and
// a master dies each compile ends with the right bytes, and programs are shared again by themselves.
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/shared/tier_value.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "tests/fault/redis_nodes.h"
#include "tests/fault/tier_daemons.h"

namespace kiln {
namespace {

class ClusterDaemons : public TierDaemons {
 protected:
  void SetUp() override {
    TierDaemons::SetUp();
    if (IsSkipped()) return;
    nodes_ = std::make_unique<RedisNodes>();
    Allow("+cluster|slots");
    std::ofstream(password_file()) << "secret\n";
    chmod(password_file().c_str(), 0600);
  }
  std::string password_file() const { return keys_ + "/tier.password"; }
  // As docs/cluster.md says, and besides.
  void Allow(const std::string& besides) {
    for (int i = 0; i < 2 * RedisNodes::kMasters; ++i) {
      EXPECT_EQ(nodes_->Ask(i, {"ACL", "SETUSER", "kiln", "on", ">secret", "~kiln:1:test:*", "+@read",
                                "+@write", "+@scripting", "+@connection", "-@dangerous", besides}),
                "OK");
    }
  }
  std::string Cluster(const std::string& key, const std::vector<std::string>& trusted) {
    return absl::StrCat(Config(key, trusted, /*tier=*/false), "tier { lookup_ms_max: 2000 cluster: true ",
                        "addresses: \"", nodes_->address(4), "\" addresses: \"", nodes_->address(1), "\" ",
                        "user: \"kiln\" password_file: \"", password_file(), "\" }\n");
  }
  static std::string KeyOfScript(const std::string& script) {
    return CompileKey("test", RequestKey(SectionsOf(script)), kProgramFormatVersion, "scripted-1");
  }
  static std::string Objects(TestDaemon& daemon, const CompileResult& result) {
    std::vector<std::string> digests;
    for (const v1::ManifestKernel& kernel : result.manifest.kernels())
      digests.push_back(kernel.object().digest());
    grpc::Status fetched;
    return daemon.Fetch(result.manifest, digests, &fetched);
  }
  // To the next master, with all that it has of the key, and back.
  void MoveThereAndBack(const std::string& compile_key) {
    const int slot = RedisSlot(TierName("test", compile_key, "m"));
    const int home = RedisNodes::OwnerOf(slot), other = (home + 1) % RedisNodes::kMasters;
    for (const auto& [from, to] : {std::pair(home, other), std::pair(other, home)}) {
      nodes_->BeginMove(slot, from, to);
      nodes_->MoveKeys(nodes_->server(from).Keys(absl::StrCat("*{", ToHex(compile_key), "}*")), from, to);
      nodes_->EndMove(slot, to);
    }
  }

  std::unique_ptr<RedisNodes> nodes_;
};

TEST_F(ClusterDaemons, ASlotThatMovesAndAMasterThatDiesCostNoCompile) {
  TestDaemon first(Cluster("first", {"second"}));
  TestDaemon second(Cluster("second", {"first"}));
  TestDaemon alone(Config("alone", {}, /*tier=*/false));
  EXPECT_TRUE(Eventually([&] { return StatusOf(first).connected() && StatusOf(second).connected(); }))
      << StatusOf(first).DebugString();
  std::vector<std::string> before;
  for (int i = 0; i < 12; ++i) before.push_back(absl::StrCat("name before ", i, "\nkernels 2"));
  EXPECT_EQ(CompileAll(first, before), 12);
  AwaitWrites(first, 12);

  std::atomic<bool> over{false};
  std::map<std::string, CompileResult> made, taken;
  std::thread caller([&] {
    for (size_t i = 0; !over; ++i) {
      const std::string fresh = absl::StrCat("name during ", i, "\nkernels 2");
      const std::string script = i < before.size() ? before[i] : fresh;
      made[script] = first.Compile(script);
      taken[script] = second.Compile(script);
    }
  });
  for (size_t i = 0; i < 5; ++i) MoveThereAndBack(KeyOfScript(before[i]));
  nodes_->server(0).Kill();
  EXPECT_TRUE(Eventually(
      [&] {
        return nodes_->Ask(RedisNodes::kMasters, {"INFO", "replication"}).find("role:master") !=
               std::string::npos;
      },
      absl::Seconds(60)));
  over = true;
  caller.join();
  int number = 0;
  EXPECT_TRUE(Eventually(
      [&] {
        std::vector<std::string> scripts;
        for (int i = 0; i < 8; ++i) scripts.push_back(absl::StrCat("name after ", number++));
        const uint64_t written = StatusOf(first).writes();
        CompileAll(first, scripts);
        Eventually([&] { return StatusOf(first).writes() >= written + 8; }, absl::Seconds(1));
        return CompileAll(second, scripts) == 0;
      },
      absl::Seconds(60)));
  EXPECT_GE(made.size(), 5) << "too little was compiled meanwhile";
  std::cout << made.size() << " programs of two daemons while slots moved and a master died; "
            << StatusOf(second).hits() << " came from the tier\n";
  for (const auto& [script, result] : made) {
    const CompileResult right = alone.Compile(script);
    for (const auto& [daemon, of] :
         {std::pair(&first, &result), std::pair(&second, &std::as_const(taken).at(script))}) {
      EXPECT_TRUE(of->done) << script << of->failed_reason << of->status.error_message();
      EXPECT_EQ(of->manifest_bytes, right.manifest_bytes) << script;
      EXPECT_EQ(Objects(*daemon, *of), Objects(alone, right)) << script;
    }
  }
  EXPECT_EQ(StatusOf(first).refused() + StatusOf(second).refused(), 0);
}

// The control of what the document gives.
TEST_F(ClusterDaemons, WithoutTheRightToAskForSlotsADaemonIsNotConnectedAndSaysSo) {
  Allow("-cluster|slots");
  TestDaemon daemon(Cluster("daemon", {}));
  EXPECT_TRUE(daemon.Compile("name compiled here").done);
  EXPECT_FALSE(StatusOf(daemon).connected());
  EXPECT_NE(StatusOf(daemon).message().find("NOPERM"), std::string::npos) << StatusOf(daemon).DebugString();
}

}  // namespace
}  // namespace kiln
