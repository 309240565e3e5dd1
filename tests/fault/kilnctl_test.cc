// kilnctl against a kilnd of the test's own: what people see, what scripts parse, exit codes.
#include "tests/fault/kilnctl.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

using Output = KilnctlOutput;

Output RunCtl(const std::string& address, const std::string& words) {
  return RunKilnctl(KILNCTL, address, words);
}

class Kilnctl : public testing::Test {
 protected:
  Output Ctl(const std::string& words) { return RunCtl(daemon_.socket(), words); }
  TestDaemon daemon_;
};

TEST_F(Kilnctl, StatusAndStats) {
  ASSERT_TRUE(daemon_.Compile("kernels 2").done);
  const Output status = Ctl("status");
  EXPECT_EQ(status.code, 0) << status.text;
  EXPECT_TRUE(absl::StrContains(status.text, "2, 0 busy")) << status.text;
  EXPECT_TRUE(absl::StrContains(status.text, "writable")) << status.text;
  const Output stats = Ctl("stats --json");
  EXPECT_EQ(stats.code, 0);
  for (const char* field : {"\"lookups\": 0", "\"hits\": 0", "\"misses\": 0", "\"compiles\": 1",
                            "\"joined\": 0", "\"failures\": 0", "\"entries\": 1", "\"bytes\": "}) {
    EXPECT_TRUE(absl::StrContains(stats.text, field)) << field << " in " << stats.text;
  }
}

// What it prints of a key is what `signing.trusted` and `signing.revoked` take.
TEST_F(Kilnctl, KeysPrintsWhatTheConfigurationTakes) {
  grpc::ClientContext context;
  v1::KeysReply own;
  ASSERT_TRUE(daemon_.admin().Keys(&context, {}, &own).ok());
  EXPECT_TRUE(absl::StrContains(Ctl("keys").text, "every namespace"));
  EXPECT_TRUE(absl::StrContains(Ctl("status").text, own.own().id().substr(0, 12)));

  TestDaemon trusting(absl::StrCat("signing { trusted { public_key: \"", own.own().public_key(),
                                   "\" namespaces: \"vision\" } revoked: \"", std::string(64, 'a'), "\" }"));
  const Output text = RunCtl(trusting.socket(), "keys");
  for (const std::string& word : {own.own().public_key(), own.own().id(), std::string("vision"),
                                  std::string("revoked"), std::string(64, 'a')}) {
    EXPECT_TRUE(absl::StrContains(text.text, word)) << word << " in " << text.text;
  }
  const Output json = RunCtl(trusting.socket(), "keys --json");
  EXPECT_TRUE(absl::StrContains(json.text, absl::StrCat("\"public_key\": \"", own.own().public_key(), "\"")))
      << json.text;
}

TEST_F(Kilnctl, StatsTellsOfTenantsAndJobs) {
  EXPECT_FALSE(absl::StrContains(Ctl("stats").text, "TENANT")) << "nobody did anything";
  grpc::ClientContext context;
  v1::ReportUseRequest request;
  v1::ReportUseReply reply;
  request.set_namespace_("red");
  request.set_job("night\nly\x1b[2J");
  request.mutable_use()->set_executed(4711);
  ASSERT_TRUE(daemon_.compiler().ReportUse(&context, request, &reply).ok());
  ASSERT_TRUE(daemon_.Compile("kernels 2").done);
  ASSERT_TRUE(daemon_.Lookup("kernels 2").has_hit());
  const Output stats = Ctl("stats");
  EXPECT_TRUE(absl::StrContains(stats.text, "TENANT")) << stats.text;
  EXPECT_TRUE(absl::StrContains(stats.text, "4711  night ly?[2J\n")) << stats.text;
  const Output json = Ctl("stats --json");
  for (const char* field : {"\"tenant\": \"red\"", "\"executed\": 4711", "\"tenant\": \"test\"",
                            "\"hits\": 1", "\"seconds_saved\": "}) {
    EXPECT_TRUE(absl::StrContains(json.text, field)) << field << " in " << json.text;
  }
}

