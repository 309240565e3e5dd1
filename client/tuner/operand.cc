#include "client/tuner/operand.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "client/client_limits.h"
#include "compiler/graph/dtypes.h"
#include "compiler/ir/scalar_ops.h"
#include "compiler/support/status_macros.h"

namespace kiln::tuner {
namespace {

constexpr size_t kPiece = size_t{64} << 10, kPieces = 256;  // of what is read
constexpr size_t kBlock = 4096;                             // elements that are compared at once
constexpr size_t kPeriod = 250'007;                         // elements after which the values repeat: prime

template <typename T>
T Get(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Integers: 0 to 7, of a value between -1 and 1.
void Encode(v1::DType dtype, float value, char* bytes) {
  Scalar scalar{.f = value};
  if (IsFloat(dtype)) {
    scalar = CastScalar(v1::F32, dtype, scalar);
  } else {
    scalar.i = static_cast<int>(value * 128) & (dtype == v1::BOOL ? 1 : 7);
  }
  StoreScalar(dtype, bytes, 0, scalar);
}

float FromBF16Bits(uint16_t bits) { return absl::bit_cast<float>(uint32_t{bits} << 16); }

// No number for an infinite one.
float FromF16Bits(uint16_t bits) {
  const float magnitude = absl::bit_cast<float>(static_cast<uint32_t>(bits & 0x7FFF) << 13) * 0x1p112f;
  return (bits & 0x7C00) == 0x7C00 ? std::numeric_limits<float>::quiet_NaN()
                                   : ((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

float ValueOf(uint64_t seed, size_t index) {
  const uint64_t bits = Mix(seed * 0x9e3779b97f4a7c15u + index % kPeriod + 1);
  return static_cast<float>(static_cast<int64_t>(bits & 255) - 128) / 128.0f;
}

// False where either is NaN or infinite.
template <typename Float>
bool IsNear(Float is, Float should, Float tolerance) {
  constexpr Float kLargest = std::numeric_limits<Float>::max();
  return std::abs(is - should) <= tolerance + tolerance * std::min(std::abs(should), kLargest);
}

// Whether none differ by more than `tolerance` allows; false for some that agree as both are NaN. The
// loop is one for vectors.
template <typename Stored, typename Decode>
bool AgreeAsFloats(const char* got, const char* wanted, size_t elements, float tolerance, Decode decode) {
  int differ = 0;
  for (size_t i = 0; i < elements; ++i) {
    const float is = decode(Get<Stored>(got + i * sizeof(Stored))),
                should = decode(Get<Stored>(wanted + i * sizeof(Stored)));
    differ |= !IsNear(is, should, tolerance);
  }
  return differ == 0;
}

bool Agree(const char* got, const char* wanted, size_t elements, v1::DType dtype, double tolerance) {
  const auto allowed = static_cast<float>(tolerance);
  if (dtype == v1::F32)
    return AgreeAsFloats<float>(got, wanted, elements, allowed, [](float x) { return x; });
  if (dtype == v1::BF16) return AgreeAsFloats<uint16_t>(got, wanted, elements, allowed, FromBF16Bits);
  if (dtype == v1::F16) return AgreeAsFloats<uint16_t>(got, wanted, elements, allowed, FromF16Bits);
  return std::memcmp(got, wanted, elements * BytesOf(dtype)) == 0;
}

// Of a piece among `bytes`; whole elements lie before it.
size_t StartOf(size_t piece, size_t bytes, size_t width) {
  return piece * (bytes - kPiece) / (kPieces - 1) / width * width;
}

}  // namespace

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

bool IsMeasuredType(v1::DType dtype) { return dtype == v1::F32 || dtype == v1::F16 || dtype == v1::BF16; }

double ToleranceOfSum(v1::DType dtype, bool tf32, double magnitude) {
  const double last_bit =
      dtype == v1::F32 ? (tf32 ? 1.0 / 4096 : 1.0 / (1 << 18)) : (dtype == v1::F16 ? 1.0 / 1024 : 1.0 / 128);
  return 4 * last_bit * (1 + magnitude);
}

size_t BytesOf(v1::DType dtype) { return static_cast<size_t>(ByteSize(dtype)); }

Operand::Operand(GpuBuffer buffer, v1::DType dtype, size_t elements, uint64_t seed)
    : buffer_(std::move(buffer)), dtype_(dtype), elements_(elements), seed_(seed) {}

absl::StatusOr<Operand> Operand::Create(Gpu& gpu, v1::DType dtype, size_t elements, uint64_t seed) {
  const size_t width = BytesOf(dtype), bytes = elements * width;
  if (bytes > kBenchOperandBytesMax)
    return absl::ResourceExhaustedError("an operand is too large to be measured");
  KILN_ASSIGN_OR_RETURN(GpuBuffer buffer, gpu.Allocate(bytes));
  Operand operand(std::move(buffer), dtype, elements, seed);
  KILN_RETURN_IF_ERROR(operand.Fill());
  return operand;
}

absl::Status Operand::Fill() {
  const size_t width = BytesOf(dtype_), bytes = elements_ * width;
  std::string values(std::min(elements_, kPeriod) * width, '\0');
  for (size_t i = 0; i * width < values.size(); ++i) Encode(dtype_, ValueOf(seed_, i), &values[i * width]);
  KILN_RETURN_IF_ERROR(buffer_.Write(0, values));
  return buffer_.Repeat(values.size(), bytes);
}

float Operand::ValueAt(size_t index) const { return ValueOf(seed_, index); }

absl::StatusOr<std::string> Operand::Read() const {
  const size_t bytes = elements_ * BytesOf(dtype_);
  if (bytes <= kPieces * kPiece) return buffer_.Read(0, bytes);
  std::string read;
  read.reserve(kPieces * kPiece);
  for (size_t piece = 0; piece < kPieces; ++piece) {
    KILN_ASSIGN_OR_RETURN(const std::string part,
                          buffer_.Read(StartOf(piece, bytes, BytesOf(dtype_)), kPiece));
    read += part;
  }
  return read;
}

size_t Operand::PlaceOf(size_t index) const {
  const size_t width = BytesOf(dtype_), bytes = elements_ * width, at = index * width;
  if (bytes <= kPieces * kPiece) return at;
  // The last piece that starts no later.
  size_t piece = std::min(kPieces - 1, at * (kPieces - 1) / (bytes - kPiece) + 1);
  while (StartOf(piece, bytes, width) > at) --piece;
  const size_t within = at - StartOf(piece, bytes, width);
  return within < kPiece ? piece * kPiece + within : std::string::npos;
}

double ValueIn(const std::string& read, size_t place, v1::DType dtype) {
  return CastScalar(dtype, v1::F64, LoadScalar(dtype, read.data() + place, 0)).d;
}

std::string FirstDifference(const std::string& got, const std::string& wanted, v1::DType dtype,
                            double tolerance) {
  const size_t width = BytesOf(dtype);
  for (size_t at = 0; at + width <= wanted.size(); at += width) {
    const size_t block = std::min(kBlock, (wanted.size() - at) / width);
    if (at / width % kBlock == 0 && Agree(got.data() + at, wanted.data() + at, block, dtype, tolerance)) {
      at += (block - 1) * width;
      continue;
    }
    if (std::memcmp(got.data() + at, wanted.data() + at, width) == 0) continue;
    const double is = ValueIn(got, at, dtype), should = ValueIn(wanted, at, dtype);
    if (IsFloat(dtype) && std::isnan(is) && std::isnan(should)) continue;
    if (!IsFloat(dtype) || !IsNear(is, should, tolerance)) {
      return absl::StrCat("element ", at / width, " is ", is, ", not ", should);
    }
  }
  return "";
}

}  // namespace kiln::tuner
