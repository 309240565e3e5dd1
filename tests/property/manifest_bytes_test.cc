// A manifest's bytes, and its objects', depend on CompileKey, guards and tuning records alone
// (artifact.proto). Random graphs are compiled by real daemons and workers for callers with other sizes,
// files, titles and host names, by one worker and by two, in one order and the other: what has one VariantId
// has to have one value.
//
// The seed is fixed; KILN_SEED starts elsewhere, KILN_CASES says how many graphs.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/graph/canonical.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "tests/conformance/gpu_target.h"
#include "tests/conformance/host_target.h"
#include "tests/fault/test_daemon.h"
#include "tests/property/campaign.h"
#include "tests/property/random_graph.h"

namespace kiln::testing {
namespace {

struct Case {
  uint64_t seed = 0;
  v1::RequestSections sections;
  std::string graph;
  size_t nodes = 0;
  bool symbolic = false;
  v1::Hints hints;  // as drawn
};

Case MakeCase(uint64_t seed) {
  RandomGraphOptions options;
  options.nodes = 4 + static_cast<int>(seed % 16);
  options.symbolic = seed % 4 != 0;
  options.mutation = seed % 5 == 2;
  options.device = seed % 8 == 5 ? v1::CUDA : v1::CPU;
  const RandomGraph random = MakeRandomGraph(seed, options);
  Case made;
  made.seed = seed;
  auto canonical = Canonicalize(random.graph);
  EXPECT_TRUE(canonical.ok()) << canonical.status();
  if (!canonical.ok()) return made;
  made.graph = canonical->bytes;
  made.nodes = random.graph.nodes_size();
  made.symbolic = options.symbolic;
  made.hints = random.hints;
  made.sections.set_facts(random.facts.SerializeAsString());
  const v1::Target target = options.device == v1::CUDA ? GpuTarget("sm_90a") : X86Target(HostHasAvx512());
  made.sections.set_target(target.SerializeAsString());
  made.sections.set_graph_digest(Sha256(made.graph));
  return made;
}

// One of several callers, each with sizes, files and a host of its own.
v1::CompileHeader HeaderOf(const Case& made, int caller) {
  v1::CompileHeader header;
  header.set_namespace_("test");
  *header.mutable_sections() = made.sections;
  header.set_graph_bytes(made.graph.size());
  *header.mutable_hints() = made.hints;
  const int64_t sizes[] = {0, 3, 24, 1000};
  if (made.symbolic && caller > 0) header.mutable_hints()->set_values(0, sizes[caller]);
  v1::GraphNotes* notes = header.mutable_notes();
  notes->set_title(absl::StrCat("Model", caller, " inference"));
  notes->add_guards(absl::StrCat("tensor 'x' of host-", caller));
  for (size_t node = 0; node < made.nodes; ++node) {
    notes->add_node_names(absl::StrCat("node_", caller, "_", node));
    notes->add_source_lines(absl::StrCat("model_", caller, ".py:", node * (caller + 1), " in forward"));
  }
  return header;
}

// Where that is allowed, of this process and those that it starts.
void NameThisHost(const std::string& name) {
  if (unshare(CLONE_NEWUTS) != 0) return;
  EXPECT_EQ(sethostname(name.data(), name.size()), 0);
}

std::vector<std::string> Digests(const v1::Manifest& manifest) {
  std::vector<std::string> digests;
  for (const v1::ManifestKernel& kernel : manifest.kernels()) {
    digests.push_back(kernel.object().digest());
    digests.push_back(kernel.loop_ir().digest());
  }
  return digests;
}

struct Made {
  std::string manifest;
  std::string objects;
  std::string text;  // for people
};

TEST(ManifestBytes, BelongToNoCallerAndNoWorker) {
  const auto [first, cases] = CampaignFromEnv(1, 50, 200);
  std::vector<Case> all;
  for (uint64_t seed = first; seed < first + cases; ++seed) all.push_back(MakeCase(seed));
  if (HasFailure()) return;

  std::map<std::string, Made> known;  // by VariantId
  uint64_t compared = 0, refused = 0;
  for (int caller = 0; caller < 4; ++caller) {
    for (int order = 0; order < 2; ++order) {
      NameThisHost(absl::StrCat("host-", caller, "-", order));
      // Workers of the first have compiled other kernels before than those of the second.
      TestDaemon daemon("", {}, KILN_WORKER, /*workers=*/1 + order);
      std::reverse(all.begin(), all.end());
      for (const Case& made : all) {
        SCOPED_TRACE(absl::StrCat("KILN_SEED=", made.seed, " caller ", caller, " order ", order));
        const CompileResult result = daemon.Compile(HeaderOf(made, caller), made.graph, absl::Seconds(120));
        if (result.failed_code != 0) {
          // Sizes that the graph itself forbids.
          ASSERT_EQ(result.failed_code, static_cast<int>(absl::StatusCode::kInvalidArgument))
              << result.failed_reason;
          ASSERT_GT(caller, 0) << result.failed_reason;
          ++refused;
          continue;
        }
        ASSERT_TRUE(result.status.ok() && result.durable) << result.status.error_message();
        grpc::Status fetched;
        Made now = {result.manifest_bytes, daemon.Fetch(result.manifest, Digests(result.manifest), &fetched),
                    result.manifest.DebugString()};
        ASSERT_TRUE(fetched.ok()) << fetched.error_message();
        const auto [it, added] = known.try_emplace(result.manifest.variant_id(), now);
        if (added) continue;
        ++compared;
        ASSERT_EQ(it->second.text, now.text);
        ASSERT_TRUE(it->second.manifest == now.manifest);
        ASSERT_TRUE(it->second.objects == now.objects);
      }
    }
  }
  EXPECT_EQ(known.size(), all.size());
  EXPECT_EQ(compared + refused, 7 * all.size());
  EXPECT_LT(refused, all.size());
}

// The control: a worker that lets a caller's size into what all callers get is seen.
TEST(ManifestBytes, DifferWhereAWorkerTellsACallersSize) {
  const char script[] = "tells_hint ";
  const CompileResult one = TestDaemon().Compile(script, {8}), other = TestDaemon().Compile(script, {9});
  ASSERT_TRUE(one.durable && other.durable);
  EXPECT_EQ(one.manifest.variant_id(), other.manifest.variant_id());
  EXPECT_NE(one.manifest_bytes, other.manifest_bytes);
}

}  // namespace
}  // namespace kiln::testing