TEST_F(Kilnctl, ListAndShow) {
  const CompileResult result = daemon_.Compile("guarded\nkernels 2", {5});
  ASSERT_TRUE(result.done);
  const std::string key = ToHex(result.manifest.compile_key());
  const Output list = Ctl("ls");
  EXPECT_TRUE(absl::StrContains(list.text, key.substr(0, 12))) << list.text;
  EXPECT_TRUE(absl::StrContains(list.text, "scripted forward")) << list.text;
  for (const std::string& prefix : {key.substr(0, 10), ToHex(result.manifest.request_key()).substr(0, 10),
                                    ToHex(result.manifest.variant_id()).substr(0, 10)}) {
    const Output show = Ctl("show " + prefix);
    EXPECT_EQ(show.code, 0) << show.text;
    for (const std::string& part :
         {key, std::string("x86_64-linux-gnu"), std::string("tensor 'x' size 4"),
          std::string("s0 in [0, 1000000]"), std::string("kernel_1"), ToHex(Sha256("guarded\nkernels 2"))}) {
      EXPECT_TRUE(absl::StrContains(show.text, part)) << part << " in\n" << show.text;
    }
  }
  EXPECT_FALSE(absl::StrContains(Ctl("show " + key).text, "listing of")) << "only when asked for";
  const Output listings = Ctl("show --listings " + key);
  EXPECT_TRUE(absl::StrContains(listings.text, "listing of kernel 0")) << listings.text;
  EXPECT_TRUE(absl::StrContains(listings.text, "listing of kernel 1")) << listings.text;
  EXPECT_TRUE(absl::StrContains(Ctl("ls --json").text, "\"hits\": 0")) << "looking is no use";
  ASSERT_TRUE(daemon_.Lookup("guarded\nkernels 2", {7}).has_hit());
  EXPECT_TRUE(absl::StrContains(Ctl("ls --json").text, "\"hits\": 1"));
  EXPECT_EQ(Ctl("show 0123456789abcdef0123").code, 1);
  EXPECT_EQ(Ctl("show nothex").code, 2);
}

TEST_F(Kilnctl, RemoveAndVerify) {
  const CompileResult a = daemon_.Compile("name a");
  ASSERT_TRUE(daemon_.Compile("name b").done);
  EXPECT_EQ(Ctl("verify").code, 0);
  const std::string key = ToHex(a.manifest.compile_key());
  EXPECT_EQ(Ctl("rm " + key).code, 0);
  EXPECT_EQ(Ctl("rm " + key).code, 1) << "it is gone";
  EXPECT_TRUE(daemon_.Lookup("name a").has_miss());
  EXPECT_TRUE(daemon_.Lookup("name b").has_hit());
  EXPECT_EQ(Ctl("rm").code, 2);
  EXPECT_EQ(Ctl("rm --all").code, 0);
  EXPECT_TRUE(daemon_.Lookup("name b").has_miss());
  EXPECT_TRUE(daemon_.Compile("name b").done) << "and can be compiled again";
  EXPECT_EQ(Ctl("verify").code, 0);
}

TEST_F(Kilnctl, RemoveTakesNoMoreThanIsMeant) {
  // Enough keys that two of them start with the same digit.
  std::map<char, int> first_digits;
  char shared = 0;
  for (int i = 0; i < 17; ++i) {
    const CompileResult result = daemon_.Compile(absl::StrCat("name ", i));
    ASSERT_TRUE(result.done);
    if (++first_digits[ToHex(result.manifest.compile_key())[0]] == 2) {
      shared = ToHex(result.manifest.compile_key())[0];
    }
  }
  const Output several = Ctl(absl::StrCat("rm ", std::string(1, shared)));
  EXPECT_EQ(several.code, 1);
  EXPECT_TRUE(absl::StrContains(several.text, "--every-match")) << several.text;
  EXPECT_EQ(daemon_.Stats().entries(), 17u);
  // The control: whoever means all of them says so.
  EXPECT_EQ(Ctl(absl::StrCat("rm --every-match ", std::string(1, shared))).code, 0);
  EXPECT_LE(daemon_.Stats().entries(), 15u);
}

