// Clients and daemons of different builds, on the wire. tests/golden/clients has what libkiln said, byte by
// byte, in each build that said something new: today's kilnd serves every one of them. What a newer build may
// add (fields, kinds of events, versions of the protocol, RPCs) costs the older side nothing; where the two
// have no version in common, the error names both ranges.
//
// A client that says something new is recorded as another generation: KILN_UPDATE=1. What is recorded stays.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/program.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/protocol.h"
#include "compiler/support/zstd.h"
#include "kiln/client.h"
#include "kiln/run_count.h"
#include "tests/fault/small_graph.h"
#include "tests/fault/test_daemon.h"
#include "tests/fault/wire_proxy.h"
#include "tests/unit/plain_host.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr char kHello[] = "/kiln.v1.Compiler/Hello";
constexpr char kLookup[] = "/kiln.v1.Compiler/Lookup";
constexpr char kCompile[] = "/kiln.v1.Compiler/Compile";
constexpr char kAttach[] = "/kiln.v1.Compiler/Attach";
constexpr char kFetch[] = "/kiln.v1.Compiler/FetchObjects";
constexpr char kReportUse[] = "/kiln.v1.Compiler/ReportUse";
constexpr char kNamespace[] = "default";
constexpr char kSlow[] = "name slow\nsleep_ms 1500";  // for the scripted worker

// A gang's member asks for it.
CompileRequestInput InputOfMember() {
  CompileRequestInput input = InputOfGraph();
  input.gang.set_id(std::string(16, '\7'));
  input.gang.set_size(2);
  return input;
}

CompileRequestInput InputOfScript(const std::string& script) {
  CompileRequestInput input;
  input.graph = script;
  input.sections = SectionsOf(script);
  input.request_key = RequestKey(input.sections);
  return input;
}

ClientOptions OptionsFor(const WireProxy& proxy) {
  ClientOptions options;
  options.address = proxy.address();
  options.name_space = kNamespace;
  options.job = "nightly";
  options.compile_seconds = 60;
  return options;
}

// What a client has at the end.
struct Served {
  v1::Manifest manifest;
  runtime::ObjectMap objects;
};

void ExpectRuns(const Served& served) {
  runtime::PlainHost host;
  const auto program = runtime::Program::Load(served.manifest, served.objects, "", &host);
  ASSERT_TRUE(program.ok()) << program.status();
  const int64_t size = 6, stride = 1;
  const auto x = host.Empty(v1::F32, {&size, 1}, {&stride, 1});
  ASSERT_TRUE(x.ok());
  for (int i = 0; i < size; ++i) static_cast<float*>(host.Memory(*x))[i] = static_cast<float>(i - 3);
  std::vector<runtime::Value> outputs;
  const absl::Status ran = (*program)->Run({{*x}}, outputs);
  ASSERT_TRUE(ran.ok()) << ran;
  ASSERT_EQ(outputs.size(), 1);
  for (int i = 0; i < size; ++i) {
    const float value = static_cast<float>(i - 3);
    EXPECT_EQ(static_cast<float*>(host.Memory(outputs[0].tensor))[i], std::max(value, 0.0f) + value);
  }
  host.Release(outputs[0].tensor);
}

template <typename Message>
Message Parsed(const std::string& bytes) {
  Message message;
  EXPECT_TRUE(message.ParseFromString(bytes));
  return message;
}

// The events' program; nothing where there is none.
std::optional<v1::Manifest> ManifestOf(const WireReply& reply) {
  EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
  for (const std::string& message : reply.messages) {
    const auto event = Parsed<v1::CompileEvent>(message);
    EXPECT_FALSE(event.has_failed()) << event.failed().reason();
    if (event.done().has_manifest()) return Parsed<v1::Manifest>(event.done().manifest().manifest());
  }
  return std::nullopt;
}

