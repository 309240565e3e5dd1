// One tunable on a GPU: its candidates, whether each is correct, and its time against the default's.
//
// Correct means: the default's result agrees with a reference, the candidate's with the default's, and no red
// zone around a buffer has changed. Times are taken in rounds of default and candidate in turn, each after
// the L2 cache was filled with other data, as a model's weights are read from memory; the order changes with
// every round. A candidate that is clearly slower in a few rounds is measured no further, nor compared.
//
// Threads: one. Errors: INVALID_ARGUMENT for what is no tunable or candidate, UNIMPLEMENTED where nothing
// computes it, RESOURCE_EXHAUSTED where it does not fit the GPU, INTERNAL as Gpu's, and for a red zone that
// was written to: who knows what else was, so the process should end then too.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/tuner/gpu.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::tuner {

class Bench {
 public:
  virtual ~Bench() = default;
  // The default first, after its result was found right.
  virtual absl::StatusOr<v1::Candidates> List() = 0;
  // After List.
  absl::StatusOr<v1::Measured> Measure(const v1::MeasureCandidate& request);

 protected:
  explicit Bench(Gpu& gpu) : gpu_(gpu) {}

  // What Run(true) runs from now on. FAILED_PRECONDITION before List.
  virtual absl::Status Choose(const v1::Candidate& candidate) = 0;
  // Launches the default or the candidate on the GPU's stream; FAILED_PRECONDITION where its library refuses.
  virtual absl::Status Run(bool candidate) = 0;
  // Runs the candidate over a poisoned result, and says what differs from the default's; empty: nothing.
  virtual absl::StatusOr<std::string> Difference() = 0;
  // INTERNAL where a red zone has changed.
  virtual absl::Status CheckIntact() const = 0;

  Gpu& gpu_;

 private:
  absl::StatusOr<v1::Measured> Judge(uint32_t rounds);
  absl::StatusOr<v1::Measured> Time(uint32_t rounds);
};

}  // namespace kiln::tuner
