// One matrix product on a GPU: which algorithms cuBLASLt offers for it, whether an algorithm is right, and
// how long it takes beside the default.
//
// Right means: the default agrees with sums in double on the CPU at sampled elements; the algorithm's result
// agrees with the default's at every element (of results beyond 64 MiB, at their first and last 32 MiB),
// leaves what lies between the rows alone, and no red zone round any buffer has changed. Times are taken in
// rounds of default and algorithm in turn, each after the L2 cache was filled with other data, as a model's
// weights are read from memory; the order changes with every round.
//
// Threads: one. Errors: INVALID_ARGUMENT for what is no product, UNIMPLEMENTED where cuBLASLt has no
// algorithm, RESOURCE_EXHAUSTED where it does not fit the GPU, INTERNAL as Gpu's,
// and for a red zone that was written to: who knows what else was, so the process should end then too.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/runtime/matrix_products.h"
#include "client/tuner/gpu.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::tuner {

class ProductBench {
 public:
  // Fills the operands. `gpu` and `products` outlive it.
  static absl::StatusOr<std::unique_ptr<ProductBench>> Create(const v1::MatrixProduct& product, Gpu& gpu,
                                                              runtime::MatrixProducts& products);

  // The default first.
  absl::StatusOr<v1::Algorithms> List();
  // After List.
  absl::StatusOr<v1::Measured> Measure(const v1::MeasureAlgorithm& request);

 private:
  struct Operand {
    std::optional<GpuBuffer> buffer;
    uint64_t seed = 0;
    size_t elements = 0;
  };
  ProductBench(Gpu& gpu, runtime::MatrixProducts& products) : gpu_(gpu), products_(products) {}
  absl::Status Allocate(const v1::MatrixProduct& description);
  absl::Status Make(size_t elements, uint64_t seed, Operand* operand);
  absl::Status Run(const runtime::CublasLt::Heuristic& algorithm);
  // The parts of the result that are compared, after `algorithm` wrote it over other bytes.
  absl::StatusOr<std::string> ResultOf(const runtime::CublasLt::Heuristic& algorithm);
  absl::Status CheckIntact() const;
  absl::Status CheckDefault() const;
  std::string Compare(const std::string& result) const;
  double Activated(double sum) const;
  double Tolerance(double magnitude) const;
  absl::StatusOr<v1::Measured> Time(const runtime::CublasLt::Heuristic& algorithm, uint32_t rounds);

  Gpu& gpu_;
  runtime::MatrixProducts& products_;
  runtime::Product product_;
  runtime::CallContext call_;
  size_t element_bytes_ = 0;
  Operand a_, b_, c_, d_, bias_, workspace_;
  runtime::CublasLt::Heuristic default_ = {};
  std::string reference_;  // the default's result
};

}  // namespace kiln::tuner