runtime::ObjectMap ObjectsFrom(const WireReply& reply, const v1::Manifest& manifest) {
  EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
  std::map<std::string, std::string> packed;
  std::string digest;
  for (const std::string& message : reply.messages) {
    const auto chunk = Parsed<v1::ObjectChunk>(message);
    if (!chunk.digest().empty()) digest = chunk.digest();
    packed[digest] += chunk.data();
  }
  runtime::ObjectMap objects;
  for (const v1::ObjectRef* ref : ObjectsOf(manifest)) {
    if (packed.count(ref->digest()) == 0) continue;
    absl::StatusOr<std::string> raw = ZstdDecompress(packed[ref->digest()], ref->raw_size());
    EXPECT_TRUE(raw.ok() && Sha256(*raw) == ref->digest()) << raw.status();
    if (raw.ok()) objects[ref->digest()] = std::make_shared<const std::string>(*std::move(raw));
  }
  return objects;
}

// What a client repeats of what it was told, which is another compiler's and another job's today.
void Repeat(const v1::Manifest& manifest, WireCall* fetch) {
  auto request = Parsed<v1::FetchObjectsRequest>(fetch->messages.at(0));
  request.set_compile_key(manifest.compile_key());
  request.set_variant_id(manifest.variant_id());
  request.clear_digests();
  for (const v1::ObjectRef* object : ObjectsOf(manifest)) {
    if (object->kind() != v1::LOOP_IR) request.add_digests(object->digest());
  }
  fetch->messages[0] = request.SerializeAsString();
}

class Generations : public testing::Test {
 protected:
  using Change = std::function<void(WireCall*)>;

  static std::vector<fs::path> Recordings() {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(KILN_RECORDED_CLIENTS)) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  static std::vector<WireCall> Newest() { return ReadCalls(Recordings().back()); }
  static WireCall CallOf(const std::vector<WireCall>& calls, const std::string& method) {
    const auto found =
        std::find_if(calls.begin(), calls.end(), [&](const WireCall& call) { return call.method == method; });
    EXPECT_NE(found, calls.end()) << method;
    return found == calls.end() ? WireCall() : *found;
  }

  WireReply Tell(WireCall call, const Change& change) {
    if (change != nullptr) change(&call);
    return Say(channel_, call);
  }

  // All that a recorded client asks for a graph, said to the daemon.
  std::optional<Served> Replay(const std::vector<WireCall>& calls, const Change& change = nullptr) {
    const WireReply looked = Tell(CallOf(calls, kLookup), change);
    EXPECT_TRUE(looked.status.ok()) << looked.status.error_message();
    if (!looked.status.ok()) return std::nullopt;
    EXPECT_TRUE(Parsed<v1::LookupReply>(looked.messages.at(0)).has_miss());
    Served served;
    const std::optional<v1::Manifest> made = ManifestOf(Tell(CallOf(calls, kCompile), change));
    if (!made.has_value()) return std::nullopt;
    const WireReply again = Tell(CallOf(calls, kLookup), change);
    const auto hit = Parsed<v1::LookupReply>(again.messages.at(0));
    EXPECT_TRUE(hit.has_hit());
    served.manifest = Parsed<v1::Manifest>(hit.hit().manifest().manifest());
    EXPECT_EQ(served.manifest.variant_id(), made->variant_id());
    WireCall fetch = CallOf(calls, kFetch);
    Repeat(served.manifest, &fetch);
    served.objects = ObjectsFrom(Tell(std::move(fetch), change), served.manifest);
    return served;
  }

  TestDaemon daemon_{"", {}, KILN_WORKER, 1};
  const std::shared_ptr<grpc::Channel> channel_ =
      grpc::CreateChannel(absl::StrCat("unix:", daemon_.socket()), grpc::InsecureChannelCredentials());
};

// ---- What is recorded ------------------------------------------------------------------------