TEST_F(Kilnctl, PinnedEntriesStayWhenTheRestIsEvicted) {
  const CompileResult a = daemon_.Compile("name a");
  ASSERT_TRUE(daemon_.Compile("name b").done);
  const std::string key = ToHex(a.manifest.compile_key());
  const Output pinned = Ctl("pin " + key);
  EXPECT_EQ(pinned.code, 0) << pinned.text;
  EXPECT_TRUE(absl::StrContains(pinned.text, "1 entry pinned")) << pinned.text;
  EXPECT_TRUE(absl::StrContains(Ctl("ls").text, "(pinned) scripted")) << Ctl("ls").text;
  const Output evicted = Ctl("evict --to-bytes 0 --json");
  EXPECT_EQ(evicted.code, 0) << evicted.text;
  EXPECT_TRUE(absl::StrContains(evicted.text, "\"evicted\": ")) << evicted.text;
  EXPECT_TRUE(daemon_.Lookup("name a").has_hit());
  EXPECT_TRUE(daemon_.Lookup("name b").has_miss());
  EXPECT_EQ(Ctl("unpin " + key).code, 0);
  EXPECT_EQ(Ctl("evict --to-bytes 0").code, 0);
  EXPECT_TRUE(daemon_.Lookup("name a").has_miss());
  EXPECT_EQ(Ctl("pin " + key).code, 1) << "it is gone";
  EXPECT_EQ(Ctl("pin").code, 2);
  EXPECT_EQ(Ctl("evict").code, 2);
}

TEST_F(Kilnctl, DoctorAndJobs) {
  const Output doctor = Ctl("doctor");
  EXPECT_EQ(doctor.code, 0) << doctor.text;
  EXPECT_FALSE(absl::StrContains(doctor.text, "FAILED"));
  EXPECT_TRUE(absl::StrContains(Ctl("doctor --json").text, "\"ok\": true"));
  EXPECT_EQ(Ctl("jobs").text, "no jobs\n");
  for (const char* layer : {"user", "mount", "net", "ipc", "pid", "uid", "capabilities", "no_new_privs",
                            "not_dumpable", "limits", "landlock", "seccomp"}) {
    EXPECT_TRUE(absl::StrContains(doctor.text, absl::StrCat("sandbox: ", layer, " "))) << doctor.text;
    EXPECT_TRUE(absl::StrContains(Ctl("status --json").text, absl::StrCat("\"name\": \"", layer, "\"")));
  }
}

// The control of its words about the sandbox: a worker that says it lacks a layer.
TEST(KilnctlAlone, DoctorFailsWithoutAMandatoryLayer) {
  const std::string worker = absl::StrCat(testing::TempDir(), "/worker_without_seccomp");
  unlink(worker.c_str());
  ASSERT_EQ(symlink(SCRIPTED_WORKER, worker.c_str()), 0);
  TestDaemon daemon("", {}, worker);
  const Output doctor = RunCtl(daemon.socket(), "doctor");
  EXPECT_EQ(doctor.code, 1) << doctor.text;
  EXPECT_TRUE(absl::StrContains(doctor.text, "sandbox: seccomp")) << doctor.text;
  EXPECT_TRUE(absl::StrContains(doctor.text, "FAILED")) << doctor.text;
  EXPECT_TRUE(absl::StrContains(RunCtl(daemon.socket(), "doctor --json").text, "\"ok\": false,"));
  unlink(worker.c_str());
}

// A program of the script whose numerics differ, compiled for a job.
CompileResult CompileFor(TestDaemon& daemon, const std::string& job, const std::string& script,
                         bool deterministic, const std::vector<int64_t>& hints = {}) {
  v1::CompileHeader header;
  header.set_namespace_("test");
  header.set_job(job);
  *header.mutable_sections() = SectionsOf(script);
  v1::Numerics numerics;
  numerics.set_deterministic(deterministic);
  header.mutable_sections()->set_numerics(numerics.SerializeAsString());
  header.set_graph_bytes(script.size());
  header.mutable_notes()->set_title("f forward");
  header.mutable_notes()->add_node_names(script);
  for (const int64_t hint : hints) header.mutable_hints()->add_values(hint);
  return daemon.Compile(header, script, absl::Seconds(60));
}

