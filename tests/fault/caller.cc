// A process that has graphs compiled by libkiln, and uses gRPC by nothing else, as a training process does:
//   caller MODE NAME=VALUE…
// burst: `count` scripts in a row, then one more after `sleep` seconds; fork: as DataLoader does, between
// calls and within one; graph: one small graph, for real workers. Prints what became of each step, a word a
// line, and ends with 0 where it was as it has to be.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kiln/client.h"
#include "tests/fault/small_graph.h"

namespace kiln {
namespace {

constexpr unsigned kHangSeconds = 30;

class Caller {
 public:
  explicit Caller(std::map<std::string, std::string> words) : words_(std::move(words)) {
    ClientOptions options;
    options.address = words_["address"];
    options.upstream = words_["upstream"];
    options.tls_authority = words_["ca"];
    options.tls_certificate = words_["cert"];
    options.tls_key = words_["key"];
    options.daemon_binary = words_["daemon"];
    options.runtime_dir = words_["run"];
    options.store_dir = words_["store"];
    options.connect_seconds = 20;
    options.compile_seconds = 60;
    if (words_.count("idle") > 0) options.idle_seconds = Number("idle");
    client_ = NewClient(options);
  }

  int Run(const std::string& mode) {
    if (mode == "burst") return Burst();
    if (mode == "fork") return Fork();
    return mode == "graph" ? Graph() : 2;
  }

 private:
  double Number(const std::string& name) {
    double value = 0;
    return absl::SimpleAtod(words_[name], &value) ? value : 0;
  }

  absl::Status Get(const std::string& script) {
    CompileRequestInput input;
    input.graph = script;
    v1::Target target;
    target.set_triple("x86_64-linux-gnu");
    input.sections.set_target(target.SerializeAsString());
    input.sections.set_graph_digest(Sha256(script));
    input.request_key = RequestKey(input.sections);
    const absl::Status status = client_->Get(input, /*compile=*/true).status();
    if (!status.ok()) fprintf(stderr, "%d: %s: %s\n", getpid(), script.c_str(), status.ToString().c_str());
    return status;
  }

  static void Say(const char* word) {
    puts(word);
    fflush(stdout);
  }

  int Burst() {
    for (int i = 0; i < Number("count"); ++i) {
      if (!Get(absl::StrCat("name burst ", i)).ok()) return 1;
    }
    Say("done");
    absl::SleepFor(absl::Seconds(Number("sleep")));
    if (!Get("name later").ok()) return 1;
    client_->ReportUse(absl::Seconds(1));
    Say("closed");
    absl::SleepFor(absl::Seconds(Number("sleep")));
    return 0;
  }

  // Some compiles of a process after a fork.
  bool Several(const std::string& whose) {
    bool good = true;
    for (int i = 0; i < 5; ++i) good = Get(absl::StrCat("name of ", whose, " ", i)).ok() && good;
    return good;
  }

  // The child's verdict; a child that hangs is ended by its alarm.
  template <typename Work>
  static pid_t InChild(Work work) {
    const pid_t child = fork();
    if (child != 0) return child;
    alarm(kHangSeconds);
    _exit(work() ? 0 : 1);
  }
  static bool IsGood(pid_t child) {
    int ended = -1;
    return waitpid(child, &ended, 0) == child && ended == 0;
  }

  int Fork() {
    if (!Get("name before").ok()) return 1;
    for (int round = 0; round < 3; ++round) {
      const pid_t child = InChild([&] { return Several(absl::StrCat("child ", round)); });
      const bool here = Several(absl::StrCat("parent ", round));
      if (!IsGood(child) || !here) return 1;
    }
    Say("apart");
    // Within a call: the child is told so, at once, and the call goes on.
    absl::Status slow;
    std::thread calls([&] { slow = Get("name slow\nsleep_ms 1500"); });
    absl::SleepFor(absl::Milliseconds(500));
    const pid_t child = InChild([&] {
      const absl::Status told = Get("name never");
      return absl::IsUnavailable(told) && absl::StrContains(told.message(), "forked");
    });
    const bool good = IsGood(child);
    calls.join();
    if (!good || !slow.ok()) return 1;
    Say("within");
    return IsGood(InChild([&] { return Several("child after"); })) && Several("parent after") ? 0 : 1;
  }

  int Graph() {
    const absl::StatusOr<CompiledArtifact> got = client_->Get(InputOfGraph(), /*compile=*/true);
    if (!got.ok()) {
      fprintf(stderr, "%s\n", got.status().ToString().c_str());
      return 1;
    }
    Say(got->hit ? "hit" : got->joined ? "joined" : "compiled");
    return 0;
  }

  std::map<std::string, std::string> words_;
  std::unique_ptr<Client> client_;
};

int Main(int argc, char** argv) {
  std::map<std::string, std::string> words;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return 2;
    words[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return argc < 2 ? 2 : Caller(std::move(words)).Run(argv[1]);
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