// Today's client, call by call.
std::vector<WireCall> Today(TestDaemon& daemon) {
  std::vector<WireCall> calls;
  WireProxy proxy(daemon.socket(), daemon.directory() + "/proxy");
  const std::unique_ptr<Client> client = NewClient(OptionsFor(proxy));
  TakeRuns();
  for (int i = 0; i < 3; ++i) CountRun();
  const absl::StatusOr<CompiledArtifact> got = client->Get(InputOfMember(), /*compile=*/true);
  EXPECT_TRUE(got.ok()) << got.status();
  for (int i = 0; i < 2; ++i) CountRun();
  client->ReportUse(absl::Seconds(10));
  for (const char* method : {kHello, kLookup, kCompile, kFetch, kReportUse}) {
    const std::vector<WireCall> said = proxy.calls(method);
    EXPECT_EQ(said.size(), 1) << method;
    calls.insert(calls.end(), said.begin(), said.end());
  }

  TestDaemon scripted;
  WireProxy beside(scripted.socket(), scripted.directory() + "/proxy");
  std::thread first([&] { EXPECT_TRUE(scripted.Compile(kSlow, {}, absl::Seconds(60), kNamespace).done); });
  EXPECT_TRUE(Eventually([&] { return scripted.Lookup(kSlow, {}, kNamespace).has_in_flight(); }));
  EXPECT_TRUE(NewClient(OptionsFor(beside))->Get(InputOfScript(kSlow), /*compile=*/true).ok());
  first.join();
  const std::vector<WireCall> attached = beside.calls(kAttach);
  EXPECT_EQ(attached.size(), 1);
  calls.insert(calls.end(), attached.begin(), attached.end());
  return calls;
}

// Without what a client repeats of what it was told, and what its zstd makes of a graph.
WireCall Settled(WireCall call) {
  if (call.method == kFetch) {
    auto request = Parsed<v1::FetchObjectsRequest>(call.messages.at(0));
    request.clear_compile_key();
    request.clear_variant_id();
    request.clear_digests();
    call.messages[0] = request.SerializeAsString();
  } else if (call.method == kAttach) {
    auto request = Parsed<v1::AttachRequest>(call.messages.at(0));
    EXPECT_EQ(request.job_id().size(), 16);
    request.clear_job_id();
    call.messages[0] = request.SerializeAsString();
  } else if (call.method == kCompile) {
    std::string packed;
    for (size_t i = 1; i < call.messages.size(); ++i)
      packed += Parsed<v1::CompileRequest>(call.messages[i]).graph_chunk();
    const absl::StatusOr<std::string> graph =
        ZstdDecompress(packed, Parsed<v1::CompileRequest>(call.messages.at(0)).header().graph_bytes());
    EXPECT_TRUE(graph.ok()) << graph.status();
    call.messages = {call.messages.at(0), graph.value_or("")};
  }
  return call;
}

bool SaysTheSame(const WireCall& a, const WireCall& b) {
  return a.method == b.method && a.metadata == b.metadata && a.messages == b.messages;
}

TEST_F(Generations, TodaysClientSaysWhatTheNewestRecordingHas) {
  const std::vector<WireCall> today = Today(daemon_);
  const std::vector<fs::path> recordings = Recordings();
  const std::vector<WireCall> recorded =
      recordings.empty() ? std::vector<WireCall>() : ReadCalls(recordings.back());
  std::string other;  // the first that is not as it was
  for (size_t i = 0; i < today.size() && other.empty(); ++i) {
    if (i >= recorded.size() || !SaysTheSame(Settled(recorded[i]), Settled(today[i])))
      other = today[i].method;
  }
  if (!other.empty() && getenv("KILN_UPDATE") != nullptr) {
    WriteCalls(absl::StrCat(KILN_RECORDED_CLIENTS, "/", recordings.size() + 1, ".txt"),
               "What libkiln says: tests/fault/generations_test.cc.", today);
    return;
  }
  EXPECT_EQ(other, "") << "says something new: record it as another generation (KILN_UPDATE=1)";
}

// ---- An older client -------------------------------------------------------------------------

TEST_F(Generations, EveryRecordedClientIsServedAProgramThatRuns) {
  const std::vector<fs::path> recordings = Recordings();
  ASSERT_FALSE(recordings.empty());
  for (const fs::path& path : recordings) {
    SCOPED_TRACE(path);
    const std::vector<WireCall> calls = ReadCalls(path);
    const WireReply hello = Say(channel_, CallOf(calls, kHello));
    ASSERT_TRUE(hello.status.ok()) << hello.status.error_message();
    const auto said = Parsed<v1::HelloReply>(hello.messages.at(0));
    EXPECT_GE(said.protocol(), kProtocol.min);
    EXPECT_LE(said.protocol(), kProtocol.max);
    EXPECT_GE(said.trusted_keys_size(), 1);
    const std::optional<Served> served = Replay(calls);
    ASSERT_TRUE(served.has_value());
    ExpectRuns(*served);
    const WireReply reported = Say(channel_, CallOf(calls, kReportUse));
    EXPECT_TRUE(reported.status.ok()) << reported.status.error_message();
    daemon_.Stop(SIGKILL);
    fs::remove_all(daemon_.directory() + "/store");
    daemon_.Start();
  }
}

