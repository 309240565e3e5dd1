// Mode max-autotune: which of its candidates is fastest for each tunable of a program (tuning.proto).
//
// A tunable is measured once for a kind of GPU: the outcome is a record in the store, by TuningKey, that
// every later program uses, and of a cluster every daemon (tuning_records.h). What is missing is measured
// under a lease of the MeasuringPool. A candidate whose results are wrong, that hangs or that ends its
// process loses; so does one that is not clearly faster, by a second and longer measurement too. What can't
// be measured runs by its default, and `Tuning.without` says why.
//
// What no GPU here can measure others of the tier may (work_list.h): the program goes by the records that
// there are, never waits for one, and a session says what is `missing`.
//
// Thread-safe but for its sessions, which may wait for the tier. Errors: none where a program is tuned; the
// default is always good.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/repeated_field.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/tuning.pb.h"
#include "server/observe/stats.h"
#include "server/pool/measuring_pool.h"
#include "server/tune/tuning_records.h"
#include "server/tune/work_list.h"

namespace kiln {

class Tuner {
 public:
  using Tunables = google::protobuf::RepeatedPtrField<v1::Tunable>;

  // All outlive the tuner. `pool` is nullptr where nothing is measured, and `without` says why; `elsewhere`
  // is nullptr where nobody else is asked.
  Tuner(MeasuringPool* pool, std::string without, TuningRecords* records, WorkList* elsewhere, Stats* stats)
      : pool_(pool), without_(std::move(without)), records_(records), elsewhere_(elsewhere), stats_(stats) {}

  // The keys of the records that a program of `ns` was made by.
  static std::vector<std::string> KeysOf(const std::string& ns, const v1::Tuning& tuning);

  // How measurements are made and judged, as it is in TuningKeys.
  static absl::string_view Policy();
  // Of one record.
  static std::string KeyOf(const std::string& ns, const v1::Tunable& tunable, const v1::GpuFacts& gpu);

  // What a program's compile lends its measurements.
  struct Job {
    std::string ns;  // whose records are used and made
    v1::Target target;
    MeasuringPool::Abandoned abandoned;
    std::function<void(uint32_t done, uint32_t total)> progress;
    // Kernels of our own for a gemm; asked for only where it is measured. Returns at once.
    std::function<std::future<std::vector<v1::NativeKernel>>(const v1::Gemm&)> natives;
    // A kernel's code by each of its schedules; asked for only where the kernel is measured.
    std::function<absl::StatusOr<std::vector<std::string>>(const v1::KernelTunable&)> images;
  };

  // A winner takes less than this part of what it beats.
  static constexpr double kWorthwhile = 0.97;

  // What one program has measured, in one try or several, each between `Begin` and `End`. What a try finds
  // out stays. One thread's at a time; the tuner outlives it.
  class Session {
   public:
    Session(Tuner& tuner, Job job) : tuner_(tuner), job_(std::move(job)) {}

    // Where nothing may be measured, a try goes by what the store and the cluster have. Where it may, it
    // leases a GPU for the first tunable that they do not have, and the lease ends with the try.
    void Begin(bool may_measure);
    void End();
    // That it may not measure has stopped it: what it says is of no use.
    bool lacks_gpu() const { return lacks_gpu_; }
    // Nothing here can measure for the target, and another daemon may. A try says then what it has no record
    // of, each once.
    bool is_elsewhere() const { return elsewhere_; }
    std::vector<v1::Tunable> missing() const;

    // Adds the records of `tunables` to `tuning`, or to `without` why one is missing.
    void Tune(const Tunables& tunables, v1::Tuning* tuning);
    // One record. CANCELLED when abandoned; other errors say why it can't be had.
    absl::StatusOr<v1::Measurement> Measure(const v1::Tunable& tunable);

   private:
    using Natives = std::vector<v1::NativeKernel>;
    std::string KeyOf(const v1::Tunable& tunable) const;  // facts_ are OK
    // Asks the cluster for all of them at once, and for each once a try.
    void Consult(const Tunables& tunables);
    // Has kernels of our own emitted for a gemm while others are measured.
    void EmitAhead(const v1::Tunable& tunable);
    Natives NativesFor(const std::string& key, const v1::Tunable& tunable);
    absl::StatusOr<v1::Measurement> Obtain(const std::string& key, const v1::Tunable& tunable);
    absl::Status Lease();
    void LookElsewhere();
    void Miss(const v1::Tunable& tunable);

    Tuner& tuner_;
    const Job job_;
    bool may_measure_ = false;
    bool lacks_gpu_ = false;
    bool elsewhere_ = false;
    absl::btree_map<std::string, v1::Tunable> missing_;  // by subject
    absl::StatusOr<v1::GpuFacts> facts_ = absl::UnknownError("no try has begun");
    std::unique_ptr<MeasuringPool::Lease> lease_;
    absl::Status over_;                                             // why no more is measured
    absl::flat_hash_map<std::string, v1::Measurement> known_;       // by TuningKey
    absl::flat_hash_set<std::string> consulted_;                    // likewise, in this try
    absl::flat_hash_map<std::string, std::future<Natives>> ahead_;  // likewise
    uint32_t done_ = 0, total_ = 0;
  };

 private:
  struct Trial;
  absl::StatusOr<v1::Measurement> MeasureTunable(MeasuringPool::Lease& lease, const v1::Tunable& tunable,
                                                 std::vector<v1::NativeKernel> natives, const Job& job);

  MeasuringPool* const pool_;
  const std::string without_;
  TuningRecords* const records_;
  WorkList* const elsewhere_;
  Stats* const stats_;
};

}  // namespace kiln
