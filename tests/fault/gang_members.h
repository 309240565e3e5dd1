// Members of gangs, as tests of daemons have them: each a libkiln of its own.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/key.h"
#include "kiln/client.h"
#include "kiln/v1/compile.pb.h"
#include "tests/fault/test_daemon.h"

namespace kiln {

inline v1::Gang GangOf(const std::string& letter) {
  v1::Gang gang;
  gang.set_id(std::string(16, letter[0]));
  gang.set_size(4);
  return gang;
}

inline std::unique_ptr<Client> ClientOf(const TestDaemon& daemon, double seconds = 60) {
  ClientOptions options;
  options.address = absl::StrCat("unix:", daemon.socket());
  options.name_space = "test";
  options.compile_seconds = seconds;
  options.connect_seconds = 1;
  return NewClient(options);
}

// What one member, or one that is in no gang, was served.
struct Served {
  absl::Status status;
  std::string variant;  // empty: none
  bool hit = false;
};

inline Served Ask(Client& client, const std::string& script, int64_t hint, const v1::Gang& gang = {}) {
  CompileRequestInput input;
  input.graph = script;
  input.sections = SectionsOf(script);
  input.request_key = RequestKey(input.sections);
  input.hints.add_values(hint);
  input.gang = gang;
  const absl::StatusOr<CompiledArtifact> got = client.Get(input, /*compile=*/true);
  if (!got.ok()) return {got.status(), "", false};
  return {absl::OkStatus(), got->manifest.variant_id(), got->hit};
}

}  // namespace kiln
