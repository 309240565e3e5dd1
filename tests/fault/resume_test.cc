// Connections to a distant kilnd that break: in a compile, in a fetch, once, again and again, and for good.
// What is being compiled goes on for its caller, which joins it.
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/monotonic_time.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/cut_proxy.h"
#include "tests/fault/upstream_daemons.h"

namespace kiln {
namespace {

constexpr int kTriesMax = 5;  // a compile's, and four more

class ResumeTest : public UpstreamTlsDaemons {
 protected:
  ClientOptions Options() {
    ClientOptions options;
    options.address = proxy_.address();
    options.tls.authority = absl::StrCat(directory_, "/ca.crt");
    options.tls.certificate = absl::StrCat(directory_, "/red.crt");
    options.tls.key = absl::StrCat(directory_, "/red.key");
    options.compile_seconds = 60;
    options.connect_seconds = 5;
    return options;
  }
  static CompileRequestInput Input(const std::string& script) {
    CompileRequestInput input;
    input.graph = script;
    input.sections = SectionsOf(script);
    input.request_key = RequestKey(input.sections);
    return input;
  }
  static size_t ObjectsOfResult(const CompiledArtifact& artifact) { return artifact.objects.size(); }
  void AwaitCompile() {
    EXPECT_TRUE(Eventually([&] { return farm_.Stats().compiles() == 1 && Jobs(farm_) == 1; }));
  }

