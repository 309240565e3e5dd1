// A call of a library as a tunable: what the library offers for it is the candidates.
//
// The default agrees with sums in double on the CPU at sampled elements; a candidate's result agrees with the
// default's wherever Operand::Read reads it. The rest as Bench.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/runtime/host.h"
#include "client/tuner/bench.h"
#include "client/tuner/gpu.h"
#include "client/tuner/operand.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::tuner {

class LibraryBench : public Bench {
 public:
  absl::StatusOr<v1::Candidates> List() final;

 protected:
  using Dims = std::array<int64_t, 4>;
  // What is computed: sums of products. Known before List.
  struct Result {
    v1::DType dtype;  // of the operands too
    bool tf32;
    int64_t depth;    // products in a sum
    int64_t samples;  // sums that the default is checked by
    Dims sizes, strides;
    Operand* operand;
  };

  // `library`: its name, which lives as long.
  LibraryBench(Gpu& gpu, const char* library);

  // What the library offers, the default first; Run(false) runs that from now on.
  virtual absl::StatusOr<v1::Candidates> Find() = 0;
  // The result's element at `at`, and how large sums of its length are by chance.
  virtual double Sum(const Dims& at, double* magnitude) const = 0;

  // Fills it; it lives as long as the bench.
  absl::StatusOr<Operand*> NewOperand(v1::DType dtype, size_t elements);
  absl::Status NewWorkspace(size_t bytes);
  // nullptr: the workspace has fewer bytes.
  void* Workspace(size_t bytes) const;
  absl::Status CheckListed() const;  // FAILED_PRECONDITION before List
  absl::StatusOr<std::string> Difference() final;
  absl::Status CheckIntact() const final;

  runtime::CallContext call_;
  Result result_ = {};

 private:
  // After it was written over other bytes.
  absl::StatusOr<std::string> ResultOf(bool candidate);
  absl::Status CheckDefault() const;
  double Tolerance(double magnitude) const;

  const char* const library_;
  std::deque<Operand> operands_;
  std::optional<GpuBuffer> workspace_;
  std::string reference_;  // the default's result
};

}  // namespace kiln::tuner
