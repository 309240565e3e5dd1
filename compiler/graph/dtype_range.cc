#include "compiler/graph/dtype_range.h"

#include <cmath>
#include <limits>

#include "compiler/graph/graph.h"

namespace kiln {

double LargestFinite(v1::DType dtype) {
  switch (dtype) {
    case v1::F16: return 65504;
    case v1::BF16: return 0x1.FEp127;
    case v1::F32:
    case v1::C64: return std::numeric_limits<float>::max();
    default: return std::numeric_limits<double>::max();
  }
}

int SignificandBits(v1::DType dtype) {
  switch (dtype) {
    case v1::F16: return 11;
    case v1::BF16: return 8;
    case v1::F32: return std::numeric_limits<float>::digits;
    case v1::F64: return std::numeric_limits<double>::digits;
    default: return 0;
  }
}

uint64_t IntegersEnd(v1::DType dtype) {
  if (dtype == v1::BOOL) return 2;
  if (IsFloat(dtype)) return (uint64_t{1} << SignificandBits(dtype)) + 1;
  if (!IsInteger(dtype)) return uint64_t{1} << 63;
  const int64_t bits = 8 * ByteSize(dtype);
  return uint64_t{1} << (IsUnsignedInteger(dtype) ? bits : bits - 1);
}

bool HoldsIntegersOf(v1::DType floating, v1::DType integral) {
  return (IsInteger(integral) || integral == v1::BOOL) && IntegersEnd(integral) <= IntegersEnd(floating);
}

IntegerBounds ConvertingIntegers(v1::DType dtype) {
  const auto end = static_cast<int64_t>(IntegersEnd(dtype));
  if (IsUnsignedInteger(dtype)) return {1 - end, end - 1};
  if (IsInteger(dtype) && dtype != v1::I64) return {-end, end - 1};
  if (dtype != v1::F16) return {INT64_MIN, INT64_MAX};
  const auto largest = static_cast<int64_t>(LargestFinite(dtype));
  return {-largest, largest};
}

bool Converts(int64_t number, v1::DType dtype) {
  const IntegerBounds bounds = ConvertingIntegers(dtype);
  return bounds.min <= number && number <= bounds.max;
}

bool Converts(double number, v1::DType dtype) {
  if (dtype == v1::BOOL) return true;
  if (!IsInteger(dtype)) return !std::isfinite(number) || std::abs(number) <= LargestFinite(dtype);
  const auto end = static_cast<double>(IntegersEnd(dtype));
  // Torch compares with the largest as a double, which is 2^63 for I64.
  const double largest = dtype == v1::I64 ? end : end - 1;
  return number <= largest && number >= (IsUnsignedInteger(dtype) ? 0 : -end);
}

bool AllConvert(v1::DType from, v1::DType to) {
  if (from == to || from == v1::BOOL || to == v1::BOOL) return true;
  if (!IsInteger(from)) return !IsInteger(to) && LargestFinite(from) <= LargestFinite(to);
  if (!IsInteger(to)) return static_cast<double>(IntegersEnd(from)) <= LargestFinite(to);
  return IntegersEnd(from) <= IntegersEnd(to);
}

}  // namespace kiln
