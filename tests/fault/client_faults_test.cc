// Clients of kilnd that lie, fall silent, or say more than there is room for.
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/zstd.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "server/server_limits.h"
#include "tests/fault/slow_fetches.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

// How a call ends that sends one chunk, as that of a graph of so many bytes.
grpc::Status EndOfUpload(TestDaemon& daemon, const std::string& claimed, const std::string& chunk,
                         uint64_t bytes) {
  grpc::ClientContext context;
  auto stream = daemon.compiler().Compile(&context);
  v1::CompileRequest request;
  *request.mutable_header() = HeaderOf(claimed);
  request.mutable_header()->set_graph_bytes(bytes);
  stream->Write(request);
  request.set_graph_chunk(chunk);
  stream->Write(request);
  stream->WritesDone();
  v1::CompileEvent event;
  while (stream->Read(&event)) {
  }
  return stream->Finish();
}

TEST(Server, LiesAboutTheUploadAreRefused) {
  TestDaemon daemon;
  const auto send = [&](const std::string& claimed, const std::string& chunk, uint64_t bytes) {
    return EndOfUpload(daemon, claimed, chunk, bytes).error_code();
  };
  EXPECT_EQ(send("name a", ZstdCompress("name b"), 6), grpc::INVALID_ARGUMENT);  // another graph
  EXPECT_EQ(send("name a", "no zstd", 6), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(send("name a", ZstdCompress(std::string(1 << 20, 'x')), 6), grpc::INVALID_ARGUMENT);  // a bomb
  EXPECT_EQ(send("name a", ZstdCompress("name a"), (64u << 20) + 1), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(send("name a", ZstdCompress("name a"), 0), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(daemon.Stats().compiles(), 0);
}

TEST(Server, AChunkHasSoManyBytes) {
  TestDaemon daemon;
  const auto end = [&](size_t bytes) {
    const grpc::Status status = EndOfUpload(daemon, "name a", std::string(bytes, 'x'), 2 * kChunkBytesMax);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_TRUE(absl::StrContains(end(kChunkBytesMax), "graph_chunk: no zstd frame")) << "it was taken";
  EXPECT_TRUE(absl::StrContains(end(kChunkBytesMax + 1), "graph_chunk: more than 1048576 bytes"));
}

TEST(Server, NobodyWritesAnothersLineInTheLog) {
  TestDaemon daemon;
  const std::string script = "refuse 12 no such operator";
  v1::CompileHeader header = HeaderOf(script);
  header.mutable_notes()->set_title("Model\n2026-01-01T00:00:00.000 1 info forged \x1b[2J");
  EXPECT_EQ(daemon.Compile(header, script, absl::Seconds(10)).failed_code, 12);
  std::ifstream log(daemon.directory() + "/log");
  bool told = false;
  for (std::string line; std::getline(log, line);) {
    told = told || absl::StrContains(line, "Model\\n2026-01-01T00:00:00.000 1 info forged \\x1b[2J");
    EXPECT_FALSE(absl::StartsWith(line, "2026-01-01")) << line;
    EXPECT_FALSE(absl::StrContains(line, "\x1b")) << line;
  }
  EXPECT_TRUE(told);
}

// How a call that its client leaves alone ends; OK where it has not ended after so long.
grpc::StatusCode EndWithin(absl::Duration limit, grpc::ClientContext* context,
                           const std::function<grpc::Status()>& finish) {
  std::future<grpc::Status> ended = std::async(std::launch::async, finish);
  const bool over = ended.wait_for(absl::ToChronoMilliseconds(limit)) == std::future_status::ready;
  if (!over) context->TryCancel();
  const grpc::Status status = ended.get();
  return over ? status.error_code() : grpc::StatusCode::OK;
}

grpc::StatusCode EndOfSilentUpload(TestDaemon& daemon, bool header, absl::Duration limit) {
  grpc::ClientContext context;
  std::unique_ptr<CompileStream> stream = daemon.compiler().Compile(&context);
  v1::CompileRequest request;
  *request.mutable_header() = HeaderOf("name silent");
  if (header) stream->Write(request);
  return EndWithin(limit, &context, [&] {
    v1::CompileEvent event;
    while (stream->Read(&event)) {
    }
    return stream->Finish();
  });
}

TEST(Server, AClientThatFallsSilentInAnUploadIsCutOff) {
  TestDaemon daemon("admission { silent_seconds_max: 1 }");
  for (const bool header : {false, true}) {
    EXPECT_EQ(EndOfSilentUpload(daemon, header, absl::Seconds(10)), grpc::CANCELLED) << header;
  }
  // One that is slow and not silent is served.
  grpc::ClientContext context;
  std::unique_ptr<CompileStream> stream = daemon.compiler().Compile(&context);
  v1::CompileRequest request;
  *request.mutable_header() = HeaderOf("name slow");
  stream->Write(request);
  for (const char byte : ZstdCompress("name slow")) {
    absl::SleepFor(absl::Milliseconds(150));
    request.set_graph_chunk(std::string(1, byte));
    EXPECT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  v1::CompileEvent event;
  bool durable = false;
  while (stream->Read(&event)) durable = durable || event.done().durable();
  EXPECT_TRUE(stream->Finish().ok() && durable);
  // The daemon's own work is nobody's silence.
  EXPECT_TRUE(daemon.Compile("sleep_ms 2500").durable);
  EXPECT_TRUE(Eventually([&] { return daemon.Lookup("name slow").has_hit(); }));
}

TEST(Server, AClientThatTakesNothingIsCutOff) {
  TestDaemon daemon("admission { silent_seconds_max: 1 }");
  std::string noise = "name ";
  for (uint64_t i = 0; noise.size() < 1'000'000; ++i) noise += ToHex(Sha256(absl::StrCat(i)));
  const CompileResult made = daemon.Compile(noise);
  ASSERT_TRUE(made.durable) << made.failed_reason;
  grpc::ClientContext context;
  v1::FetchObjectsRequest request;
  request.set_namespace_(made.manifest.namespace_());
  request.set_compile_key(made.manifest.compile_key());
  request.set_variant_id(made.manifest.variant_id());
  // More than the transport takes for a client that does not read.
  for (int i = 0; i < 1000; ++i) request.add_digests(made.manifest.kernels(0).loop_ir().digest());
  auto reader = daemon.compiler().FetchObjects(&context, request);
  absl::SleepFor(absl::Seconds(3));
  v1::ObjectChunk chunk;
  while (reader->Read(&chunk)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
}

// Control: the same in another namespace, and a budget with room.
TEST(Server, ClientsWhoTakeSlowlyHoldEachObjectOnceAndNoMoreThanTheirShare) {
  TestDaemon daemon(LittleRoomForObjects());
  std::map<std::string, v1::Manifest> made;
  for (const char* name : {"a", "b", "c"}) made[name] = daemon.Compile(LargeProgram(name)).manifest;
  const v1::Manifest others = daemon.Compile(LargeProgram("c"), {}, absl::Seconds(60), "others").manifest;
  SlowFetches slow(daemon);
  slow.Add(made["a"], 20);
  slow.Add(made["b"], 1);
  slow.Add(others, 1);
  grpc::Status refused;
  daemon.Fetch(made["c"], {made["c"].kernels(0).object().digest()}, &refused);
  EXPECT_EQ(refused.error_code(), grpc::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_TRUE(absl::StrContains(refused.error_message(), "objects_bytes_max")) << refused.error_message();
  // A client of ours waits until there is room, and has its program.
  ClientOptions options;
  options.address = absl::StrCat("unix:", daemon.socket());
  options.name_space = "test";
  CompileRequestInput input;
  input.graph = LargeProgram("c");
  input.sections = SectionsOf(input.graph);
  input.request_key = RequestKey(input.sections);
  auto waits = std::async(std::launch::async,
                          [&] { return NewClient(options)->Get(input, /*compile=*/true).status(); });
  EXPECT_EQ(waits.wait_for(std::chrono::milliseconds(1500)), std::future_status::timeout);
  slow.End();
  const absl::Status status = waits.get();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(daemon.Stats().compiles(), 4);
}

// The control: without the limit such a call goes on.
TEST(Server, WithoutALimitSilenceHoldsACall) {
  TestDaemon daemon("admission { silent_seconds_max: 3600 }");
  EXPECT_EQ(EndOfSilentUpload(daemon, true, absl::Seconds(3)), grpc::OK);
}

TEST(Server, SectionsBeyondTheirLimitsAreNamed) {
  TestDaemon daemon;
  const auto with = [&](std::string* (v1::RequestSections::*field)(), size_t bytes) {
    v1::CompileHeader header = HeaderOf("name limits");
    *(header.mutable_sections()->*field)() = std::string(bytes, 'x');
    return daemon.Compile(header, "name limits", absl::Seconds(10)).status;
  };
  const std::pair<std::string* (v1::RequestSections::*)(), const char*> fields[] = {
      {&v1::RequestSections::mutable_options, "options"},
      {&v1::RequestSections::mutable_target, "target"},
      {&v1::RequestSections::mutable_numerics, "numerics"},
      {&v1::RequestSections::mutable_facts, "facts"},
      {&v1::RequestSections::mutable_environment, "environment"}};
  for (const auto& [field, name] : fields) {
    const size_t limit = std::string(name) == "facts" ? kFactsBytesMax : kSectionBytesMax;
    const grpc::Status refused = with(field, limit + 1);
    EXPECT_EQ(refused.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_TRUE(absl::StrContains(refused.error_message(), absl::StrCat("sections.", name)))
        << refused.error_message();
    EXPECT_TRUE(with(field, limit).ok()) << name;
  }
}

TEST(Server, TooManyNotesAreLeftOutAndTheGraphIsCompiled) {
  TestDaemon daemon;
  v1::CompileHeader header = HeaderOf("name noted");
  header.mutable_notes()->set_title("Model forward");
  header.mutable_notes()->add_guards("a guard");
  for (int i = 0; i < 100'000; ++i) header.mutable_notes()->add_node_names("node");
  EXPECT_TRUE(daemon.Compile(header, "name noted", absl::Seconds(10)).durable);
  grpc::ClientContext context;
  v1::ShowRequest request;
  v1::ListReply list;
  ASSERT_TRUE(daemon.admin().List(&context, {}, &list).ok());
  ASSERT_EQ(list.entries_size(), 1);
  request.set_key_prefix(ToHex(list.entries(0).compile_key()));
  grpc::ClientContext again;
  v1::ShowReply shown;
  ASSERT_TRUE(daemon.admin().Show(&again, request, &shown).ok());
  ASSERT_EQ(shown.entries_size(), 1);
  const v1::GraphNotes& kept = shown.entries(0).notes();
  EXPECT_EQ(kept.title(), "Model forward");
  EXPECT_EQ(kept.guards_size(), 1);
  EXPECT_EQ(kept.node_names_size(), 0);

  for (int i = 0; i < 2'000'000; ++i) header.mutable_notes()->add_node_names("node");
  EXPECT_EQ(daemon.Compile(header, "name noted", absl::Seconds(10)).status.error_code(),
            grpc::RESOURCE_EXHAUSTED)
      << "a message of more than 6 MiB";
}

// What a newer client says beside what this daemon knows is of no limit, and is not kept.
TEST(Server, UnknownFieldsAreToleratedAndDropped) {
  TestDaemon daemon;
  const std::string script = "name x\nsleep_ms 1500";
  v1::CompileHeader header = HeaderOf(script, v1::WORK_INTERACTIVE);
  for (google::protobuf::Message* part : std::initializer_list<google::protobuf::Message*>{
           &header, header.mutable_sections(), header.mutable_notes(), header.mutable_hints()}) {
    part->GetReflection()->MutableUnknownFields(part)->AddLengthDelimited(900, std::string(1u << 20, 'u'));
  }
  ASSERT_GT(header.ByteSizeLong(), 4u << 20) << "the control: they travel";
  std::thread caller([&] {
    const CompileResult result = daemon.Compile(header, script, absl::Seconds(60));
    EXPECT_TRUE(result.done) << result.status.error_message();
  });
  uint64_t kept = 0;
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::JobsReply reply;
    EXPECT_TRUE(daemon.admin().Jobs(&context, {}, &reply).ok());
    for (const v1::JobInfo& job : reply.jobs()) kept = job.graph_bytes();
    return kept > 0;
  }));
  EXPECT_LT(kept, 64u << 10);
  caller.join();
}

}  // namespace
}  // namespace kiln