  TestDaemon farm_{Farm()};
  CutProxy proxy_{AddressOf(farm_)};
};

TEST_F(ResumeTest, ACompileWhoseConnectionBreaksIsJoinedAgain) {
  std::thread breaks([&] {
    AwaitCompile();
    proxy_.Cut();
  });
  const auto got = NewClient(Options())->Get(Input("name long\nsleep_ms 3000\nkernels 2"), /*compile=*/true);
  breaks.join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(got->joined);
  EXPECT_EQ(got->uploaded_bytes, 0) << "of the connection that it came by";
  ASSERT_EQ(got->recovered.size(), 1);
  EXPECT_TRUE(absl::StrContains(got->recovered[0], "went away during a compile"));
  EXPECT_EQ(farm_.Stats().compiles(), 1);
  EXPECT_EQ(farm_.Stats().graphs_uploaded(), 1);
  EXPECT_EQ(proxy_.accepted(), 2);
  EXPECT_EQ(got->manifest.kernels_size(), 2);
}

TEST_F(ResumeTest, AConnectionThatBreaksAgainIsMadeAgain) {
  std::thread breaks([&] {
    AwaitCompile();
    for (int connections = 1; connections <= 3; ++connections) {
      EXPECT_TRUE(Eventually([&] { return proxy_.accepted() == connections && proxy_.open() == 1; }));
      absl::SleepFor(absl::Milliseconds(100));
      proxy_.Cut();
    }
  });
  const auto got = NewClient(Options())->Get(Input("name long\nsleep_ms 5000"), /*compile=*/true);
  breaks.join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(farm_.Stats().compiles(), 1);
  EXPECT_EQ(farm_.Stats().graphs_uploaded(), 1);
}

// What is compiled meanwhile is a hit.
TEST_F(ResumeTest, ANetworkThatIsAwayForAMomentIsWaitedFor) {
  std::thread breaks([&] {
    AwaitCompile();
    proxy_.Refuse(true);
    proxy_.Cut();
    EXPECT_TRUE(Eventually([&] { return Jobs(farm_) == 0; }));
    proxy_.Refuse(false);
  });
  const auto got = NewClient(Options())->Get(Input("name long\nsleep_ms 1500"), /*compile=*/true);
  breaks.join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(got->hit);
  EXPECT_EQ(farm_.Stats().compiles(), 1);
}

TEST_F(ResumeTest, ANetworkThatNeverComesBackIsGivenUp) {
  std::thread breaks([&] {
    AwaitCompile();
    proxy_.Refuse(true);
    proxy_.Cut();
  });
  ClientOptions options = Options();
  options.connect_seconds = 1;
  const MonotonicTime begin = MonotonicNow();
  const auto got = NewClient(options)->Get(Input("name long\nsleep_ms 20000"), /*compile=*/true);
  breaks.join();
  EXPECT_TRUE(absl::IsUnavailable(got.status()) || absl::IsUnauthenticated(got.status())) << got.status();
  EXPECT_LT(SecondsBetween(begin, MonotonicNow()), 25);
}

TEST_F(ResumeTest, ANetworkThatBreaksOnAndOnIsGivenUp) {
  std::atomic<bool> over{false};
  std::thread breaks([&] {
    AwaitCompile();
    while (!over) {
      proxy_.Cut();
      absl::SleepFor(absl::Milliseconds(300));
    }
  });
  ClientOptions options = Options();
  options.connect_seconds = 2;
  const auto lost = NewClient(options)->Get(Input("name long\nsleep_ms 40000"), /*compile=*/true);
  over = true;
  breaks.join();
  EXPECT_TRUE(absl::IsUnavailable(lost.status()) || absl::IsUnauthenticated(lost.status())) << lost.status();
  EXPECT_LE(farm_.Stats().lookups(), kTriesMax);
  EXPECT_EQ(farm_.Stats().graphs_uploaded(), 1);
  EXPECT_EQ(Jobs(farm_), 1) << "it goes on for whoever comes again";
}

// The control: who leaves is not waited for, and the workers are free at once.
TEST_F(ResumeTest, WhoLeavesIsNotWaitedFor) {
  Cancellation leaves;
  std::thread interrupt([&] {
    AwaitCompile();
    leaves.Cancel();
  });
  const std::unique_ptr<Client> client = NewClient(Options());
  const auto got = client->Get(Input("name long\nsleep_ms 30000"), /*compile=*/true, &leaves);
  interrupt.join();
  EXPECT_TRUE(absl::IsCancelled(got.status())) << got.status();
  EXPECT_TRUE(Eventually([&] { return Jobs(farm_) == 0; }, absl::Seconds(5)));
}

// One that does not come again is waited for half a minute, and one who comes for another graph is not it.
TEST_F(ResumeTest, AFlightWithoutItsGraphIsNotWaitedFor) {
  const CertificatePair pair = PairOf("red");
  grpc::SslCredentialsOptions files;
  files.pem_root_certs = authority_.certificate();
  files.pem_cert_chain = pair.certificate;
  files.pem_private_key = pair.key;
  const auto stub = v1::Compiler::NewStub(grpc::CreateChannel(proxy_.address(), grpc::SslCredentials(files)));
  grpc::ClientContext context;
  const auto stream = stub->Compile(&context);
  v1::CompileRequest request;
  *request.mutable_header()->mutable_sections() = SectionsOf("name half");
  request.mutable_header()->set_graph_bytes(9);
  EXPECT_TRUE(stream->Write(request));
  EXPECT_TRUE(Eventually([&] { return Jobs(farm_) == 1; }));
  proxy_.Cut();
  EXPECT_TRUE(Eventually([&] { return Jobs(farm_) == 0; }, absl::Seconds(5)));
  context.TryCancel();
}

TEST_F(ResumeTest, AFetchThatBreaksGoesOnWithWhatIsMissing) {
  std::string noise;  // objects of some hundred kilobytes, which do not compress away
  for (int i = 0; i < 4096; ++i) noise += Sha256(absl::StrCat(i));
  const std::string script = absl::StrCat("kernels 6\nname ", absl::BytesToHexString(noise));
  const auto right = NewClient(Options())->Get(Input(script), /*compile=*/true);
  ASSERT_TRUE(right.ok()) << right.status();
  const uint64_t once = farm_.Stats().fetched_objects();
  ASSERT_GE(once, 6);
  uint64_t bytes = 0;
  for (const v1::ObjectRef* object : ObjectsOf(right->manifest)) {
    if (right->objects.count(object->digest()) > 0) bytes += object->packed_size();
  }
  ASSERT_GT(bytes, 200'000) << "more than one write";
  const int before = proxy_.accepted();
  proxy_.CutAfter(static_cast<int64_t>(bytes / 2));
  std::thread mends([&] {
    EXPECT_TRUE(Eventually([&] { return proxy_.accepted() > before && proxy_.open() == 0; }));
    proxy_.CutAfter(-1);
  });
  ClientOptions options = Options();
  options.idle_seconds = 0.01;
  const auto got = NewClient(options)->Get(Input(script), /*compile=*/true);  // a hit of another process
  mends.join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(ObjectsOfResult(*got), ObjectsOfResult(*right));
  for (const auto& [digest, object] : right->objects) EXPECT_EQ(*got->objects.at(digest), *object);
  EXPECT_GE(proxy_.accepted() - before, 2) << "it broke";
  EXPECT_LT(got->fetched_objects, once) << "by the second connection";
}

}  // namespace
}  // namespace kiln
