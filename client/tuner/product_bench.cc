#include "client/tuner/product_bench.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/runtime/tuned_products.h"
#include "compiler/support/status_macros.h"

namespace kiln::tuner {
namespace {

using runtime::CublasLt;
using runtime::Matrix;

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kAlgorithmsMax = 24;
constexpr int kSamples = 64;

size_t SpanOf(const Matrix& matrix, int64_t batch) {
  const int64_t last = (matrix.rows - 1) * matrix.row_stride + (matrix.columns - 1) * matrix.column_stride +
                       (batch - 1) * matrix.batch_stride;
  return static_cast<size_t>(last + 1);
}

bool Sensible(const Matrix& matrix, int64_t batch) {
  constexpr int64_t kMax = int64_t{1} << 34;  // keeps the span's sum within 64 bits
  for (const int64_t size : {matrix.rows, matrix.columns, batch}) {
    if (size < 1 || size > kMax) return false;
  }
  for (const int64_t stride : {matrix.row_stride, matrix.column_stride, matrix.batch_stride}) {
    if (stride < 0 || stride > kMax) return false;
  }
  const double last = static_cast<double>(matrix.rows) * static_cast<double>(matrix.row_stride) +
                      static_cast<double>(matrix.columns) * static_cast<double>(matrix.column_stride) +
                      static_cast<double>(batch) * static_cast<double>(matrix.batch_stride);
  return last < 4e9;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bench>> ProductBench::Create(const v1::MatrixProduct& product, Gpu& gpu,
                                                            runtime::MatrixProducts& products) {
  std::unique_ptr<ProductBench> bench(new ProductBench(gpu, products));
  KILN_RETURN_IF_ERROR(bench->Allocate(product));
  return bench;
}

absl::Status ProductBench::Allocate(const v1::MatrixProduct& description) {
  description_ = description;
  product_ = runtime::ProductOf(description);
  if (!IsMeasuredType(product_.dtype)) return absl::InvalidArgumentError("a product of no measured type");
  if (!v1::Activation_IsValid(product_.activation))
    return absl::InvalidArgumentError("a product with an unknown activation");
  const bool has_c = product_.c.data != nullptr, has_bias = product_.bias != nullptr;
  for (const Matrix* matrix : {&product_.a, &product_.b, &product_.d, has_c ? &product_.c : &product_.d}) {
    if (!Sensible(*matrix, product_.batch))
      return absl::InvalidArgumentError("a product of no sensible size");
  }
  call_.device = gpu_.ordinal();
  call_.stream = gpu_.stream();
  call_.recorded = true;  // launches cost nothing, and are not what is measured
  uint64_t seed = 0;
  const auto fill = [&](size_t elements, std::optional<Operand>& operand, void** data) -> absl::Status {
    KILN_ASSIGN_OR_RETURN(Operand made, Operand::Create(gpu_, product_.dtype, elements, ++seed));
    *data = made.data();
    operand.emplace(std::move(made));
    return absl::OkStatus();
  };
  KILN_RETURN_IF_ERROR(fill(SpanOf(product_.a, product_.batch), a_, &product_.a.data));
  KILN_RETURN_IF_ERROR(fill(SpanOf(product_.b, product_.batch), b_, &product_.b.data));
  KILN_RETURN_IF_ERROR(fill(SpanOf(product_.d, product_.batch), d_, &product_.d.data));
  if (has_c) KILN_RETURN_IF_ERROR(fill(SpanOf(product_.c, product_.batch), c_, &product_.c.data));
  if (has_bias) KILN_RETURN_IF_ERROR(fill(static_cast<size_t>(product_.d.columns), bias_, &product_.bias));
  KILN_ASSIGN_OR_RETURN(GpuBuffer workspace, gpu_.Allocate(kWorkspaceBytes));
  workspace_.emplace(std::move(workspace));
  return absl::OkStatus();
}

absl::Status ProductBench::Run(bool candidate) {
  const Way& way = candidate ? chosen_ : default_;
  if (way.native != nullptr) return way.native->Run(product_, call_);
  const bool done = products_.RunAs(product_, way.algorithm, call_, [&](size_t bytes) -> void* {
    return bytes <= kWorkspaceBytes ? workspace_->data() : nullptr;
  });
  return done ? absl::OkStatus() : absl::FailedPreconditionError("cuBLASLt refused the algorithm");
}

absl::StatusOr<std::string> ProductBench::ResultOf(bool candidate) {
  KILN_RETURN_IF_ERROR(d_->Spoil());
  KILN_RETURN_IF_ERROR(Run(candidate));
  return d_->Read();
}

absl::Status ProductBench::CheckIntact() const {
  for (const std::optional<Operand>* operand : {&a_, &b_, &c_, &d_, &bias_}) {
    if (operand->has_value()) KILN_RETURN_IF_ERROR((*operand)->buffer().CheckIntact());
  }
  return workspace_->CheckIntact();
}

double ProductBench::Activated(double sum) const {
  switch (product_.activation) {
    case v1::ACTIVATION_RELU: return std::max(sum, 0.0);
    case v1::ACTIVATION_GELU_TANH:
      return sum / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (sum + 0.044715 * sum * sum * sum)));
    default: return sum;
  }
}

double ProductBench::Tolerance(double magnitude) const {
  return ToleranceOfSum(product_.dtype, product_.tf32, magnitude);
}

absl::Status ProductBench::CheckDefault() const {
  const int64_t depth = product_.a.columns;
  const auto at = [](const Matrix& m, int64_t n, int64_t i, int64_t j) {
    return static_cast<size_t>(n * m.batch_stride + i * m.row_stride + j * m.column_stride);
  };
  for (int sample = 0; sample < kSamples; ++sample) {
    const auto pick = [&](int64_t size, uint64_t what) {
      return static_cast<int64_t>(Mix(4 * static_cast<uint64_t>(sample) + what) %
                                  static_cast<uint64_t>(size));
    };
    const int64_t n = pick(product_.batch, 0), i = pick(product_.d.rows, 1), j = pick(product_.d.columns, 2);
    const size_t place = d_->PlaceOf(at(product_.d, n, i, j));
    if (place == std::string::npos) continue;
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < depth; ++k) {
      const double term = a_->ValueAt(at(product_.a, n, i, k)) * b_->ValueAt(at(product_.b, n, k, j));
      sum += term;
      squares += term * term;
    }
    if (product_.c.data != nullptr) sum += c_->ValueAt(at(product_.c, n, i, j));
    if (product_.bias != nullptr) sum += bias_->ValueAt(static_cast<size_t>(j));
    sum = Activated(sum);
    const double got = ValueIn(reference_, place, product_.dtype);
    if (!(std::abs(got - sum) <= Tolerance(std::sqrt(squares)))) {
      return absl::FailedPreconditionError(
          absl::StrCat("cuBLASLt's own choice gives ", got, " where the sum is ", sum));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Candidates> ProductBench::List() {
  const std::vector<CublasLt::Heuristic> found = products_.Algorithms(product_, call_, kAlgorithmsMax);
  if (found.empty()) return absl::UnimplementedError("unsupported: cuBLASLt does not do this product");
  default_.algorithm = found.front();
  KILN_ASSIGN_OR_RETURN(reference_, ResultOf(/*candidate=*/false));
  KILN_RETURN_IF_ERROR(CheckDefault());
  KILN_RETURN_IF_ERROR(CheckIntact());
  v1::Candidates list;
  for (const CublasLt::Heuristic& algorithm : found) {
    *list.add_candidates()->mutable_algorithm() = runtime::Describe(algorithm);
  }
  return list;
}

absl::Status ProductBench::Choose(const v1::Candidate& candidate) {
  if (reference_.empty()) return absl::FailedPreconditionError("a measurement before its list");
  chosen_ = Way();
  if (candidate.has_native()) {
    KILN_ASSIGN_OR_RETURN(chosen_.native, runtime::NativeProduct::Create(
                                              candidate.native(), candidate.native().image(), description_));
  } else {
    KILN_ASSIGN_OR_RETURN(chosen_.algorithm, runtime::AlgorithmOf(candidate.algorithm()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ProductBench::Difference() {
  KILN_ASSIGN_OR_RETURN(const std::string result, ResultOf(/*candidate=*/true));
  const double tolerance = 2 * Tolerance(std::sqrt(static_cast<double>(product_.a.columns)) / 3);
  return FirstDifference(result, reference_, product_.dtype, tolerance);
}

}  // namespace kiln::tuner
