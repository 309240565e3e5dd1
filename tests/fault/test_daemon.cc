#include "tests/fault/test_daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/zstd.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"

namespace kiln {
namespace {

template <typename Stream>
CompileResult ReadEvents(Stream* stream) {
  CompileResult result;
  v1::CompileEvent event;
  while (stream->Read(&event)) {
    result.events.push_back(event);
    if (event.has_queued()) {
      result.joined = result.joined || event.queued().joined();
      result.job_id = event.queued().job_id();
    }
    if (event.has_done()) {
      result.done = true;
      result.durable = result.durable || event.done().durable();
      if (event.done().has_manifest()) {
        result.manifest_bytes = event.done().manifest().manifest();
        EXPECT_TRUE(result.manifest.ParseFromString(result.manifest_bytes));
      }
    }
    if (event.has_failed()) {
      result.failed_code = event.failed().code();
      result.failed_reason = event.failed().reason();
    }
  }
  result.status = stream->Finish();
  return result;
}

v1::Hints MakeHints(const std::vector<int64_t>& values) {
  v1::Hints hints;
  for (int64_t value : values) hints.add_values(value);
  return hints;
}

}  // namespace

bool Eventually(const std::function<bool()>& condition, absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  while (absl::Now() < deadline) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return condition();
}

v1::RequestSections SectionsOf(const std::string& script) {
  v1::RequestSections sections;
  v1::Target target;
  const bool gpu = absl::StrContains(script, "gemms") || absl::StrContains(script, "convolutions") ||
                   absl::StrContains(script, "schedules");
  target.set_triple(gpu ? "nvptx64-nvidia-cuda" : "x86_64-linux-gnu");
  if (gpu) target.add_features(absl::StrContains(script, "sm_80") ? "sm_80" : "sm_90");
  sections.set_target(target.SerializeAsString());
  sections.set_graph_digest(Sha256(script));
  return sections;
}

v1::CompileHeader HeaderOf(const std::string& script, v1::WorkClass work_class) {
  v1::CompileHeader header;
  header.set_namespace_("test");
  *header.mutable_sections() = SectionsOf(script);
  header.set_graph_bytes(script.size());
  header.set_work_class(work_class);
  return header;
}

void Send(const v1::CompileHeader& header, const std::string& graph, CompileStream* stream) {
  v1::CompileRequest request;
  *request.mutable_header() = header;
  if (stream->Write(request)) {
    request.set_graph_chunk(ZstdCompress(graph));
    stream->Write(request);
  }
  stream->WritesDone();
}

void Send(const std::string& ns, const std::string& script, CompileStream* stream) {
  v1::CompileHeader header = HeaderOf(script);
  header.set_namespace_(ns);
  Send(header, script, stream);
}

TestDaemon::TestDaemon(const std::string& text, std::vector<std::string> flags, std::string worker,
                       int workers)
    : config_(text),
      flags_(std::move(flags)),
      worker_(worker.empty() ? std::string(SCRIPTED_WORKER) : std::move(worker)),
      workers_(workers) {
  char path[] = "/tmp/kiln-test-XXXXXX";
  directory_ = mkdtemp(path);
  Start();
}

TestDaemon::~TestDaemon() {
  if (pid_ > 0) Stop(SIGKILL);
  if (testing::Test::HasFailure()) {
    std::ifstream log(directory_ + "/log");
    std::cerr << "---- log of kilnd ----\n" << log.rdbuf() << "----\n";
  }
  std::filesystem::remove_all(directory_);
}

void TestDaemon::Start() {
  const std::string config_file = directory_ + "/config.textproto";
  std::ofstream(config_file) << config_;
  std::vector<std::string> words = {KILND,
                                    "--config",
                                    config_file,
                                    "--socket",
                                    socket(),
                                    "--store",
                                    directory_ + "/store",
                                    "--worker-binary",
                                    worker_,
                                    "--workers",
                                    absl::StrCat(workers_),
                                    "--log-file",
                                    directory_ + "/log"};
  words.insert(words.end(), flags_.begin(), flags_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is ended from outside leaves no daemon
    execv(argv[0], argv.data());
    _exit(127);
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a restarted daemon is another one
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  auto channel = grpc::CreateCustomChannel("unix:" + socket(), grpc::InsecureChannelCredentials(), arguments);
  const bool connected =
      channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30));
  EXPECT_TRUE(connected) << "kilnd does not answer";
  compiler_ = v1::Compiler::NewStub(channel);
  admin_ = v1::Admin::NewStub(channel);
}

