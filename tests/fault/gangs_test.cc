// Ranks of one job, of one daemon and of several: equal hints get one variant, and nobody has a program where
// another is told to fall back. The controls are the same callers without a gang.
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/graph/key.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/daemon.h"

namespace kiln {
namespace {

constexpr char kScript[] = "name sized\naround 50";

v1::Gang GangOf(const std::string& letter) {
  v1::Gang gang;
  gang.set_id(std::string(16, letter[0]));
  gang.set_size(4);
  return gang;
}

std::unique_ptr<Client> ClientOf(const TestDaemon& daemon, double seconds = 60) {
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

Served Ask(Client& client, const std::string& script, int64_t hint, const v1::Gang& gang = {}) {
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

// ---- One daemon ------------------------------------------------------------------------------

// Of the two variants that hold for 190 the one that everybody else gets is stored later.
TEST(Gangs, MembersKeepTheirVariantWhenAnotherFitsAsWell) {
  TestDaemon daemon;
  const std::unique_ptr<Client> client = ClientOf(daemon);
  bool differ = false;
  for (int i = 0; i < 20 && !differ; ++i) {  // which of them comes first is their digests' matter
    const std::string script = absl::StrCat(kScript, "\nkernels ", i + 1);
    const std::string theirs = Ask(*client, script, 230).variant;
    EXPECT_EQ(Ask(*client, script, 190, GangOf("a")).variant, theirs);
    EXPECT_NE(Ask(*client, script, 145).variant, theirs);
    differ = Ask(*client, script, 190).variant != theirs;
    const Served again = Ask(*client, script, 190, GangOf("a"));
    EXPECT_EQ(again.variant, theirs);
    EXPECT_TRUE(again.hit);
    EXPECT_EQ(Ask(*client, script, 190, GangOf("b")).variant, Ask(*client, script, 190).variant)
        << "a new start";
  }
  EXPECT_TRUE(differ) << "the control";
}

// A failure that the service forgets is the gang's until the job starts anew.
TEST(Gangs, WhatOneWasRefusedAllAreRefused) {
  TestDaemon daemon("workers { plan_seconds_max: 1 }");
  const std::unique_ptr<Client> client = ClientOf(daemon);
  const std::string script = absl::StrCat(kScript, "\nslow_from 1000");
  const Served refused = Ask(*client, script, 1000, GangOf("a"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused.status)) << refused.status;
  EXPECT_FALSE(IsWithoutVerdict(refused.status));
  // With other sizes, for which there is a program by now.
  const std::string variant = Ask(*client, script, 100).variant;
  EXPECT_FALSE(variant.empty());
  const Served other = Ask(*client, script, 100, GangOf("a"));
  EXPECT_EQ(other.status.message(), refused.status.message());
  EXPECT_FALSE(IsWithoutVerdict(other.status));
  EXPECT_EQ(Ask(*client, script, 100, GangOf("b")).variant, variant) << "a new start";
}

TEST(Gangs, WhoGetsNoVariantBesideOthersIsToldSo) {
  TestDaemon daemon("workers { plan_seconds_max: 1 }");
  const std::unique_ptr<Client> client = ClientOf(daemon);
  const std::string script = absl::StrCat(kScript, "\nslow_from 1000");
  const Served served = Ask(*client, script, 100, GangOf("a"));
  EXPECT_TRUE(served.status.ok()) << served.status;
  const Served refused = Ask(*client, script, 1000, GangOf("a"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused.status)) << refused.status;
  EXPECT_TRUE(IsWithoutVerdict(refused.status));
  EXPECT_EQ(Ask(*client, script, 100, GangOf("a")).variant, served.variant);
  // The control: without a gang nobody is told.
  const Served alone = Ask(*client, script, 1000);
  EXPECT_TRUE(absl::IsDeadlineExceeded(alone.status)) << alone.status;
  EXPECT_FALSE(IsWithoutVerdict(alone.status));
}

TEST(Gangs, WhoIsNotAnsweredKnowsNothingOfTheOthers) {
  TestDaemon daemon;
  const std::unique_ptr<Client> client = ClientOf(daemon);
  daemon.Stop(SIGKILL);
  EXPECT_TRUE(IsWithoutVerdict(Ask(*client, kScript, 100, GangOf("a")).status));
  EXPECT_FALSE(IsWithoutVerdict(Ask(*client, kScript, 100).status));
  v1::Gang alone = GangOf("a");
  alone.set_size(1);
  EXPECT_FALSE(IsWithoutVerdict(Ask(*client, kScript, 100, alone).status));
}

TEST(Gangs, AnIdIsSixteenBytes) {
  TestDaemon daemon;
  for (const size_t bytes : {1, 15, 17}) {
    v1::Gang gang;
    gang.set_id(std::string(bytes, 'a'));
    gang.set_size(4);
    v1::LookupRequest lookup;
    lookup.set_request_key(RequestKey(SectionsOf(kScript)));
    *lookup.mutable_gang() = gang;
    grpc::ClientContext looking, attaching;
    v1::LookupReply reply;
    const grpc::Status looked = daemon.compiler().Lookup(&looking, lookup, &reply);
    EXPECT_EQ(looked.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bytes;
    EXPECT_NE(looked.error_message().find("gang.id"), std::string::npos) << looked.error_message();
    v1::CompileHeader header;
    *header.mutable_sections() = SectionsOf(kScript);
    header.set_graph_bytes(sizeof(kScript) - 1);
    header.mutable_hints()->add_values(100);
    *header.mutable_gang() = gang;
    const CompileResult compiled = daemon.Compile(header, kScript, absl::Seconds(60));
    EXPECT_EQ(compiled.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bytes;
    v1::AttachRequest attach;
    *attach.mutable_gang() = gang;
    EXPECT_EQ(daemon.compiler().Attach(&attaching, attach)->Finish().error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  // The control: no id, and one of the right length, without others.
  const std::unique_ptr<Client> client = ClientOf(daemon);
  v1::Gang one = GangOf("a");
  one.set_size(1);
  EXPECT_TRUE(Ask(*client, kScript, 100, one).status.ok());
}

}  // namespace
}  // namespace kiln