TEST_F(Generations, EveryRecordedClientJoinsAFlight) {
  for (const fs::path& path : Recordings()) {
    SCOPED_TRACE(path);
    TestDaemon scripted;
    const auto channel =
        grpc::CreateChannel(absl::StrCat("unix:", scripted.socket()), grpc::InsecureChannelCredentials());
    std::thread first([&] { EXPECT_TRUE(scripted.Compile(kSlow, {}, absl::Seconds(60), kNamespace).done); });
    std::string job;
    EXPECT_TRUE(Eventually([&] {
      job = scripted.Lookup(kSlow, {}, kNamespace).in_flight().job_id();
      return !job.empty();
    }));
    WireCall attach = CallOf(ReadCalls(path), kAttach);
    auto request = Parsed<v1::AttachRequest>(attach.messages.at(0));
    request.set_job_id(job);
    attach.messages[0] = request.SerializeAsString();
    EXPECT_TRUE(ManifestOf(Say(channel, attach)).has_value());
    first.join();
    EXPECT_EQ(scripted.Stats().compiles(), 1);
  }
}

TEST_F(Generations, AClientThatSaysNoHelloAndNoProtocolIsServed) {
  const std::optional<Served> served = Replay(Newest(), [](WireCall* call) { call->metadata.clear(); });
  ASSERT_TRUE(served.has_value());
  ExpectRuns(*served);
}

// ---- A newer client --------------------------------------------------------------------------

const google::protobuf::MethodDescriptor* MethodOf(const std::string& method) {
  const auto* service = v1::HelloRequest::descriptor()->file()->FindServiceByName("Compiler");
  return service->FindMethodByName(method.substr(method.rfind('/') + 1));
}

void AddFields(google::protobuf::Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  reflection.MutableUnknownFields(message)->AddVarint(1000, 1);
  reflection.MutableUnknownFields(message)->AddLengthDelimited(1001, "of a later build");
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->message_type() == nullptr) continue;
    if (!field->is_repeated()) AddFields(reflection.MutableMessage(message, field));
    for (int i = 0; field->is_repeated() && i < reflection.FieldSize(*message, field); ++i)
      AddFields(reflection.MutableRepeatedMessage(message, field, i));
  }
}

