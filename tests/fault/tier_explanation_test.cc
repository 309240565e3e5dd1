// kilnctl why and diff of programs that another daemon of the tier compiled.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "tests/fault/kilnctl.h"
#include "tests/fault/tier_daemons.h"

namespace kiln {
namespace {

class TierExplanation : public TierDaemons {
 protected:
  std::string Compiled(TestDaemon& daemon, const std::string& script, bool deterministic,
                       const std::string& facts = "") {
    v1::CompileHeader header;
    header.set_namespace_("test");
    *header.mutable_sections() = SectionsOf(script);
    v1::Numerics numerics;
    numerics.set_deterministic(deterministic);
    header.mutable_sections()->set_numerics(numerics.SerializeAsString());
    if (!facts.empty()) header.mutable_sections()->set_facts(facts);
    header.set_graph_bytes(script.size());
    header.mutable_notes()->set_title("f forward");
    header.mutable_notes()->add_node_names(script);
    const CompileResult result = daemon.Compile(header, script, absl::Seconds(60));
    EXPECT_TRUE(result.durable) << result.failed_reason << result.status.error_message();
    return ToHex(result.manifest.compile_key());
  }
  static KilnctlOutput Ctl(TestDaemon& daemon, const std::string& words) {
    return RunKilnctl(KILNCTL, daemon.socket(), words);
  }
};

TEST_F(TierExplanation, ComparesWhatAnotherDaemonCompiled) {
  TestDaemon first(Config("a", {"b"})), second(Config("b", {"a"}));
  const std::string theirs = Compiled(first, "kernels 1", false);
  AwaitWrites(first, 1);
  const std::string ours = Compiled(second, "kernels 2", true);

  const KilnctlOutput why = Ctl(second, "why " + theirs);
  EXPECT_EQ(why.code, 0) << why.text;
  EXPECT_TRUE(absl::StrContains(why.text, "(f forward, of the shared tier), of test")) << why.text;
  EXPECT_TRUE(absl::StrContains(why.text, absl::StrCat("the nearest is ", ours.substr(0, 12)))) << why.text;
  EXPECT_TRUE(absl::StrContains(why.text, "numerics    deterministic  false")) << why.text;

  for (const std::string& keys :
       {absl::StrCat(theirs, " ", ours.substr(0, 12)), absl::StrCat(ours, " ", theirs)}) {
    const KilnctlOutput diff = Ctl(second, "diff " + keys);
    EXPECT_EQ(diff.code, 0) << diff.text;
    for (const char* part : {"of the shared tier", "deterministic", "graph ", "kernels 1", "kernels 2"})
      EXPECT_TRUE(absl::StrContains(diff.text, part)) << part << " in\n" << diff.text;
    EXPECT_FALSE(absl::StrContains(diff.text, "not compared")) << diff.text;
  }
  EXPECT_EQ(second.Stats().entries(), 1u) << "looking keeps nothing";

  // What is near is sought there as well: but for the facts, theirs is the same.
  const std::string again = Compiled(second, "kernels 1", false, "others");
  const KilnctlOutput near = Ctl(second, "why " + again);
  EXPECT_EQ(near.code, 0) << near.text;
  EXPECT_TRUE(absl::StrContains(near.text, absl::StrCat("the nearest is ", theirs.substr(0, 12),
                                                        " (f forward, of the shared tier, compiled")))
      << near.text;
  EXPECT_FALSE(absl::StrContains(near.text, "not all of the shared tier")) << near.text;

  // The controls: a part of a key, a key that nobody has, and the same daemon without the tier.
  EXPECT_EQ(Ctl(second, "why " + theirs.substr(0, 20)).code, 1);
  const KilnctlOutput nobody = Ctl(second, absl::StrCat("diff ", ours, " ", std::string(64, 'a')));
  EXPECT_EQ(nobody.code, 1);
  EXPECT_TRUE(absl::StrContains(nobody.text, "b: not stored here; the shared tier has no such key"))
      << nobody.text;
  redis_->Kill();
  const KilnctlOutput cut = Ctl(second, absl::StrCat("diff ", ours, " ", theirs));
  EXPECT_EQ(cut.code, 1);
  EXPECT_TRUE(absl::StrContains(cut.text, "the shared tier could not be asked")) << cut.text;
  const KilnctlOutput alone_here = Ctl(second, "why " + again);
  EXPECT_EQ(alone_here.code, 0) << alone_here.text;
  EXPECT_TRUE(absl::StrContains(alone_here.text, "the nearest is " + ours.substr(0, 12))) << alone_here.text;
  EXPECT_TRUE(absl::StrContains(alone_here.text, "not all of the shared tier was compared"))
      << alone_here.text;
  TestDaemon alone(Config("b", {"a"}, /*tier=*/false));
  EXPECT_EQ(Ctl(alone, "why " + theirs).code, 1);
}

// Of a signer that is not trusted here nothing is believed, for people neither.
TEST_F(TierExplanation, BelievesNoStranger) {
  TestDaemon first(Config("a", {})), second(Config("b", {}));
  const std::string theirs = Compiled(first, "kernels 1", false);
  AwaitWrites(first, 1);
  const KilnctlOutput why = Ctl(second, "why " + theirs);
  EXPECT_EQ(why.code, 1) << why.text;
}

}  // namespace
}  // namespace kiln
