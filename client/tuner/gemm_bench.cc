#include "client/tuner/gemm_bench.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/runtime/tuned_gemms.h"
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

absl::StatusOr<std::unique_ptr<Bench>> GemmBench::Create(const v1::Gemm& gemm, Gpu& gpu,
                                                         runtime::Gemms& gemms) {
  std::unique_ptr<GemmBench> bench(new GemmBench(gpu, gemms));
  KILN_RETURN_IF_ERROR(bench->Allocate(gemm));
  return bench;
}

absl::Status GemmBench::Allocate(const v1::Gemm& description) {
  description_ = description;
  gemm_ = runtime::GemmOf(description);
  if (!IsMeasuredType(gemm_.dtype)) return absl::InvalidArgumentError("a gemm of no measured type");
  if (!v1::Activation_IsValid(gemm_.activation))
    return absl::InvalidArgumentError("a gemm with an unknown activation");
  const bool has_c = gemm_.c.data != nullptr, has_bias = gemm_.bias != nullptr;
  for (const Matrix* matrix : {&gemm_.a, &gemm_.b, &gemm_.d, has_c ? &gemm_.c : &gemm_.d}) {
    if (!Sensible(*matrix, gemm_.batch)) return absl::InvalidArgumentError("a gemm of no sensible size");
  }
  call_.device = gpu_.ordinal();
  call_.stream = gpu_.stream();
  call_.recorded = true;  // launches cost nothing, and are not what is measured
  uint64_t seed = 0;
  const auto fill = [&](size_t elements, std::optional<Operand>& operand, void** data) -> absl::Status {
    KILN_ASSIGN_OR_RETURN(Operand made, Operand::Create(gpu_, gemm_.dtype, elements, ++seed));
    *data = made.data();
    operand.emplace(std::move(made));
    return absl::OkStatus();
  };
  KILN_RETURN_IF_ERROR(fill(SpanOf(gemm_.a, gemm_.batch), a_, &gemm_.a.data));
  KILN_RETURN_IF_ERROR(fill(SpanOf(gemm_.b, gemm_.batch), b_, &gemm_.b.data));
  KILN_RETURN_IF_ERROR(fill(SpanOf(gemm_.d, gemm_.batch), d_, &gemm_.d.data));
  if (has_c) KILN_RETURN_IF_ERROR(fill(SpanOf(gemm_.c, gemm_.batch), c_, &gemm_.c.data));
  if (has_bias) KILN_RETURN_IF_ERROR(fill(static_cast<size_t>(gemm_.d.columns), bias_, &gemm_.bias));
  KILN_ASSIGN_OR_RETURN(GpuBuffer workspace, gpu_.Allocate(kWorkspaceBytes));
  workspace_.emplace(std::move(workspace));
  return absl::OkStatus();
}

absl::Status GemmBench::Run(bool candidate) {
  const Way& way = candidate ? chosen_ : default_;
  if (way.native != nullptr) return way.native->Run(gemm_, call_);
  const bool done = gemms_.RunAs(gemm_, way.algorithm, call_, [&](size_t bytes) -> void* {
    return bytes <= kWorkspaceBytes ? workspace_->data() : nullptr;
  });
  return done ? absl::OkStatus() : absl::FailedPreconditionError("cuBLASLt refused the algorithm");
}

absl::StatusOr<std::string> GemmBench::ResultOf(bool candidate) {
  KILN_RETURN_IF_ERROR(d_->Spoil());
  KILN_RETURN_IF_ERROR(Run(candidate));
  return d_->Read();
}

absl::Status GemmBench::CheckIntact() const {
  for (const std::optional<Operand>* operand : {&a_, &b_, &c_, &d_, &bias_}) {
    if (operand->has_value()) KILN_RETURN_IF_ERROR((*operand)->buffer().CheckIntact());
  }
  return workspace_->CheckIntact();
}

double GemmBench::Activated(double sum) const {
  switch (gemm_.activation) {
    case v1::ACTIVATION_RELU: return std::max(sum, 0.0);
    case v1::ACTIVATION_GELU_TANH:
      return sum / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (sum + 0.044715 * sum * sum * sum)));
    default: return sum;
  }
}

double GemmBench::Tolerance(double magnitude) const {
  return ToleranceOfSum(gemm_.dtype, gemm_.tf32, magnitude);
}

absl::Status GemmBench::CheckDefault() const {
  const int64_t depth = gemm_.a.columns;
  const auto at = [](const Matrix& m, int64_t n, int64_t i, int64_t j) {
    return static_cast<size_t>(n * m.batch_stride + i * m.row_stride + j * m.column_stride);
  };
  for (int sample = 0; sample < kSamples; ++sample) {
    const auto pick = [&](int64_t size, uint64_t what) {
      return static_cast<int64_t>(Mix(4 * static_cast<uint64_t>(sample) + what) %
                                  static_cast<uint64_t>(size));
    };
    const int64_t n = pick(gemm_.batch, 0), i = pick(gemm_.d.rows, 1), j = pick(gemm_.d.columns, 2);
    const size_t place = d_->PlaceOf(at(gemm_.d, n, i, j));
    if (place == std::string::npos) continue;
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < depth; ++k) {
      const double term = a_->ValueAt(at(gemm_.a, n, i, k)) * b_->ValueAt(at(gemm_.b, n, k, j));
      sum += term;
      squares += term * term;
    }
    if (gemm_.c.data != nullptr) sum += c_->ValueAt(at(gemm_.c, n, i, j));
    if (gemm_.bias != nullptr) sum += bias_->ValueAt(static_cast<size_t>(j));
    sum = Activated(sum);
    const double got = ValueIn(reference_, place, gemm_.dtype);
    if (!(std::abs(got - sum) <= Tolerance(std::sqrt(squares)))) {
      return absl::FailedPreconditionError(
          absl::StrCat("cuBLASLt's own choice gives ", got, " where the sum is ", sum));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Candidates> GemmBench::List() {
  const std::vector<CublasLt::Heuristic> found = gemms_.Algorithms(gemm_, call_, kAlgorithmsMax);
  if (found.empty()) return absl::UnimplementedError("unsupported: cuBLASLt does not do this gemm");
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

absl::Status GemmBench::Choose(const v1::Candidate& candidate) {
  if (reference_.empty()) return absl::FailedPreconditionError("a measurement before its list");
  chosen_ = Way();
  if (candidate.has_native()) {
    KILN_ASSIGN_OR_RETURN(chosen_.native, runtime::NativeGemm::Create(
                                              candidate.native(), candidate.native().image(), description_));
  } else {
    KILN_ASSIGN_OR_RETURN(chosen_.algorithm, runtime::AlgorithmOf(candidate.algorithm()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> GemmBench::Difference() {
  KILN_ASSIGN_OR_RETURN(const std::string result, ResultOf(/*candidate=*/true));
  const double tolerance = 2 * Tolerance(std::sqrt(static_cast<double>(gemm_.a.columns)) / 3);
  return FirstDifference(result, reference_, gemm_.dtype, tolerance);
}

}  // namespace kiln::tuner
