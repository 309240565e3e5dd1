#include "client/tuner/product_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/runtime/tuned_products.h"
#include "compiler/ir/half.h"
#include "compiler/support/status_macros.h"

namespace kiln::tuner {
namespace {

using runtime::CublasLt;
using runtime::Matrix;

constexpr size_t kOperandBytesMax = size_t{8} << 30;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr size_t kComparedBytes = size_t{64} << 20;
constexpr size_t kPeriod = 1'000'003;  // elements after which an operand's values repeat: prime
constexpr int kAlgorithmsMax = 24;
constexpr int kSamples = 64;
constexpr uint32_t kRoundsMax = 100;
constexpr int kWarmUps = 2;

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Between -1 and 1, the same for the same seed and index; eight bits, so that every type holds it exactly.
float ValueAt(uint64_t seed, size_t index) {
  const uint64_t bits = Mix(seed * 0x9e3779b97f4a7c15u + index % kPeriod + 1);
  return static_cast<float>(static_cast<int64_t>(bits & 255) - 128) / 128.0f;
}

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

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

float Decode(v1::DType dtype, const char* bytes) {
  if (dtype == v1::F32) {
    float value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  return dtype == v1::F16 ? FromF16(half) : FromBF16(half);
}

void Encode(v1::DType dtype, float value, char* bytes) {
  if (dtype == v1::F32) {
    std::memcpy(bytes, &value, sizeof value);
    return;
  }
  const uint16_t half = dtype == v1::F16 ? ToF16(value) : ToBF16(value);
  std::memcpy(bytes, &half, sizeof half);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProductBench>> ProductBench::Create(const v1::MatrixProduct& product, Gpu& gpu,
                                                                   runtime::MatrixProducts& products) {
  std::unique_ptr<ProductBench> bench(new ProductBench(gpu, products));
  KILN_RETURN_IF_ERROR(bench->Allocate(product));
  return bench;
}

absl::Status ProductBench::Allocate(const v1::MatrixProduct& description) {
  product_ = runtime::ProductOf(description);
  if (product_.dtype != v1::F32 && product_.dtype != v1::F16 && product_.dtype != v1::BF16)
    return absl::InvalidArgumentError("a product of no measured type");
  if (!v1::Activation_IsValid(product_.activation))
    return absl::InvalidArgumentError("a product with an unknown activation");
  element_bytes_ = product_.dtype == v1::F32 ? 4 : 2;
  const bool has_c = product_.c.data != nullptr, has_bias = product_.bias != nullptr;
  for (const Matrix* matrix : {&product_.a, &product_.b, &product_.d, has_c ? &product_.c : &product_.d}) {
    if (!Sensible(*matrix, product_.batch))
      return absl::InvalidArgumentError("a product of no sensible size");
  }
  call_.device = gpu_.ordinal();
  call_.stream = gpu_.stream();
  call_.recorded = true;  // launches cost nothing, and are not what is measured
  uint64_t seed = 0;
  const auto make = [&](Matrix& matrix, Operand& operand) -> absl::Status {
    KILN_RETURN_IF_ERROR(Make(SpanOf(matrix, product_.batch), ++seed, &operand));
    matrix.data = operand.buffer->data();
    return absl::OkStatus();
  };
  KILN_RETURN_IF_ERROR(make(product_.a, a_));
  KILN_RETURN_IF_ERROR(make(product_.b, b_));
  KILN_RETURN_IF_ERROR(make(product_.d, d_));
  if (has_c) KILN_RETURN_IF_ERROR(make(product_.c, c_));
  if (has_bias) {
    KILN_RETURN_IF_ERROR(Make(static_cast<size_t>(product_.d.columns), ++seed, &bias_));
    product_.bias = bias_.buffer->data();
  }
  KILN_ASSIGN_OR_RETURN(GpuBuffer workspace, gpu_.Allocate(kWorkspaceBytes));
  workspace_.buffer.emplace(std::move(workspace));
  return absl::OkStatus();
}

absl::Status ProductBench::Make(size_t elements, uint64_t seed, Operand* operand) {
  const size_t bytes = elements * element_bytes_;
  if (bytes > kOperandBytesMax) return absl::ResourceExhaustedError("an operand is too large to be measured");
  KILN_ASSIGN_OR_RETURN(GpuBuffer buffer, gpu_.Allocate(bytes));
  operand->seed = seed;
  operand->elements = elements;
  operand->buffer.emplace(std::move(buffer));
  std::string values(std::min(elements, kPeriod) * element_bytes_, '\0');
  for (size_t i = 0; i * element_bytes_ < values.size(); ++i) {
    Encode(product_.dtype, ValueAt(seed, i), values.data() + i * element_bytes_);
  }
  for (size_t at = 0; at < bytes; at += values.size()) {
    const size_t size = std::min(values.size(), bytes - at);
    KILN_RETURN_IF_ERROR(operand->buffer->Write(at, absl::MakeConstSpan(values.data(), size)));
  }
  return absl::OkStatus();
}

absl::Status ProductBench::Run(const CublasLt::Heuristic& algorithm) {
  const bool done = products_.RunAs(product_, algorithm, call_, [&](size_t bytes) -> void* {
    return bytes <= kWorkspaceBytes ? workspace_.buffer->data() : nullptr;
  });
  return done ? absl::OkStatus() : absl::FailedPreconditionError("cuBLASLt refused the algorithm");
}

absl::StatusOr<std::string> ProductBench::ResultOf(const CublasLt::Heuristic& algorithm) {
  KILN_RETURN_IF_ERROR(d_.buffer->Fill(0xFF));  // no number in any type
  KILN_RETURN_IF_ERROR(Run(algorithm));
  const size_t bytes = d_.elements * element_bytes_;
  if (bytes <= kComparedBytes) return d_.buffer->Read(0, bytes);
  KILN_ASSIGN_OR_RETURN(std::string first, d_.buffer->Read(0, kComparedBytes / 2));
  KILN_ASSIGN_OR_RETURN(std::string last, d_.buffer->Read(bytes - kComparedBytes / 2, kComparedBytes / 2));
  return first + last;
}

absl::Status ProductBench::CheckIntact() const {
  for (const Operand* operand : {&a_, &b_, &c_, &d_, &bias_, &workspace_}) {
    if (!operand->buffer.has_value()) continue;
    KILN_ASSIGN_OR_RETURN(const bool intact, operand->buffer->Intact());
    if (!intact) return absl::InternalError("the algorithm writes beyond its buffers");
  }
  return absl::OkStatus();
}

double ProductBench::Activated(double sum) const {
  switch (product_.activation) {
    case v1::ACTIVATION_RELU: return std::max(sum, 0.0);
    case v1::ACTIVATION_GELU_TANH:
      return sum / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (sum + 0.044715 * sum * sum * sum)));
    default: return sum;
  }
}

// Of two right results, one in double: `magnitude` is the size that sums of this length reach by chance.
// Factors are exact in every type, so what errs is the sum and, where partial sums are kept in a narrow type,
// those.
double ProductBench::Tolerance(double magnitude) const {
  const double last_bit = product_.dtype == v1::F32 ? (product_.tf32 ? 1.0 / 4096 : 1.0 / (1 << 18))
                                                    : (product_.dtype == v1::F16 ? 1.0 / 1024 : 1.0 / 128);
  return 4 * last_bit * (1 + magnitude);
}

absl::Status ProductBench::CheckDefault() const {
  const int64_t depth = product_.a.columns;
  const auto at = [](const Matrix& m, int64_t n, int64_t i, int64_t j) {
    return static_cast<size_t>(n * m.batch_stride + i * m.row_stride + j * m.column_stride);
  };
  const size_t bytes = d_.elements * element_bytes_, half = kComparedBytes / 2;
  for (int sample = 0; sample < kSamples; ++sample) {
    const auto pick = [&](int64_t size, uint64_t what) {
      return static_cast<int64_t>(Mix(4 * static_cast<uint64_t>(sample) + what) %
                                  static_cast<uint64_t>(size));
    };
    const int64_t n = pick(product_.batch, 0), i = pick(product_.d.rows, 1), j = pick(product_.d.columns, 2);
    size_t place = at(product_.d, n, i, j) * element_bytes_;
    if (bytes > kComparedBytes) {
      if (place + element_bytes_ > half && place < bytes - half) continue;
      if (place >= bytes - half) place = half + place - (bytes - half);
    }
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < depth; ++k) {
      const double term =
          ValueAt(a_.seed, at(product_.a, n, i, k)) * ValueAt(b_.seed, at(product_.b, n, k, j));
      sum += term;
      squares += term * term;
    }
    if (product_.c.data != nullptr) sum += ValueAt(c_.seed, at(product_.c, n, i, j));
    if (product_.bias != nullptr) sum += ValueAt(bias_.seed, static_cast<size_t>(j));
    sum = Activated(sum);
    const double got = Decode(product_.dtype, reference_.data() + place);
    if (!(std::abs(got - sum) <= Tolerance(std::sqrt(squares)))) {
      return absl::FailedPreconditionError(
          absl::StrCat("cuBLASLt's own choice gives ", got, " where the sum is ", sum));
    }
  }
  return absl::OkStatus();
}

std::string ProductBench::Compare(const std::string& result) const {
  const double tolerance = 2 * Tolerance(std::sqrt(static_cast<double>(product_.a.columns)) / 3);
  for (size_t at = 0; at + element_bytes_ <= result.size(); at += element_bytes_) {
    if (std::memcmp(result.data() + at, reference_.data() + at, element_bytes_) == 0) continue;
    const double got = Decode(product_.dtype, result.data() + at),
                 wanted = Decode(product_.dtype, reference_.data() + at);
    if (!(std::abs(got - wanted) <= tolerance + tolerance * std::abs(wanted))) {
      return absl::StrCat("element ", at / element_bytes_, " is ", got, ", not ", wanted);
    }
  }
  return "";
}

absl::StatusOr<v1::Algorithms> ProductBench::List() {
  const std::vector<CublasLt::Heuristic> found = products_.Algorithms(product_, call_, kAlgorithmsMax);
  if (found.empty()) return absl::UnimplementedError("unsupported: cuBLASLt does not do this product");
  default_ = found.front();
  KILN_ASSIGN_OR_RETURN(reference_, ResultOf(default_));
  KILN_RETURN_IF_ERROR(CheckDefault());
  KILN_RETURN_IF_ERROR(CheckIntact());
  v1::Algorithms list;
  for (const CublasLt::Heuristic& algorithm : found) {
    *list.add_algorithms() = runtime::Describe(algorithm);
  }
  return list;
}

absl::StatusOr<v1::Measured> ProductBench::Measure(const v1::MeasureAlgorithm& request) {
  if (reference_.empty()) return absl::FailedPreconditionError("a measurement before its list");
  if (request.rounds() < 1 || request.rounds() > kRoundsMax)
    return absl::InvalidArgumentError("rounds out of range");
  KILN_ASSIGN_OR_RETURN(const CublasLt::Heuristic algorithm, runtime::AlgorithmOf(request.algorithm()));
  v1::Measured wrong;
  const absl::StatusOr<std::string> result = ResultOf(algorithm);
  if (absl::IsFailedPrecondition(result.status())) {
    wrong.set_wrong(std::string(result.status().message()));
    return wrong;
  }
  KILN_RETURN_IF_ERROR(result.status());
  KILN_RETURN_IF_ERROR(CheckIntact());
  wrong.set_wrong(Compare(*result));
  if (!wrong.wrong().empty()) return wrong;
  KILN_ASSIGN_OR_RETURN(v1::Measured measured, Time(algorithm, request.rounds()));
  KILN_RETURN_IF_ERROR(CheckIntact());
  return measured;
}

absl::StatusOr<v1::Measured> ProductBench::Time(const CublasLt::Heuristic& algorithm, uint32_t rounds) {
  const CublasLt::Heuristic* const both[2] = {&default_, &algorithm};
  for (int i = 0; i < kWarmUps; ++i) {
    for (const CublasLt::Heuristic* one : both) KILN_RETURN_IF_ERROR(Run(*one));
  }
  // Everything is queued before the first wait, so that the GPU never waits for the CPU.
  for (uint32_t round = 0; round < rounds; ++round) {
    for (uint32_t turn = 0; turn < 2; ++turn) {
      const uint32_t which = (round + turn) % 2;
      KILN_RETURN_IF_ERROR(gpu_.FlushL2());
      KILN_RETURN_IF_ERROR(gpu_.Mark(4 * round + 2 * which));
      KILN_RETURN_IF_ERROR(Run(*both[which]));
      KILN_RETURN_IF_ERROR(gpu_.Mark(4 * round + 2 * which + 1));
    }
  }
  KILN_RETURN_IF_ERROR(gpu_.Wait());
  std::vector<double> times[2], ratios;
  for (uint32_t round = 0; round < rounds; ++round) {
    for (uint32_t which = 0; which < 2; ++which) {
      KILN_ASSIGN_OR_RETURN(const double time,
                            gpu_.MicrosecondsBetween(4 * round + 2 * which, 4 * round + 2 * which + 1));
      times[which].push_back(time);
    }
    ratios.push_back(times[1].back() / std::max(times[0].back(), 1e-3));
  }
  v1::Measured measured;
  measured.set_default_microseconds(Median(times[0]));
  measured.set_microseconds(Median(times[1]));
  measured.set_ratio(Median(ratios));
  return measured;
}

}  // namespace kiln::tuner
