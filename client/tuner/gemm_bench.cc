#include "client/tuner/gemm_bench.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "client/client_limits.h"
#include "client/runtime/tuned_gemms.h"
#include "compiler/support/status_macros.h"

namespace kiln::tuner {
namespace {

using runtime::CublasLt;
using runtime::Matrix;

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kSamples = 64;

size_t SpanOf(const Matrix& matrix, int64_t batch) {
  const int64_t last = (matrix.rows - 1) * matrix.row_stride + (matrix.columns - 1) * matrix.column_stride +
                       (batch - 1) * matrix.batch_stride;
  return static_cast<size_t>(last + 1);
}

bool Sensible(const Matrix& matrix, int64_t batch) {
  for (const int64_t size : {matrix.rows, matrix.columns, batch}) {
    if (size < 1 || size > kBenchGemmSizeMax) return false;
  }
  for (const int64_t stride : {matrix.row_stride, matrix.column_stride, matrix.batch_stride}) {
    if (stride < 0 || stride > kBenchGemmSizeMax) return false;
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
  const auto fill = [&](size_t elements, void** data) -> absl::StatusOr<Operand*> {
    KILN_ASSIGN_OR_RETURN(Operand* const made, NewOperand(gemm_.dtype, elements));
    *data = made->data();
    return made;
  };
  const Matrix& d = gemm_.d;
  KILN_ASSIGN_OR_RETURN(a_, fill(SpanOf(gemm_.a, gemm_.batch), &gemm_.a.data));
  KILN_ASSIGN_OR_RETURN(b_, fill(SpanOf(gemm_.b, gemm_.batch), &gemm_.b.data));
  KILN_ASSIGN_OR_RETURN(Operand* const result, fill(SpanOf(d, gemm_.batch), &gemm_.d.data));
  if (has_c) {
    KILN_ASSIGN_OR_RETURN(c_, fill(SpanOf(gemm_.c, gemm_.batch), &gemm_.c.data));
  }
  if (has_bias) {
    KILN_ASSIGN_OR_RETURN(bias_, fill(static_cast<size_t>(d.columns), &gemm_.bias));
  }
  result_ = {.dtype = gemm_.dtype,
             .tf32 = gemm_.tf32,
             .depth = gemm_.a.columns,
             .samples = kSamples,
             .sizes = {gemm_.batch, d.rows, d.columns, 1},
             .strides = {d.batch_stride, d.row_stride, d.column_stride, 0},
             .operand = result};
  return NewWorkspace(kWorkspaceBytes);
}

absl::Status GemmBench::Run(bool candidate) {
  const Way& way = candidate ? chosen_ : default_;
  if (way.native != nullptr) return way.native->Run(gemm_, call_);
  const bool done =
      gemms_.RunAs(gemm_, way.algorithm, call_, [this](size_t bytes) { return Workspace(bytes); });
  return done ? absl::OkStatus() : absl::FailedPreconditionError("cuBLASLt refused the algorithm");
}

double GemmBench::Activated(double sum) const {
  switch (gemm_.activation) {
    case v1::ACTIVATION_RELU: return std::max(sum, 0.0);
    case v1::ACTIVATION_GELU_TANH:
      return sum / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (sum + 0.044715 * sum * sum * sum)));
    default: return sum;
  }
}

double GemmBench::Sum(const Dims& at, double* magnitude) const {
  const int64_t n = at[0], i = at[1], j = at[2];
  const auto place = [n](const Matrix& m, int64_t row, int64_t column) {
    return static_cast<size_t>(n * m.batch_stride + row * m.row_stride + column * m.column_stride);
  };
  double sum = 0, squares = 0;
  for (int64_t k = 0; k < gemm_.a.columns; ++k) {
    const double term = a_->ValueAt(place(gemm_.a, i, k)) * b_->ValueAt(place(gemm_.b, k, j));
    sum += term;
    squares += term * term;
  }
  if (c_ != nullptr) sum += c_->ValueAt(place(gemm_.c, i, j));
  if (bias_ != nullptr) sum += bias_->ValueAt(static_cast<size_t>(j));
  *magnitude = std::sqrt(squares);
  return Activated(sum);
}

absl::StatusOr<v1::Candidates> GemmBench::Find() {
  const std::vector<CublasLt::Heuristic> found = gemms_.Algorithms(gemm_, call_, kGemmAlgorithmsMax);
  if (found.empty()) return absl::UnimplementedError("unsupported: cuBLASLt does not do this gemm");
  default_.algorithm = found.front();
  v1::Candidates list;
  for (const CublasLt::Heuristic& algorithm : found) {
    *list.add_candidates()->mutable_algorithm() = runtime::Describe(algorithm);
  }
  return list;
}

absl::Status GemmBench::Choose(const v1::Candidate& candidate) {
  KILN_RETURN_IF_ERROR(CheckListed());
  chosen_ = Way();
  if (candidate.has_native()) {
    KILN_ASSIGN_OR_RETURN(chosen_.native, runtime::NativeGemm::Create(
                                              candidate.native(), candidate.native().image(), description_));
  } else {
    KILN_ASSIGN_OR_RETURN(chosen_.algorithm, runtime::AlgorithmOf(candidate.algorithm()));
  }
  return absl::OkStatus();
}

}  // namespace kiln::tuner