// Fields of a later build, in a message and all that it has.
std::string WithFields(const google::protobuf::Descriptor* type, const std::string& bytes) {
  const std::unique_ptr<google::protobuf::Message> message(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
  EXPECT_TRUE(message->ParseFromString(bytes));
  AddFields(message.get());
  return message->SerializeAsString();
}

constexpr uint32_t kLater = 9;

void SayMore(WireCall* call) {
  call->metadata[kProtocolMetadata] = ToText({kProtocol.min, kLater});
  if (call->method == kHello) {
    auto hello = Parsed<v1::HelloRequest>(call->messages.at(0));
    hello.set_protocol_max(kLater);
    call->messages[0] = hello.SerializeAsString();
  }
  for (std::string& message : call->messages)
    message = WithFields(MethodOf(call->method)->input_type(), message);
}

TEST_F(Generations, ANewerClientIsServedByThisDaemon) {
  const std::vector<WireCall> calls = Newest();
  const WireReply hello = Tell(CallOf(calls, kHello), SayMore);
  ASSERT_TRUE(hello.status.ok()) << hello.status.error_message();
  EXPECT_EQ(Parsed<v1::HelloReply>(hello.messages.at(0)).protocol(), kProtocol.max) << "what both speak";
  EXPECT_EQ(hello.metadata.at(kProtocolMetadata), ToText(kProtocol));
  const std::optional<Served> served = Replay(calls, SayMore);
  ASSERT_TRUE(served.has_value());
  ExpectRuns(*served);
  const WireReply reported = Tell(CallOf(calls, kReportUse), SayMore);
  EXPECT_TRUE(reported.status.ok()) << reported.status.error_message();
}

// The control.
TEST_F(Generations, AClientThatIsTooNewIsRefusedByWordsThatNameBothRanges) {
  const std::string later = ToText({kProtocol.max + 1, kLater});
  for (WireCall call : Newest()) {
    call.metadata[kProtocolMetadata] = later;
    const WireReply refused = Say(channel_, call);
    EXPECT_EQ(refused.status.error_code(), grpc::FAILED_PRECONDITION) << call.method;
    for (const std::string& range : {later, ToText(kProtocol)})
      EXPECT_TRUE(absl::StrContains(refused.status.error_message(), range)) << refused.status.error_message();
  }
}

// libkiln, and a daemon that lacks what it would ask.
TEST_F(Generations, WhatAnOlderDaemonLacksTheClientDoesWithout) {
  TestDaemon scripted;
  WireProxy older(scripted.socket(), scripted.directory() + "/proxy");
  older.answer = [](const WireCall& call) -> std::optional<WireReply> {
    if (call.method != kAttach && call.method != kReportUse) return std::nullopt;
    WireReply reply;
    reply.status = grpc::Status(grpc::UNIMPLEMENTED, "");  // as gRPC says it
    return reply;
  };
  std::thread first([&] { EXPECT_TRUE(scripted.Compile(kSlow, {}, absl::Seconds(60), kNamespace).done); });
  EXPECT_TRUE(Eventually([&] { return scripted.Lookup(kSlow, {}, kNamespace).has_in_flight(); }));
  const std::unique_ptr<Client> client = NewClient(OptionsFor(older));
  const absl::StatusOr<CompiledArtifact> got = client->Get(InputOfScript(kSlow), /*compile=*/true);
  EXPECT_TRUE(got.ok()) << got.status();
  first.join();
  EXPECT_EQ(older.calls(kAttach).size(), 1);
  EXPECT_EQ(scripted.Stats().compiles(), 1) << "it joined by Compile";
  CountRun();
  client->ReportUse(absl::Seconds(10));
  EXPECT_EQ(older.calls(kReportUse).size(), 1);
  EXPECT_TRUE(client->Get(InputOfScript(kSlow), /*compile=*/false).ok());
  // A graph that the compiler refuses with that code is refused.
  const auto refused = client->Get(InputOfScript("refuse 12 no such operator"), /*compile=*/true);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(older.calls(kCompile).size(), 2);
}

// ---- A newer daemon --------------------------------------------------------------------------

TEST_F(Generations, ThisClientIsServedByANewerDaemon) {
  WireProxy newer(daemon_.socket(), daemon_.directory() + "/proxy");
  newer.change_reply = [](const WireCall& call, WireReply* reply) {
    reply->metadata[kProtocolMetadata] = ToText({kProtocol.max, kLater});
    for (std::string& message : reply->messages)
      message = WithFields(MethodOf(call.method)->output_type(), message);
    if (call.method != kCompile) return;
    v1::CompileEvent unknown;
    unknown.GetReflection()->MutableUnknownFields(&unknown)->AddLengthDelimited(1002, "a later kind");
    reply->messages.insert(reply->messages.begin(), unknown.SerializeAsString());
    reply->messages.push_back(unknown.SerializeAsString());
  };
  const std::unique_ptr<Client> client = NewClient(OptionsFor(newer));
  for (const bool hit : {false, true}) {
    const absl::StatusOr<CompiledArtifact> got = client->Get(InputOfMember(), /*compile=*/true);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->hit, hit);
    ExpectRuns({got->manifest, got->objects});
  }
}

// The control: one that does not speak what this client does any more. The daemon is this build's, and the
// client to it an older one.
TEST_F(Generations, ADaemonThatIsTooNewIsTold) {
  WireProxy newer(daemon_.socket(), daemon_.directory() + "/proxy");
  const std::string earlier = ToText({0, kProtocol.min - 1});
  newer.change_call = [&](WireCall* call) { call->metadata[kProtocolMetadata] = earlier; };
  const absl::StatusOr<CompiledArtifact> got =
      NewClient(OptionsFor(newer))->Get(InputOfMember(), /*compile=*/true);
  EXPECT_EQ(got.status().code(), absl::StatusCode::kFailedPrecondition);
  for (const std::string& range : {earlier, ToText(kProtocol)})
    EXPECT_TRUE(absl::StrContains(got.status().message(), range)) << got.status();
}

}  // namespace
}  // namespace kiln