int TestDaemon::Wait(absl::Duration limit) {
  int status = -1;
  const bool ended = Eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, limit);
  if (!ended) return -1;
  pid_ = -1;
  return status;
}

int TestDaemon::Stop(int signal_number) {
  kill(pid_, signal_number);
  return Wait(absl::Seconds(60));
}

v1::StatsReply TestDaemon::Stats() {
  grpc::ClientContext context;
  v1::StatsReply reply;
  EXPECT_TRUE(admin_->Stats(&context, {}, &reply).ok());
  return reply;
}

CompileResult TestDaemon::Compile(const std::string& script, const std::vector<int64_t>& hints,
                                  absl::Duration limit, const std::string& ns, bool want_debug) {
  v1::CompileHeader header;
  header.set_namespace_(ns);
  header.set_want_debug(want_debug);
  *header.mutable_sections() = SectionsOf(script);
  header.set_graph_bytes(script.size());
  *header.mutable_hints() = MakeHints(hints);
  header.mutable_notes()->set_title("scripted forward");
  header.mutable_notes()->add_guards("tensor 'x' size 4");
  return Compile(header, script, limit);
}

CompileResult TestDaemon::Compile(const v1::CompileHeader& header, const std::string& graph,
                                  absl::Duration limit) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + limit));
  auto stream = compiler_->Compile(&context);
  Send(header, graph, stream.get());
  return ReadEvents(stream.get());
}

std::string TestDaemon::Fetch(const v1::Manifest& manifest, const std::vector<std::string>& digests,
                              grpc::Status* status) {
  grpc::ClientContext context;
  v1::FetchObjectsRequest request;
  request.set_namespace_(manifest.namespace_());
  request.set_compile_key(manifest.compile_key());
  request.set_variant_id(manifest.variant_id());
  for (const std::string& digest : digests) request.add_digests(digest);
  auto reader = compiler_->FetchObjects(&context, request);
  v1::ObjectChunk chunk;
  std::string packed;
  while (reader->Read(&chunk)) packed += chunk.data();
  *status = reader->Finish();
  return packed;
}

CompileResult TestDaemon::Attach(const std::string& job_id, const std::vector<int64_t>& hints,
                                 const std::string& ns) {
  grpc::ClientContext context;
  v1::AttachRequest request;
  request.set_namespace_(ns);
  request.set_job_id(job_id);
  *request.mutable_hints() = MakeHints(hints);
  auto stream = compiler_->Attach(&context, request);
  return ReadEvents(stream.get());
}

v1::LookupReply TestDaemon::Lookup(const std::string& script, const std::vector<int64_t>& hints,
                                   const std::string& ns) {
  grpc::ClientContext context;
  v1::LookupRequest request;
  request.set_namespace_(ns);
  request.set_request_key(RequestKey(SectionsOf(script)));
  *request.mutable_hints() = MakeHints(hints);
  v1::LookupReply reply;
  const grpc::Status status = compiler_->Lookup(&context, request, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return reply;
}

std::map<std::string, std::string> TestDaemon::DebugCompile(const std::string& script) {
  const CompileResult result = Compile(script, {}, absl::Seconds(60), "test", /*want_debug=*/true);
  EXPECT_TRUE(result.done) << result.failed_reason << result.status.error_message();
  std::map<std::string, std::string> files;
  for (const v1::CompileEvent& event : result.events) {
    if (event.has_debug()) files[event.debug().name()] = event.debug().contents();
  }
  return files;
}

std::vector<pid_t> TestDaemon::Workers() const {
  std::vector<pid_t> workers;
  for (pid_t zygote : ChildrenOf(pid_)) {
    for (const ProcessFacts& worker : MembersOf(zygote)) workers.push_back(worker.pid);
  }
  return workers;
}

}  // namespace kiln
