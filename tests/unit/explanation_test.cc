// Why a program was compiled: which stored program is nearest, what else is a reason, and what is read for
// it.
#include "server/rpc/explanation.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache/chain/store_config.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "kiln/v1/artifact.pb.h"
#include "server/build/artifact.h"
#include "server/server_limits.h"
#include "tests/conformance/store_testing.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;

struct Program {
  std::string title = "f forward";
  std::string graph = "graph";
  bool deterministic = false;
  std::string compiler = "compiler 1";
  std::string ns = "red";
};

v1::RequestRecord RecordOf(const Program& program) {
  v1::RequestRecord record;
  record.set_namespace_(program.ns);
  record.mutable_notes()->set_title(program.title);
  record.mutable_sections()->set_graph_digest(Sha256(program.graph));
  v1::Numerics numerics;
  numerics.set_deterministic(program.deterministic);
  record.mutable_sections()->set_numerics(numerics.SerializeAsString());
  record.set_compiler_fingerprint(program.compiler);
  record.set_request_key(Sha256(absl::StrCat(program.graph, program.deterministic)));
  return record;
}

std::string KeyOf(const std::string& name) { return Sha256(name); }

class ExplanationTest : public testing::Test {
 protected:
  void SetUp() override {
    v1::StoreConfig config;
    config.set_directory(directory_.path());
    StoreEnvironment environment;
    environment.now_unix_seconds = [this] { return now_; };
    auto store = NewStore(config, environment);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  // A second later than the last, with a variant for sizes up to `largest`.
  void Store(const std::string& name, const Program& program, int64_t largest = 100) {
    ++now_;
    v1::Manifest manifest;
    manifest.set_compile_key(KeyOf(name));
    manifest.set_variant_id(Sha256(absl::StrCat(name, largest)));
    v1::Symbol& symbol = *manifest.mutable_guards()->add_symbols();
    symbol.set_kind(v1::SYMBOL_INT);
    symbol.set_min(1);
    symbol.set_max(largest);
    v1::SignedManifest signed_manifest;
    signed_manifest.set_manifest(manifest.SerializeAsString());
    const std::vector<Entry> batch = {
        {{EntryKind::kManifest, ManifestEntryKey(KeyOf(name), manifest.variant_id())},
         MakeEntryValue(signed_manifest.SerializeAsString())},
        {RequestRecordId(KeyOf(name)), MakeEntryValue(RecordOf(program).SerializeAsString())}};
    ASSERT_TRUE(store_->artifacts().Put(batch).ok());
  }
  void Miss(const std::string& name, const Program& program, const std::string& job = "nightly",
            size_t variants_known = 0, int64_t size = 7) {
    ++now_;
    MissTable::Miss miss;
    miss.tenant = program.ns;
    miss.job = job;
    miss.compile_key = KeyOf(name);
    miss.record = RecordOf(program);
    miss.record.mutable_hints()->add_values(size);
    miss.unix_seconds = now_;
    miss.variants_known = variants_known;
    misses_.Add(std::move(miss));
  }
  absl::StatusOr<v1::WhyReply> Ask(const std::string& about, const CallerGone& gone = [] { return false; }) {
    v1::WhyRequest request;
    request.set_about(about);
    v1::WhyReply reply;
    const absl::Status status = Explain(*store_, misses_.Last(), request, gone, tier_, &reply);
    if (!status.ok()) return status;
    return reply;
  }
  v1::Explanation Why(const std::string& about) {
    const auto reply = Ask(about);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() && reply->explanations_size() > 0 ? reply->explanations(0) : v1::Explanation();
  }

  int64_t now_ = 1'700'000'000;
  TemporaryDirectory directory_;
  std::unique_ptr<kiln::Store> store_;
  MissTable misses_;
  ProgramsInTier tier_;
};

TEST_F(ExplanationTest, NearestIsWhoHasMostIngredientsThenTheTitleThenTheLatest) {
  Store("other graph and numerics", {.graph = "other", .deterministic = true});
  Store("other numerics", {.deterministic = true});
  Store("other graph", {.graph = "another"});
  Store("other graph and title", {.title = "g forward", .graph = "a third"});
  Miss("new", {});
  v1::Explanation why = Why("nightly");
  EXPECT_EQ(why.why(), v1::WHY_INGREDIENT);
  EXPECT_EQ(why.nearest().compile_key(), KeyOf("other graph")) << "as near as \"other numerics\", and later";
  ASSERT_EQ(why.differences_size(), 1);
  EXPECT_EQ(why.differences(0).ingredient(), "graph");
  Store("later", {.deterministic = true});
  EXPECT_EQ(Why("nightly").nearest().compile_key(), KeyOf("other graph")) << "what came later is no reason";
  Miss("newer", {});
  why = Why("nightly");
  EXPECT_EQ(why.nearest().compile_key(), KeyOf("later")) << "the control";
  ASSERT_EQ(why.differences_size(), 1);
  EXPECT_EQ(why.differences(0).field(), "deterministic");
  EXPECT_EQ(why.differences(0).here(), "false");
  EXPECT_EQ(why.differences(0).there(), "true");
}

TEST_F(ExplanationTest, AnotherCompilerIsAnIngredient) {
  Store("old", {.compiler = "compiler 0"});
  Miss("new", {});
  const v1::Explanation why = Why("nightly");
  ASSERT_EQ(why.differences_size(), 1);
  EXPECT_EQ(why.differences(0).ingredient(), "compiler");
  EXPECT_EQ(why.differences(0).there(), "compiler 0");
}

TEST_F(ExplanationTest, TheFirstOfAll) {
  Miss("new", {});
  EXPECT_EQ(Why("").why(), v1::WHY_FIRST);
  Store("new", {});
  EXPECT_EQ(Why("").why(), v1::WHY_FIRST) << "it is not compared with itself";
}

TEST_F(ExplanationTest, SizesThatNoVariantHolds) {
  Store("f", {}, /*largest=*/5);
  Miss("f", {}, "nightly", /*variants_known=*/1, /*size=*/7);
  Store("f", {}, /*largest=*/10);  // what that made
  const v1::Explanation why = Why("nightly");
  EXPECT_EQ(why.why(), v1::WHY_SIZES);
  ASSERT_EQ(why.variants_size(), 1);
  EXPECT_EQ(why.variants(0).variant_id(), Sha256("f5"));
  ASSERT_EQ(why.variants(0).broken_size(), 1);
  EXPECT_EQ(why.variants(0).broken(0), "s0 in [1, 5]");
  // The control: where none was stored then, what was stored later is no reason.
  Miss("g", {.graph = "g"}, "weekly", /*variants_known=*/0, /*size=*/7);
  Store("g", {.graph = "g"}, /*largest=*/5);
  EXPECT_EQ(Why("weekly").why(), v1::WHY_INGREDIENT);
}

TEST_F(ExplanationTest, WhatWasCompiledBeforeAndHasGone) {
  Miss("f", {});
  const int64_t before = now_;
  Miss("f", {});
  const v1::Explanation why = Why("nightly");
  EXPECT_EQ(why.why(), v1::WHY_GONE);
  EXPECT_EQ(why.compiled_before_unix_seconds(), before);
}

TEST_F(ExplanationTest, ByKeyAlsoWhatOnlyTheStoreKnows) {
  Store("old", {.deterministic = true});
  Store("f", {});
  const std::string hex = ToHex(KeyOf("f"));
  const v1::Explanation stored = Why(hex.substr(0, 10));
  EXPECT_EQ(stored.program().compile_key(), KeyOf("f"));
  EXPECT_EQ(stored.nearest().compile_key(), KeyOf("old"));
  EXPECT_EQ(stored.job(), "");
  Miss("f", {}, "nightly", /*variants_known=*/1, /*size=*/1000);
  const v1::Explanation missed = Why(hex);
  EXPECT_EQ(missed.job(), "nightly") << "what is remembered is told first";
  EXPECT_EQ(missed.why(), v1::WHY_SIZES);
}

TEST_F(ExplanationTest, MistakesAreNamed) {
  EXPECT_EQ(Ask("").status().code(), StatusCode::kNotFound);
  for (int i = 0; i < 17; ++i) Store(absl::StrCat("program ", i), {});
  Miss("f", {}, "nightly");
  const absl::Status job = Ask("weekly").status();
  EXPECT_EQ(job.code(), StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(job.message(), "nightly")) << job.message();
  EXPECT_EQ(Ask(std::string(20, '0')).status().code(), StatusCode::kNotFound);
  bool several = false;  // of 17 keys two start with the same digit
  for (const char digit : std::string("0123456789abcdef"))
    several = several || Ask(std::string(1, digit)).status().code() == StatusCode::kFailedPrecondition;
  EXPECT_TRUE(several);
}

TEST_F(ExplanationTest, NothingIsReadForACallerWhoHasGone) {
  Store("old", {});
  Miss("new", {.graph = "other"});
  EXPECT_EQ(Ask("nightly", [] { return true; }).status().code(), StatusCode::kCancelled);
}

TEST_F(ExplanationTest, SoManyRecordsAreReadTheLatest) {
  Store("nearest, long ago", {});
  std::vector<Entry> batch;
  const std::string record = RecordOf({.graph = "other", .deterministic = true}).SerializeAsString();
  ++now_;
  for (size_t i = 0; i < kComparedMax; ++i)
    batch.push_back({RequestRecordId(KeyOf(absl::StrCat("other ", i))), MakeEntryValue(record)});
  ASSERT_TRUE(store_->artifacts().Put(batch).ok());
  Miss("new", {.compiler = "compiler 2"});
  const auto reply = Ask("nightly");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->compared(), kComparedMax);
  EXPECT_EQ(reply->stored(), kComparedMax + 1);
  EXPECT_NE(reply->explanations(0).nearest().compile_key(), KeyOf("nearest, long ago"));
}

