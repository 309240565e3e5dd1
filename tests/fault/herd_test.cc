// Hundreds of callers at once, over a few connections: one compile, one upload, the same bytes for all, and
// no thread of the daemon's for any of them.
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "compiler/support/zstd.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

constexpr int kConnections = 10;
constexpr int kThreadsMore = 4;  // than without any caller

// One Compile. It sends all it has at once, as libkiln does, and then reads to the end.
class HerdCall final : public grpc::ClientBidiReactor<v1::CompileRequest, v1::CompileEvent> {
 public:
  HerdCall(v1::Compiler::Stub& stub, const std::string& script) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    header_.mutable_header()->set_namespace_("test");
    *header_.mutable_header()->mutable_sections() = SectionsOf(script);
    header_.mutable_header()->set_graph_bytes(script.size());
    chunk_.set_graph_chunk(ZstdCompress(script));
    stub.async()->Compile(&context_, this);
    StartWrite(&header_);
    StartRead(&event_);
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    if (ok && writes_++ == 0) StartWriteLast(&chunk_, grpc::WriteOptions());
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      absl::MutexLock lock(&mutex_);
      waits_ = waits_ || event_.has_queued();
      if (event_.done().has_manifest()) manifest_ = event_.done().manifest().manifest();
      durable_ = durable_ || event_.done().durable();
    }
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mutex_);
    status_ = status;
    ended_ = true;
  }

  // Waits for the end.
  grpc::Status Await() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
    return status_;
  }
  bool waits() {
    absl::MutexLock lock(&mutex_);
    return waits_;
  }
  std::string manifest() {
    absl::MutexLock lock(&mutex_);
    return manifest_;
  }
  bool durable() {
    absl::MutexLock lock(&mutex_);
    return durable_;
  }
  void Leave() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  v1::CompileRequest header_, chunk_;
  v1::CompileEvent event_;
  int writes_ = 0;

  absl::Mutex mutex_;
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;
  bool durable_ ABSL_GUARDED_BY(mutex_) = false;
  std::string manifest_ ABSL_GUARDED_BY(mutex_);
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

class Herd : public testing::Test {
 protected:
  Herd() {
    for (int i = 0; i < kConnections; ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      stubs_.push_back(v1::Compiler::NewStub(grpc::CreateCustomChannel(
          absl::StrCat("unix:", daemon_.socket()), grpc::InsecureChannelCredentials(), arguments)));
    }
  }
  void Send(int callers, const std::string& script) {
    for (int i = 0; i < callers; ++i) {
      calls_.push_back(std::make_unique<HerdCall>(*stubs_[static_cast<size_t>(i % kConnections)], script));
    }
  }
  bool AllWait() {
    return Eventually([&] {
      for (const auto& call : calls_) {
        if (!call->waits()) return false;
      }
      return true;
    });
  }
  int Threads() const {
    std::ifstream status(absl::StrCat("/proc/", daemon_.pid(), "/status"));
    for (std::string word; status >> word;) {
      if (word == "Threads:") {
        int threads = 0;
        status >> threads;
        return threads;
      }
    }
    return -1;
  }

  TestDaemon daemon_;
  std::vector<std::unique_ptr<v1::Compiler::Stub>> stubs_;
  std::vector<std::unique_ptr<HerdCall>> calls_;
};

TEST_F(Herd, IsOneCompileOneUploadAndTheSameBytes) {
  daemon_.Compile("name first");  // what the first call costs is there
  const int idle = Threads();
  Send(Count(400, 1000), "sleep_ms 1500\nname herd");
  // The one who uploads is told of its place when it has.
  ASSERT_TRUE(AllWait());
  EXPECT_LE(Threads(), idle + kThreadsMore);
  EXPECT_TRUE(daemon_.Lookup("name first").has_hit()) << "others are served meanwhile";
  std::set<std::string> manifests;
  for (const auto& call : calls_) {
    const grpc::Status status = call->Await();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(call->durable());
    manifests.insert(call->manifest());
  }
  EXPECT_EQ(manifests.size(), 1u);
  const v1::StatsReply stats = daemon_.Stats();
  EXPECT_EQ(stats.compiles(), 2u);
  EXPECT_EQ(stats.graphs_uploaded(), 2u);
}

// The control: of two keys there are two compiles, two uploads, and manifests that differ.
TEST_F(Herd, OfTwoKeysIsTwoCompiles) {
  Send(50, "sleep_ms 300\nname one");
  Send(50, "sleep_ms 300\nname two");
  std::set<std::string> manifests;
  for (const auto& call : calls_) {
    ASSERT_TRUE(call->Await().ok());
    manifests.insert(call->manifest());
  }
  EXPECT_EQ(manifests.size(), 2u);
  EXPECT_EQ(daemon_.Stats().compiles(), 2u);
  EXPECT_EQ(daemon_.Stats().graphs_uploaded(), 2u);
}

TEST_F(Herd, WhenItsLeaderLeavesTheOthersAreServed) {
  Send(1, "sleep_ms 800\nname led");
  ASSERT_TRUE(AllWait());
  Send(100, "sleep_ms 800\nname led");
  ASSERT_TRUE(AllWait());
  calls_[0]->Leave();
  EXPECT_EQ(calls_[0]->Await().error_code(), grpc::CANCELLED);
  for (size_t i = 1; i < calls_.size(); ++i) {
    EXPECT_TRUE(calls_[i]->Await().ok());
    EXPECT_TRUE(calls_[i]->durable());
  }
  EXPECT_EQ(daemon_.Stats().compiles(), 1u);
}

}  // namespace
}  // namespace kiln
