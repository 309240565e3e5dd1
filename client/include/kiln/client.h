// libkiln: from a canonical graph to its compiled program, through kilnd.
//
// `Client::Get` looks the request up, compiles it on a miss and fetches the objects that this process
// lacks. A manifest has to be signed by a key that counts (client/src/daemon_keys.h), and what it names to
// match its digest; what is not is recompiled, and then refused. With no address configured an embedded
// daemon of the user's own is started and shared by all of the user's processes.
//
// Threads: `Get` may be called from many threads. By a unix socket the connection lives for one call; to
// another host it is kept for `idle_seconds` more (client/src/kept_channel.h), and ends with ReportUse. A
// compile whose connection breaks goes on there, and is joined again, a few times. The process may fork at
// any time, and parent and child go on: what was forked from a process that has called has its calls made by
// a program, `call_binary`, for gRPC does not survive a fork (client/src/forked_client.h). How often programs
// were called goes along with the next look-up; a report whose answer is lost is not repeated. Errors:
// UNAVAILABLE or DEADLINE_EXCEEDED when the service is away or slow (and at once while the breaker is open),
// NOT_FOUND for a miss when only looking up, INVALID_ARGUMENT or UNIMPLEMENTED when the compiler refuses the
// graph, UNAUTHENTICATED or PERMISSION_DENIED when kilnd does not take the certificate or the tenant lacks a
// role, FAILED_PRECONDITION for TLS files that are not good or a daemon that is too old to sign where it has
// to, or in a forked process where there is no `call_binary`, DATA_LOSS for bytes that do not match their
// digest or signature, CANCELLED when told to end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile.pb.h"

namespace kiln {

// Files that max-autotune of the embedded daemon measures with.
struct CudaLibraries {
  std::string cublas_lt, cudnn, driver;
  bool IsEmpty() const { return cublas_lt.empty() && cudnn.empty() && driver.empty(); }
};

// PEM files for mutual TLS: all three, or none. Whoever has to have signed kilnd's certificate, and this
// side's.
struct ClientTls {
  std::string authority, certificate, key;
};

struct ClientOptions {
  std::string address;  // "unix:/path", "farm.example:7711"; empty: the embedded daemon
  // Of the embedded daemon, which passes on what it lacks: "farm.example:7711", "unix:/path". Not with
  // `address`.
  std::string upstream;
  ClientTls tls;                 // with `address` or `upstream`
  std::string daemon_binary;     // kilnd, for the embedded daemon
  std::string call_binary;       // kiln-call, for children that are forked
  CudaLibraries cuda_libraries;  // none: those that this process has loaded
  std::string runtime_dir;       // of its socket; empty: chosen, see client/src/daemon.h
  std::string store_dir;         // empty: chosen
  std::string name_space = "default";
  std::string job;
  std::vector<std::string> trusted_keys;  // public keys; empty: whichever the daemon lists
  bool background = false;                // after what is interactive of the same tenant
  double connect_seconds = 5;
  double compile_seconds = 300;
  double idle_seconds = 10;  // that a connection to another host, or a program, is kept after the last call
};

struct CompileRequestInput {
  std::string graph;  // canonical bytes; may be empty when only looking up
  v1::RequestSections sections;
  std::string request_key;
  v1::Hints hints;
  v1::GraphNotes notes;
  bool want_loop_ir = false;  // for the interpreter
  bool want_debug = false;    // recompile and bring every stage back as text
  v1::Gang gang;              // ranks of one job, who are served alike; no id: of none
};

struct CompiledArtifact {
  v1::Manifest manifest;
  absl::flat_hash_map<std::string, std::shared_ptr<const std::string>> objects;  // by digest
  std::vector<v1::DebugFile> debug_files;                                        // in the order of the stages
  bool hit = false;
  bool joined = false;
  std::string not_kept;  // why the service's store refused the program; empty: it did not
  // What ended while it served this process or before, each as a sentence's beginning; others did its work.
  std::vector<std::string> recovered;
  std::vector<std::string> refused;  // why what came before was not taken
  uint64_t uploaded_bytes = 0;
  uint64_t fetched_objects = 0;
  double connect_seconds = 0;
  double lookup_seconds = 0;
  double compile_seconds = 0;
  double fetch_seconds = 0;
};

// Tells one Get to end, from another thread: a Ctrl-C. Thread-safe, in a process that was forked too.
class Cancellation {
 public:
  void Cancel() {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    if (stop_) stop_();
  }
  bool cancelled() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return cancelled_;
  }
  // What Cancel calls from now on, and now if it was called before; empty: nothing. Not called after another
  // is set.
  void OnCancel(std::function<void()> stop) {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = std::move(stop);
    if (cancelled_ && stop_) stop_();
  }

 private:
  mutable std::mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> stop_ ABSL_GUARDED_BY(mutex_);
};

class Client {
 public:
  virtual ~Client() = default;
  // `compile` false: only look up. `cancellation`, which may be null, is this call's alone.
  virtual absl::StatusOr<CompiledArtifact> Get(const CompileRequestInput& input, bool compile,
                                               Cancellation* cancellation = nullptr) = 0;
  virtual std::string address() const = 0;  // of the daemon in use, for people
  // Tells the service of the runs (kiln/run_count.h) that no look-up has told it of, when the process ends.
  // No daemon is started for it. Within `limit`; what does not arrive is dropped. A connection or a program
  // that was kept ends.
  virtual void ReportUse(absl::Duration limit) = 0;
};

// INVALID_ARGUMENT, naming what to set, where the address is another host's and there is no TLS, or not all
// of it; likewise of an upstream, whose files have to be good now (FAILED_PRECONDITION, which names the one).
absl::Status CheckConnection(const ClientOptions& options);

std::unique_ptr<Client> NewClient(ClientOptions options);

// "unix:/path" or "HOST:PORT" as people write it, also "/path". INVALID_ARGUMENT, naming the forms, for
// anything else.
absl::StatusOr<std::string> NormalAddress(absl::string_view text);

// Of an error of `Get` for a gang's member: that it says nothing of what the other members are served, who
// may run a program. False: they were told the same, or will be.
bool IsWithoutVerdict(const absl::Status& status);

// Public keys from KILN_TRUSTED_KEYS: base64, separated by commas, or the absolute path of a file with one a
// line
// ("#" begins a comment). INVALID_ARGUMENT, naming what is wrong, for anything else.
absl::StatusOr<std::vector<std::string>> ReadTrustedKeys(absl::string_view text);

}  // namespace kiln
