// The coordinator of a running daemon: a FlightTable on a strand, the threads that compile for it and that
// read and write the store for it, and what is known of keys.
//
//   Find: a hit, from memory, on the caller's thread        Lookup: with the store, on a thread of the disk's
//   Compile, Attach, Uploaded, Cancel: inputs of the table (flight_table.h), posted to the strand
//
// No call blocks but those for people. Thread-safe. Limits: admission.queue_max flights wait, one runs a
// worker (workers.count); `kDiskThreads` calls are at the disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/flight/flight_compiler.h"
#include "server/flight/flight_table.h"
#include "server/flight/hit_index.h"
#include "server/flight/stored_keys.h"
#include "server/observe/stats.h"
#include "server/pool/worker_pool.h"
#include "server/schedule/clock.h"
#include "server/schedule/strand.h"
#include "server/schedule/thread_executor.h"

namespace kiln {

class Coordinator final : public Workers, public FlightStore {
 public:
  // All outlive the coordinator. UNAVAILABLE where the system gives no threads.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(const v1::Config& config, Store* store,
                                                             HitIndex* index, WorkerPool* pool, Tuner* tuner,
                                                             Stats* stats);
  // After the last caller is gone. Stops what runs, and waits for it.
  ~Coordinator() override;

  std::string KeyOf(const std::string& ns, const std::string& request_key) const;

  // The hit, serialized, where memory has it; nullptr: ask Lookup.
  std::shared_ptr<const std::string> Find(const std::string& compile_key, const v1::Hints& hints);
  // `answer` is called once, on another thread, with a serialized LookupReply.
  void Lookup(const std::string& compile_key, const v1::Hints& hints,
              std::function<void(std::shared_ptr<const std::string>)> answer);

  CallId NewCall() { return ++last_call_; }
  void Compile(CallId id, FlightRequest request, FlightCall call);
  void Attach(CallId id, const std::string& ns, const std::string& job_id, FlightCall call);
  void Uploaded(CallId id, absl::StatusOr<GraphPtr> graph);
  void Cancel(CallId id);
  // For what blocks: unpacking and hashing an upload, reading objects.
  void Work(std::function<void()> work) { disk_->Post(std::move(work)); }

  // As StoredKeys'; they block.
  absl::StatusOr<std::shared_ptr<const Artifact>> CheckFetch(const v1::FetchObjectsRequest& request) {
    return keys_.CheckFetch(request);
  }
  absl::StatusOr<EntryValue> ReadObject(const v1::FetchObjectsRequest& request, const Artifact* fresh,
                                        const std::string& digest);
  void ReportUse(const v1::ReportUseRequest& request);

  // For people; block until the strand has come to it.
  std::vector<v1::JobInfo> Jobs();
  struct Load {
    size_t flights = 0;
    size_t queued = 0;
    size_t running = 0;
  };
  Load load();
  // After a removal: forgets crashes and what memory knows of the key; of every key when empty.
  void Forget(const std::string& compile_key);

  // Nothing starts any more. True when everything ended before the limit.
  bool Drain(absl::Duration limit);

 private:
  Coordinator(const v1::Config& config, Store* store, HitIndex* index, WorkerPool* pool, Tuner* tuner,
              Stats* stats);

  // What the table asks for, on the strand.
  void Start(FlightId flight, FlightRequestPtr request) override;
  void Stop(FlightId flight) override;
  void Look(FlightId flight, const std::string& compile_key) override;
  void Write(FlightId flight, std::shared_ptr<const Artifact> artifact) override;

  SystemClock clock_;
  Store* const store_;
  WorkerPool* const pool_;
  Stats* const stats_;
  StoredKeys keys_;
  FlightCompiler compiler_;
  std::atomic<CallId> last_call_{0};

  // The strand's.
  FlightTable table_;
  absl::flat_hash_map<FlightId, FlightCompiler::CompilationPtr> compilations_;
  bool closing_ = false;  // nothing starts any more

  // In this order: a later one posts to those before it.
  std::unique_ptr<Strand> strand_;
  std::unique_ptr<ThreadExecutor> disk_;
  std::unique_ptr<ThreadExecutor> runners_;
};

}  // namespace kiln
