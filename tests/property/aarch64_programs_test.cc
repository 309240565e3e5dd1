// A daemon on x86 compiles for AArch64: random graphs go the whole way, by kilnd and kiln-worker, and each
// kernel of their programs, fetched as a client fetches it, runs emulated beside the interpreter on the loop
// IR that came with it. The seed is fixed; KILN_SEED starts elsewhere, KILN_CASES says how many graphs.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/canonical.h"
#include "compiler/image/flat_image.h"
#include "compiler/ir/interpreter.h"
#include "compiler/ir/print.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/support/digest.h"
#include "compiler/support/zstd.h"
#include "tests/conformance/arm_target.h"
#include "tests/conformance/backend_harness.h"
#include "tests/conformance/host_target.h"
#include "tests/conformance/with_emulated_cpu.h"
#include "tests/fault/test_daemon.h"
#include "tests/property/campaign.h"
#include "tests/property/random_graph.h"

namespace kiln::testing {
namespace {

v1::CompileHeader HeaderOf(const RandomGraph& random, const CanonicalGraph& graph, const v1::Target& target) {
  v1::CompileHeader header;
  header.set_namespace_("test");
  header.mutable_sections()->set_facts(random.facts.SerializeAsString());
  header.mutable_sections()->set_target(target.SerializeAsString());
  header.mutable_sections()->set_graph_digest(Sha256(graph.bytes));
  header.set_graph_bytes(graph.bytes.size());
  *header.mutable_hints() = random.hints;
  return header;
}

// As a client has them: fetched, decompressed, and of the digest that the manifest says.
std::string Object(TestDaemon& daemon, const v1::Manifest& manifest, const v1::ObjectRef& ref) {
  grpc::Status status;
  const std::string packed = daemon.Fetch(manifest, {ref.digest()}, &status);
  EXPECT_TRUE(status.ok()) << status.error_message();
  auto raw = ZstdDecompress(packed, ref.raw_size());
  EXPECT_TRUE(raw.ok()) << raw.status();
  if (!raw.ok()) return "";
  EXPECT_EQ(Sha256(*raw), ref.digest());
  return *std::move(raw);
}

// Numbers of a size that sums of them keep apart.
TestBuffer Moderate(const v1::KernelBuffer& buffer, int64_t elements, std::mt19937_64& random) {
  if (buffer.dtype() == v1::BOOL || (buffer.dtype() >= v1::U8 && buffer.dtype() <= v1::I64)) {
    std::vector<int64_t> values(elements);
    for (int64_t& value : values) value = static_cast<int64_t>(random() % 2);
    return IntBuffer(buffer.dtype(), values);
  }
  std::vector<double> values(elements);
  for (double& value : values) value = std::uniform_real_distribution<double>(-2, 2)(random);
  return FloatBuffer(buffer.dtype(), values);
}

class AArch64ProgramsTest : public WithEmulatedCpu {
 protected:
  void CheckKernel(const std::string& image, const std::string& loop_ir) {
    v1::Kernel kernel;
    ASSERT_TRUE(kernel.ParseFromString(loop_ir));
    ASSERT_EQ(kernel.symbol_count(), 0u);
    const KernelFacts facts(kernel);
    std::vector<TestBuffer> buffers;
    for (const v1::KernelBuffer& buffer : kernel.buffers()) {
      const std::optional<int64_t> span = facts.ConstantExpr(buffer.span());
      ASSERT_TRUE(span.has_value());
      buffers.push_back(Moderate(buffer, *span, random_));
    }
    auto expected = NewInterpreterRunner()->Run(kernel, buffers, {}, false, random_);
    ASSERT_TRUE(expected.ok()) << expected.status();
    auto interpreter = KernelInterpreter::Create(kernel);
    ASSERT_TRUE(interpreter.ok()) << interpreter.status();
    auto units = (*interpreter)->Units(nullptr);
    ASSERT_TRUE(units.ok()) << units.status();
    std::vector<EmulatedCpu::Buffer> passed;
    for (TestBuffer& buffer : buffers) passed.push_back({&buffer.bytes, 0});
    ASSERT_TRUE(cpu_->Load(image, 0).ok());
    auto reply = cpu_->Run(passed, {}, {{0, *units}});
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->status.code, expected->status.code);
    if (expected->status.code != 0) return;
    // Of half precision 64 would be half of the value.
    const bool half = absl::c_any_of(kernel.buffers(), [](const auto& buffer) {
      return buffer.dtype() == v1::BF16 || buffer.dtype() == v1::F16;
    });
    EXPECT_EQ(Difference(buffers, expected->buffers, {.ulps = half ? 4. : 64., .relative = 1e-5}), "")
        << PrintKernel(kernel, {});
  }

  std::mt19937_64 random_{20261128};
};

TEST_F(AArch64ProgramsTest, KernelsOfADaemonsProgramsAgreeWithTheInterpreter) {
  const auto [first, cases] = CampaignFromEnv(1, 25, 500);
  TestDaemon daemon("", {}, KILN_WORKER, /*workers=*/1);
  std::set<std::string> seen;
  for (uint64_t seed = first; seed < first + cases && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("KILN_SEED=", seed));
    RandomGraphOptions options;
    options.nodes = 4 + static_cast<int>(seed % 16);
    options.dtype = seed % 3 == 0 ? v1::BF16 : seed % 3 == 1 ? v1::F16 : v1::F32;
    const RandomGraph random = MakeRandomGraph(seed, options);
    auto graph = Canonicalize(random.graph);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const v1::CompileHeader header = HeaderOf(random, *graph, NeonTarget("grace"));
    const CompileResult made = daemon.Compile(header, graph->bytes, absl::Seconds(120));
    ASSERT_TRUE(made.done) << made.status.error_message() << made.failed_reason;
    for (const v1::ManifestKernel& kernel : made.manifest.kernels()) {
      if (!seen.insert(kernel.object().digest()).second) continue;
      const std::string image = Object(daemon, made.manifest, kernel.object());
      const absl::string_view images[] = {image};
      EXPECT_EQ(LoadImages(images).status().code(), absl::StatusCode::kFailedPrecondition);  // not here
      CheckKernel(image, Object(daemon, made.manifest, kernel.loop_ir()));
    }
  }
  EXPECT_GT(seen.size(), cases / 2);
}

// What a program calls beside kernels is ATen's, and the same on every CPU.
TEST(AArch64Programs, CallWhatThoseOfX86Call) {
  TestDaemon daemon("", {}, KILN_WORKER, /*workers=*/1);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const RandomGraph random = MakeRandomGraph(seed, {});
    auto graph = Canonicalize(random.graph);
    ASSERT_TRUE(graph.ok()) << graph.status();
    std::vector<std::string> calls;
    for (const v1::Target& target : {X86Target(/*avx512=*/false), NeonTarget()}) {
      const CompileResult made =
          daemon.Compile(HeaderOf(random, *graph, target), graph->bytes, absl::Seconds(120));
      ASSERT_TRUE(made.done) << made.status.error_message() << made.failed_reason;
      std::string& text = calls.emplace_back();
      for (const v1::LibraryCall& call : made.manifest.statistics().calls())
        text += call.ShortDebugString() + "\n";
    }
    EXPECT_EQ(calls[0], calls[1]);
  }
}

}  // namespace
}  // namespace kiln::testing
