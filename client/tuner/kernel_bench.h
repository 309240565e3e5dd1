// One kernel of our own on a GPU by other schedules of its threads.
//
// The images come with the tunable, the default's first. Correct means: from equal initial contents, the
// candidate leaves the same values as the default in every buffer that the kernel stores to, up to rounding,
// since a schedule decides a reduction's order. The default itself is not checked: programs run it without
// measuring.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/runtime/kernels.h"
#include "client/tuner/bench.h"
#include "client/tuner/operand.h"
#include "google/protobuf/repeated_field.h"

namespace kiln::tuner {

class KernelBench : public Bench {
 public:
  using Images = google::protobuf::RepeatedPtrField<std::string>;

  // `gpu` outlives it. One image a schedule of the tunable.
  static absl::StatusOr<std::unique_ptr<Bench>> Create(const v1::KernelTunable& tunable, const Images& images,
                                                       Gpu& gpu);

  absl::StatusOr<v1::Candidates> List() override;

 private:
  KernelBench(const v1::KernelTunable& tunable, Gpu& gpu);
  absl::Status Choose(const v1::Candidate& candidate) override;
  absl::Status Run(bool candidate) override { return Launch(candidate ? chosen_ : 0); }
  absl::StatusOr<std::string> Difference() override;
  absl::Status CheckIntact() const override;
  absl::Status Launch(size_t schedule);
  // What schedule `schedule` leaves in the buffers that are stored to.
  absl::StatusOr<std::vector<std::string>> ResultsOf(size_t schedule);

  const v1::KernelTunable tunable_;
  runtime::CallContext call_;
  std::vector<std::shared_ptr<const runtime::KernelRunner>> kernels_;  // by schedule
  std::vector<Operand> operands_;
  std::vector<std::string> reference_;  // the default's results
  size_t chosen_ = 0;
};

}  // namespace kiln::tuner
