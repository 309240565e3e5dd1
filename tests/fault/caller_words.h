// For processes that have graphs compiled by libkiln as their words say (NAME=VALUE), and use gRPC by nothing
// else. `daemon`: real workers compile a small graph each, where a script is sent to scripted ones otherwise.
// Threads: as libkiln.
#pragma once

#include <stdio.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "kiln/client.h"
#include "tests/fault/small_graph.h"

namespace kiln {

class CallerWords {
 public:
  CallerWords(int argc, char** argv) {
    for (int i = 2; i < argc; ++i) {
      const std::string word = argv[i];
      const size_t equals = word.find('=');
      words_[word.substr(0, equals)] = equals == std::string::npos ? "" : word.substr(equals + 1);
    }
  }

  double Number(const std::string& name, double otherwise = 0) const {
    double value = 0;
    return absl::SimpleAtod(Word(name), &value) ? value : otherwise;
  }
  std::string Word(const std::string& name) const {
    const auto found = words_.find(name);
    return found == words_.end() ? "" : found->second;
  }

  ClientOptions Options() const {
    ClientOptions options;
    options.address = Word("address");
    options.upstream = Word("upstream");
    options.tls.authority = Word("ca");
    options.tls.certificate = Word("cert");
    options.tls.key = Word("key");
    options.daemon_binary = Word("daemon");
    options.call_binary = Word("call");
    options.runtime_dir = Word("run");
    options.store_dir = Word("store");
    options.connect_seconds = Number("connect", 20);
    options.compile_seconds = 60;
    options.idle_seconds = Number("idle", options.idle_seconds);
    return options;
  }

  CompileRequestInput InputOf(const std::string& script) const {
    if (!Word("daemon").empty()) {
      CompileRequestInput input = InputOfGraph();
      v1::Environment environment;
      environment.set_torch_version("2.13");
      environment.set_decomposition_digest(Sha256(script));
      input.sections.set_environment(SerializeDeterministic(environment));
      input.request_key = RequestKey(input.sections);
      return input;
    }
    CompileRequestInput input;
    input.graph = script;
    v1::Target target;
    target.set_triple("x86_64-linux-gnu");
    input.sections.set_target(target.SerializeAsString());
    input.sections.set_graph_digest(Sha256(script));
    input.request_key = RequestKey(input.sections);
    return input;
  }

  // What went wrong is said.
  absl::Status Get(Client& client, const std::string& script, Cancellation* cancellation = nullptr) const {
    const absl::StatusOr<CompiledArtifact> got = client.Get(InputOf(script), /*compile=*/true, cancellation);
    if (!got.ok()) {
      fprintf(stderr, "%d: %s: %s\n", getpid(), script.c_str(), got.status().ToString().c_str());
      return got.status();
    }
    return got->objects.empty() ? absl::InternalError("no objects") : absl::OkStatus();
  }

 private:
  std::map<std::string, std::string> words_;
};

// For whoever reads this process's words.
inline void Say(const std::string& word) {
  puts(word.c_str());
  fflush(stdout);
}

}  // namespace kiln
