// A manifest's bytes, and its objects', depend on CompileKey, guards and tuning records alone
// (artifact.proto). Random graphs are compiled by real daemons and workers for callers with other sizes,
// files, titles and host names, by one worker and by two, in one order and the other: what has one VariantId
// has to have one value. What no drawn graph has – several variants, measurements – scripts have
// (tests/fault/scripted_worker.cc, scripted_tuner.cc), from the same callers.
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

// What each of several callers says of its own files and host.
void SayNotes(int caller, size_t nodes, v1::GraphNotes* notes) {
  notes->set_title(absl::StrCat("Model", caller, " inference"));
  notes->add_guards(absl::StrCat("tensor 'x' of host-", caller));
  for (size_t node = 0; node < nodes; ++node) {
    notes->add_node_names(absl::StrCat("node_", caller, "_", node));
    notes->add_source_lines(absl::StrCat("model_", caller, ".py:", node * (caller + 1), " in forward"));
  }
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
  SayNotes(caller, made.nodes, header.mutable_notes());
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

// ---- Scripts ---------------------------------------------------------------------------------

CompileResult CompileScript(TestDaemon& daemon, const std::string& script, int caller, int64_t size) {
  v1::CompileHeader header;
  header.set_namespace_("test");
  *header.mutable_sections() = SectionsOf(script);
  header.set_graph_bytes(script.size());
  header.mutable_hints()->add_values(size);
  SayNotes(caller, 3, header.mutable_notes());
  CompileResult result = daemon.Compile(header, script, absl::Seconds(120));
  EXPECT_TRUE(result.durable) << result.failed_reason << result.status.error_message();
  return result;
}

// A graph with three variants, made in either order, each for another of its sizes.
TEST(ManifestBytes, BelongToAVariantWhateverWasMadeBefore) {
  std::map<std::string, std::string> known;  // by VariantId
  int compared = 0;
  for (int caller = 0; caller < 4; ++caller) {
    NameThisHost(absl::StrCat("host-", caller));
    std::vector<int64_t> sizes = {8 + caller, 120 + caller, 250 + caller};
    if (caller % 2 == 1) std::reverse(sizes.begin(), sizes.end());
    TestDaemon daemon("", {}, "", /*workers=*/1 + caller / 2);
    for (const int64_t size : sizes) {
      const CompileResult made = CompileScript(daemon, "guarded\nkernels 2", caller, size);
      const auto [it, added] = known.try_emplace(made.manifest.variant_id(), made.manifest_bytes);
      compared += !added;
      EXPECT_TRUE(it->second == made.manifest_bytes) << "caller " << caller << " size " << size;
    }
  }
  EXPECT_EQ(known.size(), 3u);
  EXPECT_EQ(compared, 3 * 3);
}

constexpr char kMeasuresTheSame[] = "gemms 1 0";
constexpr char kMeasuresItsOwnTime[] = "gemms 8192";  // another each time

std::string Measuring() {
  return absl::StrCat("measuring { gpus: 1 binary: \"", SCRIPTED_TUNER,
                      "\" candidate_seconds_max: 1 lease_seconds_max: 60 }");
}

// Each daemon measures for itself, and finds the same.
TEST(ManifestBytes, BelongToTheTuningRecord) {
  std::vector<std::string> scripts = {kMeasuresTheSame, "rows 9\ngemms 1", "schedules 1 0",
                                      "convolutions 0 0\ntraced 1 1"};
  std::map<std::string, CompileResult> known;  // by script
  for (int caller = 0; caller < 2; ++caller) {
    NameThisHost(absl::StrCat("host-", caller));
    TestDaemon daemon(Measuring(), {}, "", /*workers=*/1 + caller);
    std::reverse(scripts.begin(), scripts.end());
    for (const std::string& script : scripts) {
      const CompileResult made = CompileScript(daemon, script, caller, 8 + caller);
      EXPECT_EQ(made.manifest.tuning().without(), "") << script;
      EXPECT_GT(made.manifest.tuning().measurements_size(), 0) << script;
      const auto [it, added] = known.try_emplace(script, made);
      if (added) continue;
      EXPECT_EQ(it->second.manifest.DebugString(), made.manifest.DebugString()) << script;
      EXPECT_TRUE(it->second.manifest_bytes == made.manifest_bytes) << script;
    }
    EXPECT_GT(daemon.Stats().tunables_measured(), 0u);
  }
}

// The control: of one CompileKey, by other measurements, there are other bytes, and their VariantId says so.
TEST(ManifestBytes, DifferByTheTuningRecord) {
  TestDaemon one(Measuring()), other(Measuring()), none("measuring { off: true }");
  const CompileResult first = CompileScript(one, kMeasuresItsOwnTime, 0, 8),
                      second = CompileScript(other, kMeasuresItsOwnTime, 0, 8),
                      third = CompileScript(none, kMeasuresItsOwnTime, 0, 8);
  EXPECT_EQ(first.manifest.compile_key(), second.manifest.compile_key());
  EXPECT_EQ(first.manifest.compile_key(), third.manifest.compile_key());
  EXPECT_NE(first.manifest_bytes, second.manifest_bytes);
  EXPECT_NE(first.manifest.variant_id(), second.manifest.variant_id());
  EXPECT_NE(first.manifest.variant_id(), third.manifest.variant_id());
}

}  // namespace
}  // namespace kiln::testing
