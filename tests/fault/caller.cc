// A process that has graphs compiled by libkiln, and uses gRPC by nothing else, as a training process does:
//   caller MODE NAME=VALUE…
// burst: `count` scripts in a row, then one more after `sleep` seconds; graph: one small graph, for real
// workers. Prints what became of each step, a word a line, and ends with 0 where it was as it has to be.
// ask: `script`, whose lines are parted by ";", with `hint`, as a member of `gang` (hexadecimal; "": of none)
// with `size` ranks. Prints "VARIANT hit", "VARIANT compiled", "fallback" or "without the gang".
#include <stdio.h>

#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "compiler/support/digest.h"
#include "kiln/client.h"
#include "tests/fault/caller_words.h"

namespace kiln {
namespace {

int Burst(const CallerWords& words) {
  const std::unique_ptr<Client> client = NewClient(words.Options());
  for (int i = 0; i < words.Number("count"); ++i) {
    if (!words.Get(*client, absl::StrCat("name burst ", i)).ok()) return 1;
  }
  Say("done");
  absl::SleepFor(absl::Seconds(words.Number("sleep")));
  if (!words.Get(*client, "name later").ok()) return 1;
  client->ReportUse(absl::Seconds(1));
  Say("closed");
  absl::SleepFor(absl::Seconds(words.Number("sleep")));
  return 0;
}

int Graph(const CallerWords& words) {
  const absl::StatusOr<CompiledArtifact> got =
      NewClient(words.Options())->Get(InputOfGraph(), /*compile=*/true);
  if (!got.ok()) {
    fprintf(stderr, "%s\n", got.status().ToString().c_str());
    return 1;
  }
  Say(got->hit ? "hit" : got->joined ? "joined" : "compiled");
  return 0;
}

int AskAsMember(const CallerWords& words) {
  CompileRequestInput input = words.InputOf(absl::StrReplaceAll(words.Word("script"), {{";", "\n"}}));
  input.hints.add_values(static_cast<int64_t>(words.Number("hint")));
  input.gang.set_id(absl::HexStringToBytes(words.Word("gang")));
  input.gang.set_size(static_cast<uint32_t>(words.Number("size")));
  const absl::StatusOr<CompiledArtifact> got = NewClient(words.Options())->Get(input, /*compile=*/true);
  if (got.ok()) {
    Say(absl::StrCat(ToHex(got->manifest.variant_id()), got->hit ? " hit" : " compiled"));
    return 0;
  }
  fprintf(stderr, "%s\n", got.status().ToString().c_str());
  Say(IsWithoutVerdict(got.status()) ? "without the gang" : "fallback");
  return 0;
}

int Main(int argc, char** argv) {
  const CallerWords words(argc, argv);
  const std::string mode = argc < 2 ? "" : argv[1];
  if (mode == "ask") return AskAsMember(words);
  return mode == "burst" ? Burst(words) : mode == "graph" ? Graph(words) : 2;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
