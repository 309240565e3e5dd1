// A kilnd of a test's own: process, socket and store in a temporary directory, workers that do what
// the graph says (scripted_worker.cc), or others. Everything ends with the object.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kiln/v1/admin.grpc.pb.h"
#include "kiln/v1/compile.grpc.pb.h"

namespace kiln {

struct CompileResult {
  grpc::Status status;
  std::vector<v1::CompileEvent> events;
  v1::Manifest manifest;
  std::string manifest_bytes;  // as they came
  bool done = false;
  bool durable = false;
  bool joined = false;
  int failed_code = 0;
  std::string failed_reason;
  std::string job_id;
};

class TestDaemon {
 public:
  // `text` is added to the daemon's configuration. `worker`: another program than the scripted one.
  explicit TestDaemon(const std::string& text = "", std::vector<std::string> flags = {},
                      std::string worker = "", int workers = 2);
  ~TestDaemon();

  void Start();
  // What is added to the configuration from the next Start on.
  void Configure(const std::string& text) { config_ = text; }
  // Ends the process with a signal and returns its wait status.
  int Stop(int signal_number);
  int Wait(absl::Duration limit);  // -1 when it still runs
  pid_t pid() const { return pid_; }
  const std::string& directory() const { return directory_; }
  std::string socket() const { return directory_ + "/run/kilnd.sock"; }

  v1::Compiler::Stub& compiler() { return *compiler_; }
  v1::Admin::Stub& admin() { return *admin_; }
  v1::StatsReply Stats();

  CompileResult Compile(const std::string& script, const std::vector<int64_t>& hints = {},
                        absl::Duration limit = absl::Seconds(60), const std::string& ns = "test",
                        bool want_debug = false);
  CompileResult Compile(const v1::CompileHeader& header, const std::string& graph, absl::Duration limit);
  // The packed objects of a compiled variant, one after the other.
  std::string Fetch(const v1::Manifest& manifest, const std::vector<std::string>& digests,
                    grpc::Status* status);
  CompileResult Attach(const std::string& job_id, const std::vector<int64_t>& hints = {},
                       const std::string& ns = "test");
  v1::LookupReply Lookup(const std::string& script, const std::vector<int64_t>& hints = {},
                         const std::string& ns = "test");

  // Pids of the living workers, by walking the daemon's process tree.
  std::vector<pid_t> Workers() const;

  // Files that a debug compile sends, by name.
  std::map<std::string, std::string> DebugCompile(const std::string& script);

 private:
  std::string directory_;
  std::string config_;
  std::vector<std::string> flags_;
  const std::string worker_;
  const int workers_;
  pid_t pid_ = -1;
  std::unique_ptr<v1::Compiler::Stub> compiler_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

v1::RequestSections SectionsOf(const std::string& script);
// In the namespace "test".
v1::CompileHeader HeaderOf(const std::string& script, v1::WorkClass work_class = v1::WORK_INTERACTIVE);
// All that a caller sends who does not wait to be asked for the graph.
using CompileStream = grpc::ClientReaderWriter<v1::CompileRequest, v1::CompileEvent>;
void Send(const v1::CompileHeader& header, const std::string& graph, CompileStream* stream);
void Send(const std::string& ns, const std::string& script, CompileStream* stream);

// Polls until `condition`; false when it did not become true in time.
bool Eventually(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(10));

}  // namespace kiln
