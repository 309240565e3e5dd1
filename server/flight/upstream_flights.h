// What flights do with the upstream: look their key up there, give it their graph where it has none of it,
// and take what comes back into the store, verified. Where it is unavailable, the flight goes on here, or
// fails, as `upstream.when_away` says.
//
// A program of an upstream with another compiler has another CompileKey than one that is made here; it is
// kept under its own, and looked for under both (Coordinator::KeysOf).
//
// What a gang is served is the upstream's to say: it is asked for each member, whatever is here, and its
// verdict is what the member is told; the program itself is taken from here where it is here. Where it is not
// to be had the member is told that there is no verdict (WithoutVerdict).
//
// What becomes of a compile there is decided by forward_table.h, and done here.
//
// Threads: what flights ask, and Close, on the table's strand; look-ups and transfers on kUpstreamThreads of
// its own. A compile at the upstream holds no thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache/signatures.h"
#include "cache/store.h"
#include "kiln/v1/compile.pb.h"
#include "server/build/artifact.h"
#include "server/flight/flight_claims.h"
#include "server/flight/flight_table.h"
#include "server/flight/forward_table.h"
#include "server/flight/stored_keys.h"
#include "server/schedule/executor.h"
#include "server/schedule/thread_executor.h"
#include "server/upstream/upstream.h"

namespace kiln {

inline constexpr size_t kUpstreamThreads = 8;

class UpstreamFlights final : public FlightClaims {
 public:
  // Inputs of the table, from any thread; they are posted to its strand.
  struct Outside {
    std::function<void(FlightId, KnownKeyPtr, FlightTable::Where)> looked;
    std::function<void(FlightId, absl::string_view phase, FlightEventPtr)> progress;
    std::function<void(TaskId, FlightId, FlightNext)> ended;  // Ended, then Advanced
    // On the strand: the latest of the flight's callers.
    std::function<MonotonicTime(FlightId)> deadline;
  };
  struct Parts {
    Upstream* upstream;
    const Signatures* signatures;
    Store* store;
    StoredKeys* keys;
  };
  // All of `parts` outlive it. `compiles_here`: where the upstream is not to be had.
  UpstreamFlights(const Parts& parts, bool compiles_here, Outside outside)
      : parts_(parts),
        compiles_here_(compiles_here),
        outside_(std::move(outside)),
        forwards_(compiles_here, ForwardsOutside()) {}
  // Before anything else. UNAVAILABLE where the system gives no threads.
  absl::Status Start(Executor* strand);

  // The key that the upstream's compiler makes, of a request; empty where it is not known.
  std::string KeyThere(absl::string_view ns, absl::string_view request_key) const;

  // FlightClaims.
  void LookFurther(FlightId flight, const FlightRequest& request, const v1::Hints& hints,
                   KnownKeyPtr known) override;
  void Over(FlightId) override {}

  // What the gang of a call is served, as a key's: the variant, a refusal, or neither. `answer` is called
  // once, on another thread. From any thread.
  void LookUpForGang(FlightRequest asked, std::function<void(const KnownKeyPtr&)> answer);

  // The task that gives the upstream the graph: ends with `ended`, whose outcome is a program or a verdict,
  // or whose task is a plan.
  void Forward(TaskId task, FlightId flight, FlightRequestPtr request);
  // Nobody waits for it.
  void Stop(FlightId flight) { forwards_.Stop(flight); }
  // What runs ends soon, and nothing starts.
  void Close();
  // After Close, off the strand.
  void EndThreads() { threads_ = nullptr; }

 private:
  // A compile at the upstream; the strand's.
  struct Forwarded;
  using ForwardedPtr = std::shared_ptr<Forwarded>;  // shared with what is posted of it
  struct Verdict {
    KnownKeyPtr known;
    FlightTable::Where where;
  };

  Verdict LookUp(const FlightRequest& request, const KnownKeyPtr& known);
  Verdict Away(const FlightRequest& request, const absl::Status& why, const KnownKeyPtr& known);
  absl::Status GangUnknown(const absl::Status& why) const;
  absl::StatusOr<KnownKeyPtr> Keep(const FlightRequest& request, const v1::SignedManifest& manifest,
                                   const std::string& fingerprint);
  absl::StatusOr<KnownKeyPtr> KeepForGang(const FlightRequest& request, const v1::SignedManifest& manifest,
                                          const std::string& fingerprint);
  absl::StatusOr<std::shared_ptr<const Artifact>> Take(const FlightRequest& request,
                                                       const v1::SignedManifest& manifest,
                                                       const std::string& fingerprint, MonotonicTime begun);
  absl::Status CountFailure(const absl::Status& why);
  ForwardTable::Outside ForwardsOutside();
  void Pack(const ForwardedPtr& forwarded);
  void Call(const ForwardedPtr& forwarded, ForwardTable::Turn turn, MonotonicTime deadline);
  void SetAlarm(const ForwardedPtr& forwarded, MonotonicTime then, std::function<void()> rings);
  void TakeMade(const ForwardedPtr& forwarded, ForwardedEnd end);

  const Parts parts_;
  const bool compiles_here_;
  const Outside outside_;
  Executor* strand_ = nullptr;
  ForwardTable forwards_;
  absl::flat_hash_map<FlightId, ForwardedPtr> forwarded_;  // those of forwards_
  bool closed_ = false;
  std::unique_ptr<ThreadExecutor> threads_;
};

}  // namespace kiln
