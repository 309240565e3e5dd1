// What all compiles of a daemon share: its parts, and the record of keys that crash workers.
//
// Refusals that would only repeat (UNIMPLEMENTED, INVALID_ARGUMENT) are stored before they are told. A key
// that crashed two workers, of any daemons of a shared tier, is quarantined: refused with FAILED_PRECONDITION
// for a day, or until the refusal is removed. Other daemons' counts alone are not enough: a daemon refuses
// what has crashed a worker of its own, or a refusal that a trusted daemon has signed.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/flight/flight_request.h"
#include "server/flight/stored_keys.h"
#include "server/flight/tier_keys.h"
#include "server/observe/stats.h"
#include "server/pool/worker_pool.h"
#include "server/tune/tuner.h"

namespace kiln {

class FlightCompiler {
 public:
  // All outlive the compiler. `fingerprint`: the workers'; `tier` is nullptr where there is none.
  FlightCompiler(const v1::Config& config, std::string fingerprint, const Signatures* signatures,
                 StoredKeys* keys, TierKeys* tier, Tuner* tuner, Stats* stats)
      : config_(config),
        fingerprint_(std::move(fingerprint)),
        signatures_(signatures),
        keys_(keys),
        tier_(tier),
        tuner_(tuner),
        stats_(stats) {}

  const v1::WorkerPoolConfig& limits() const { return config_.workers(); }
  const std::string& fingerprint() const { return fingerprint_; }
  const Signatures& signatures() const { return *signatures_; }
  StoredKeys& keys() { return *keys_; }
  Tuner& tuner() { return *tuner_; }
  Stats& stats() { return *stats_; }
  std::string KeyOfKernel(const FlightRequest& request, const std::string& kernel,
                          const v1::Target& target) const;

  // What a flight has lost so far, with the last.
  struct Losses {
    uint32_t workers = 0;
    uint32_t killed = 0;  // of those, from outside
  };
  // After a crash: OK to try once more, or why not. Waits for the tier.
  absl::Status Strike(const FlightRequest& request, const WorkerResult& crash, const Losses& losses);
  // For `kilnctl why`: a flight that compiles begins.
  void RememberMiss(const FlightRequest& request);
  // How a flight ended, before its callers are told. Writes the store.
  void Record(const FlightRequest& request, const absl::Status& outcome);
  // After a removal: forgets crashes; of every key when empty.
  void Forget(const std::string& compile_key);

 private:
  bool IsLastStrike(const std::string& compile_key);
  bool IsLastStrikeOfAll(const FlightRequest& request);

  const v1::Config config_;
  const std::string fingerprint_;
  const Signatures* const signatures_;
  StoredKeys* const keys_;
  TierKeys* const tier_;
  Tuner* const tuner_;
  Stats* const stats_;

  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, uint32_t> strikes_ ABSL_GUARDED_BY(mutex_);  // crashes, by CompileKey
  std::deque<std::string> struck_ ABSL_GUARDED_BY(mutex_);  // keys of strikes_, the oldest first
};

}  // namespace kiln
