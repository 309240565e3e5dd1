// A device-to-device copy as a tunable without candidates: only its time is measured.
//
// Correct means that the copy equals its source. The rest as Bench.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/tuner/bench.h"
#include "client/tuner/operand.h"

namespace kiln::tuner {

class CopyBench : public Bench {
 public:
  // `gpu` outlives it.
  static absl::StatusOr<std::unique_ptr<Bench>> Create(const v1::MemoryCopy& copy, Gpu& gpu);

  absl::StatusOr<v1::Candidates> List() override;

 private:
  CopyBench(Gpu& gpu, Operand from, Operand to) : Bench(gpu), from_(std::move(from)), to_(std::move(to)) {}
  absl::Status Choose(const v1::Candidate&) override { return absl::OkStatus(); }
  absl::Status Run(bool candidate) override;
  absl::StatusOr<std::string> Difference() override;
  absl::Status CheckIntact() const override;

  Operand from_, to_;
};

}  // namespace kiln::tuner
