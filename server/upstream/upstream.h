// The kilnd that this one asks for what it lacks (`upstream` of the configuration): the connection to it, and
// what it is asked. It is an optimisation: nothing that comes from it is believed here, see
// server/flight/upstream_artifact.h.
//
// A thread keeps the connection. Where the upstream does not answer, or is none that can be asked (another
// format, a loop, no tenant of it), nobody asks it until it has said hello again, so that it costs a caller
// nothing but its first silence: a look-up's limit, or, of a compile, the 15 s in which gRPC finds a peer
// that is gone. New files of TLS are used for the next connection.
//
// Threads: thread-safe. LookUp and Fetch block within their limits; Compile does not.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "compiler/channel/object_stream.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/tls_files.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/compile.grpc.pb.h"
#include "server/upstream/forwarded_compile.h"

namespace kiln {

// For whom something is asked.
struct UpstreamCaller {
  std::string ns;
  std::string job;
  std::vector<std::string> hops;  // daemons that the request has passed before this one
};

class Upstream {
 public:
  struct Options {
    std::string address;  // as gRPC's: "unix:/run/…", "farm.example:7711"
    TlsFiles tls;
    bool names_tenants = false;
    absl::Duration lookup_limit = absl::Seconds(2);
  };
  // That nobody answers there is no error. INVALID_ARGUMENT and FAILED_PRECONDITION are NewChannel's;
  // UNAVAILABLE where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<Upstream>> Create(Options options);
  // After the last call but Compile's. What runs is told to end.
  ~Upstream();

  const std::string& address() const { return options_.address; }
  // This daemon's among those that pass requests on, and those that its own may pass, itself first.
  const std::string& id() const { return id_; }
  std::vector<std::string> Forwarders() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What it said of itself last; nothing before it has.
  std::optional<v1::HelloReply> Hello() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the upstream's compiler, as it said last; empty before it has.
  std::string fingerprint() const ABSL_LOCKS_EXCLUDED(mutex_);
  // OK, or why it is not asked. At once.
  absl::Status Usable() const ABSL_LOCKS_EXCLUDED(mutex_);

  struct Answer {
    v1::LookupReply reply;
    std::string fingerprint;  // of the compiler whose key it is
  };
  // Why it could not be asked; what it says of itself is asked again with each.
  absl::StatusOr<Answer> LookUp(const UpstreamCaller& caller, const std::string& request_key,
                                const v1::Hints& hints, const v1::Gang& gang);
  // Packed objects of a manifest, by digest, all of them and no longer than they say; nothing else of them is
  // checked. Where it has no room to send them it is asked again. An error where one does not come.
  using Objects = absl::flat_hash_map<std::string, std::string>;
  absl::StatusOr<Objects> Fetch(const UpstreamCaller& caller, const v1::Manifest& manifest,
                                absl::Span<const v1::ObjectRef> objects);
  // `header` without a namespace; `packed`: the graph as one zstd frame.
  std::shared_ptr<ForwardedCompile> Compile(const UpstreamCaller& caller, MonotonicTime deadline,
                                            v1::CompileHeader header,
                                            std::shared_ptr<const std::string> packed,
                                            ForwardedCompile::Listener listener);
  // A call came to nothing: whether the upstream is to be asked again is found out at once.
  void TakeFailure(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // From now on nothing blocks.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // What became of what was asked, for people.
  struct Counts {
    std::atomic<uint64_t> hits{0};
    std::atomic<uint64_t> misses{0};
    std::atomic<uint64_t> forwarded{0};
    std::atomic<uint64_t> refused{0};
    std::atomic<uint64_t> away{0};
    std::atomic<uint64_t> fetched_objects{0};
  };
  Counts& counts() { return counts_; }
  v1::UpstreamStatus status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Call;
  // Of one connection. Shared with the calls that it has.
  struct Link {
    std::shared_ptr<grpc::Channel> channel;
    std::shared_ptr<v1::Compiler::Stub> stub;
    TlsPems pems;
  };
  using LinkPtr = std::shared_ptr<const Link>;

  explicit Upstream(Options options);
  absl::StatusOr<LinkPtr> NewLink() const;
  LinkPtr link() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Prepare(const UpstreamCaller& caller, MonotonicTime deadline, grpc::ClientContext* context) const;
  absl::Status CheckHello(const std::string& ns, const v1::HelloReply& hello) const;
  void Keep() ABSL_LOCKS_EXCLUDED(mutex_);
  // For `pause`, or until it is not as usable as said. False: it is closed.
  bool Await(absl::Duration pause, std::optional<bool> usable = std::nullopt) ABSL_LOCKS_EXCLUDED(mutex_);
  // What comes goes from one to the other. `come_again`: where it is full.
  absl::Status FetchMissing(const UpstreamCaller& caller, const v1::Manifest& manifest,
                            MonotonicTime deadline, MissingObjects* missing, Objects* fetched,
                            std::optional<absl::Duration>* come_again);
  void Connect() ABSL_LOCKS_EXCLUDED(mutex_);
  void RenewFiles() ABSL_LOCKS_EXCLUDED(mutex_);
  void Learn(const v1::HelloReply& hello) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::string id_;
  Counts counts_;

  mutable absl::Mutex mutex_;
  MonotonicCondVar changed_;
  LinkPtr link_ ABSL_GUARDED_BY(mutex_);
  absl::Status usable_ ABSL_GUARDED_BY(mutex_);
  std::string last_failure_ ABSL_GUARDED_BY(mutex_);             // for people
  std::optional<v1::HelloReply> hello_ ABSL_GUARDED_BY(mutex_);  // the last
  absl::flat_hash_set<Call*> calls_ ABSL_GUARDED_BY(mutex_);     // that block
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread keeper_;  // const after Create
};

}  // namespace kiln