TEST_F(ExplanationTest, SoManyBytesAreRead) {
  v1::RequestRecord record = RecordOf({.graph = "other"});
  record.mutable_notes()->add_guards(std::string(1u << 20, 'g'));
  constexpr uint64_t kRecords = (kComparedBytesMax >> 20) + 6;
  for (uint64_t i = 0; i < kRecords; ++i) {
    const std::string key = KeyOf(absl::StrCat("other ", i));
    ASSERT_TRUE(
        store_->artifacts().Put({{RequestRecordId(key), MakeEntryValue(record.SerializeAsString())}}).ok());
  }
  Miss("new", {});
  const auto reply = Ask("nightly");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->stored(), kRecords);
  EXPECT_LT(reply->compared(), kRecords);
  EXPECT_GT(reply->compared(), kRecords - 10);
}

TEST_F(ExplanationTest, AWholeKeyThatIsNotStoredIsAskedOfOthers) {
  Store("here", {.deterministic = true});
  std::vector<std::string> asked;
  tier_.find = [&](const std::string& key) -> absl::StatusOr<v1::RequestRecord> {
    asked.push_back(key);
    if (key == KeyOf("there")) return RecordOf({});
    if (key == KeyOf("cut")) return absl::FailedPreconditionError("the tier is cut");
    return absl::NotFoundError("the tier has no such key");
  };
  const v1::Explanation why = Why(ToHex(KeyOf("there")));
  EXPECT_EQ(why.why(), v1::WHY_INGREDIENT);
  EXPECT_EQ(why.program().title(), "f forward");
  EXPECT_EQ(why.program().compiled_unix_seconds(), 0) << "nobody knows";
  EXPECT_TRUE(why.program().in_tier());
  EXPECT_EQ(why.nearest().compile_key(), KeyOf("here"));
  EXPECT_EQ(asked, std::vector<std::string>{KeyOf("there")});
  EXPECT_EQ(Ask(ToHex(KeyOf("cut"))).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Ask(ToHex(KeyOf("nowhere"))).status().code(), StatusCode::kNotFound);
  asked.clear();
  EXPECT_EQ(Ask(ToHex(KeyOf("there")).substr(0, 62)).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(Ask(ToHex(KeyOf("here"))).ok());
  EXPECT_TRUE(asked.empty()) << "of a part of a key, and of what is stored here, nobody is asked";
}

// Control: what is stored here too is this daemon's, and a tier that does not answer.
TEST_F(ExplanationTest, TheNearestMayBeTheTiers) {
  Store("here", {.graph = "other", .deterministic = true});
  Store("both", {.graph = "a third"});
  const int64_t before = now_;
  Miss("new", {});
  std::vector<TierRecords::Record> there;
  const auto put = [&](const std::string& name, const Program& program, int64_t seconds) {
    there.push_back(
        {.compile_key = KeyOf(name), .unix_seconds = seconds, .bytes = 1, .record = RecordOf(program)});
  };
  put("later", {}, now_ + 1);
  put("new", {}, before);
  put("both", {.graph = "a third"}, before);
  absl::Status ends;
  tier_.each_latest = [&](const ProgramsInTier::Visit& visit) {
    for (const TierRecords::Record& record : there) {
      if (!visit(record)) break;
    }
    return ends;
  };
  v1::Explanation why = Why("nightly");
  EXPECT_EQ(why.nearest().compile_key(), KeyOf("both"));
  EXPECT_FALSE(why.nearest().in_tier());
  put("there", {.deterministic = true}, before + 1);
  why = Why("nightly");
  EXPECT_EQ(why.nearest().compile_key(), KeyOf("there"));
  EXPECT_TRUE(why.nearest().in_tier());
  ASSERT_EQ(why.differences_size(), 1);
  EXPECT_EQ(why.differences(0).field(), "deterministic");
  EXPECT_EQ(Ask("nightly")->compared_in_tier(), 3u);
  EXPECT_EQ(Ask("nightly")->tier_message(), "");
  there.clear();
  ends = absl::UnavailableError("it is cut");
  const auto cut = Ask("nightly");
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->tier_message(), "it is cut");
  EXPECT_EQ(cut->explanations(0).nearest().compile_key(), KeyOf("both"));
}

TEST_F(ExplanationTest, OfTheTierSoMuchIsRead) {
  Miss("new", {});
  uint64_t visited = 0;
  tier_.each_latest = [&](const ProgramsInTier::Visit& visit) {
    while (visit({.compile_key = KeyOf(absl::StrCat(visited)), .bytes = 10 << 20})) ++visited;
    return absl::OkStatus();
  };
  const auto reply = Ask("nightly");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(visited, kComparedBytesMax / (10 << 20));
  EXPECT_EQ(reply->compared_in_tier(), visited);
  EXPECT_NE(reply->tier_message(), "");
}

}  // namespace
}  // namespace kiln