TEST_F(Kilnctl, WhyNamesTheIngredientThatDiffers) {
  EXPECT_EQ(Ctl("why").code, 1) << "nothing was compiled yet";
  ASSERT_TRUE(CompileFor(daemon_, "nightly", "kernels 2", false).durable);
  const Output first = Ctl("why nightly");
  EXPECT_EQ(first.code, 0) << first.text;
  EXPECT_TRUE(absl::StrContains(first.text, "nothing was stored")) << first.text;
  const CompileResult second = CompileFor(daemon_, "nightly", "kernels 2", true);
  ASSERT_TRUE(second.durable);
  for (const std::string& about : {std::string("nightly --limit 1"), std::string("--limit 1"),
                                   ToHex(second.manifest.compile_key()).substr(0, 12)}) {
    const Output why = Ctl("why " + about);
    EXPECT_EQ(why.code, 0) << why.text;
    EXPECT_TRUE(absl::StrContains(why.text, "job nightly")) << why.text;
    EXPECT_TRUE(absl::StrContains(why.text, "numerics    deterministic  true  false")) << why.text;
    EXPECT_FALSE(absl::StrContains(why.text, "graph ")) << "it is the same: " << why.text;
  }
  EXPECT_TRUE(absl::StrContains(Ctl("why nightly --json").text, "\"field\": \"deterministic\""));
  const Output nobody = Ctl("why weekly");
  EXPECT_EQ(nobody.code, 1);
  EXPECT_TRUE(absl::StrContains(nobody.text, "there are nightly")) << nobody.text;
}

TEST_F(Kilnctl, WhyTellsOfSizesAndOfWhatHasGone) {
  const std::string script = "guarded\nkernels 1";
  ASSERT_TRUE(CompileFor(daemon_, "nightly", script, false, {5}).durable);
  ASSERT_TRUE(CompileFor(daemon_, "nightly", script, false, {500}).durable);
  const Output sizes = Ctl("why nightly --limit 1");
  EXPECT_TRUE(absl::StrContains(sizes.text, "do not hold at its sizes (s0 = 500)")) << sizes.text;
  EXPECT_TRUE(absl::StrContains(sizes.text, "asks for ")) << sizes.text;
  ASSERT_EQ(Ctl("rm --all").code, 0);
  ASSERT_TRUE(CompileFor(daemon_, "nightly", script, false, {5}).durable);
  const Output gone = Ctl("why nightly --limit 1");
  EXPECT_TRUE(absl::StrContains(gone.text, "was not stored any more")) << gone.text;
}

TEST_F(Kilnctl, DiffComparesTwoPrograms) {
  const CompileResult a = CompileFor(daemon_, "nightly", "kernels 1", false);
  const CompileResult b = CompileFor(daemon_, "nightly", "kernels 2", true);
  ASSERT_TRUE(a.durable && b.durable);
  const std::string key_a = ToHex(a.manifest.compile_key()), key_b = ToHex(b.manifest.compile_key());
  const Output diff = Ctl(absl::StrCat("diff ", key_a.substr(0, 12), " ", key_b.substr(0, 12)));
  EXPECT_EQ(diff.code, 0) << diff.text;
  for (const char* part : {"numerics    deterministic  false", "graph ", "kernels                    1  2",
                           "-kernels 1", "+kernels 2"}) {
    EXPECT_TRUE(absl::StrContains(diff.text, part)) << part << " in\n" << diff.text;
  }
  const Output same = Ctl(absl::StrCat("diff ", key_a, " ", key_a));
  EXPECT_TRUE(absl::StrContains(same.text, "same ingredients")) << same.text;
  EXPECT_TRUE(
      absl::StrContains(Ctl(absl::StrCat("diff --json ", key_a, " ", key_b)).text, "\"not_compared\""));
  EXPECT_EQ(Ctl("diff " + key_a).code, 2);
  EXPECT_EQ(Ctl("diff nothex " + key_a).code, 2);
  const Output nobody = Ctl(absl::StrCat("diff ", key_a, " 0123456789abcdef"));
  EXPECT_EQ(nobody.code, 1);
  EXPECT_TRUE(absl::StrContains(nobody.text, "b: no stored program")) << nobody.text;
}

TEST_F(Kilnctl, ADrainedDaemonServesHitsAndTakesNothingNew) {
  ASSERT_TRUE(daemon_.Compile("name a").durable);
  EXPECT_EQ(Ctl("drain").code, 0);
  EXPECT_TRUE(daemon_.Lookup("name a").has_hit());
  const CompileResult refused = daemon_.Compile("name b");
  EXPECT_EQ(refused.status.error_code(), grpc::UNAVAILABLE) << refused.status.error_message();
  EXPECT_TRUE(absl::StrContains(refused.status.error_message(), "kilnctl drain"));
  EXPECT_TRUE(absl::StrContains(Ctl("status").text, "drain --undo"));
  EXPECT_EQ(Ctl("doctor").code, 1);
  EXPECT_TRUE(absl::StrContains(Ctl("drain --undo").text, "takes compiles again"));
  EXPECT_TRUE(daemon_.Compile("name b").done) << "the control";
  EXPECT_FALSE(absl::StrContains(Ctl("status").text, "drain"));
  EXPECT_EQ(Ctl("drain --undo --wait").code, 2);
}

TEST_F(Kilnctl, DrainWaitsForWhatRuns) {
  grpc::ClientContext context;
  auto stream = daemon_.compiler().Compile(&context);
  Send("test", "sleep_ms 1500", stream.get());
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(Ctl("jobs").text, "planning"); }));
  EXPECT_TRUE(absl::StrContains(Ctl("drain").text, "1 still run or wait"));
  const Output waited = Ctl("drain --wait");
  EXPECT_TRUE(absl::StrContains(waited.text, "none runs or waits")) << waited.text;
  EXPECT_EQ(Ctl("jobs").text, "no jobs\n");
  v1::CompileEvent event;
  bool done = false;
  while (stream->Read(&event)) done = done || event.has_done();
  EXPECT_TRUE(done) << "what ran went on";
}

TEST_F(Kilnctl, TopAndTenantsShowWhoIsAtWork) {
  ASSERT_TRUE(CompileFor(daemon_, "nightly", "name a", false).done);
  grpc::ClientContext context;
  auto stream = daemon_.compiler().Compile(&context);
  Send("red", "sleep_ms 20000", stream.get());
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(Ctl("jobs").text, "planning"); }));
  const Output tenants = Ctl("tenants --json");
  for (const char* part : {"\"name\": \"red\"", "\"running\": 1", "\"name\": \"test\"", "\"compiles\": 1"})
    EXPECT_TRUE(absl::StrContains(tenants.text, part)) << part << " in " << tenants.text;
  EXPECT_TRUE(absl::StrContains(Ctl("tenants").text, "connection"));
  const Output top = Ctl("top --once --interval 0.2");
  EXPECT_EQ(top.code, 0) << top.text;
  EXPECT_LT(top.text.find("\nred "), top.text.find("\ntest "))
      << "who has work in flight first: " << top.text;
  EXPECT_TRUE(absl::StrContains(top.text, "workers 1 of 2 busy")) << top.text;
  EXPECT_TRUE(absl::StrContains(top.text, "nightly")) << top.text;
  const Output json = Ctl("top --once --interval 0.2 --json");
  EXPECT_TRUE(absl::StrContains(json.text, "\"hits_per_second\": 0")) << json.text;
  double seconds = 0;
  const v1::StatsReply stats = daemon_.Stats();
  for (const v1::JobUse& use : stats.uses()) seconds += use.tenant() == "test" ? use.compile_seconds() : 0;
  EXPECT_GT(seconds, 0);
  context.TryCancel();
}

TEST_F(Kilnctl, TopCountsHitsASecond) {
  ASSERT_TRUE(daemon_.Compile("name a").durable);
  std::atomic<bool> over{false};
  std::thread asks([&] {
    while (!over) daemon_.Lookup("name a");
  });
  const Output top = Ctl("top --once --interval 0.5 --json");
  over = true;
  asks.join();
  EXPECT_EQ(top.code, 0) << top.text;
  EXPECT_FALSE(absl::StrContains(top.text, "\"hits_per_second\": 0,")) << top.text;
}

TEST(KilnctlAlone, ExitCodes) {
  EXPECT_EQ(RunCtl("/tmp/kiln-no-such-socket", "status --timeout 2").code, 3);
  EXPECT_EQ(RunCtl("/tmp/kiln-no-such-socket", "doctor --timeout 2").code, 3);
  EXPECT_EQ(RunCtl("", "nonsense").code, 2);
  EXPECT_EQ(RunCtl("", "").code, 2);
  EXPECT_EQ(RunCtl("", "show").code, 2);
  EXPECT_EQ(RunCtl("", "completion").code, 2);
  EXPECT_EQ(RunCtl("", "top --interval 0").code, 2);
  EXPECT_EQ(RunCtl("/tmp/kiln-no-such-socket", "top --once --timeout 2").code, 3);
  const Output help = RunCtl("", "--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(absl::StrContains(help.text, "Exit codes"));
}

}  // namespace
}  // namespace kiln
