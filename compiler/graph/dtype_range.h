// Which numbers a dtype represents, and which Python numbers torch converts to it. Pure functions.
#pragma once

#include <cstdint>

#include "kiln/v1/graph.pb.h"

namespace kiln {

// The largest finite number of a floating dtype, or of the parts of a complex one; of any other, F64's.
double LargestFinite(v1::DType dtype);
// Of a real floating dtype, with the leading one that is not stored; 0 for any other.
int SignificandBits(v1::DType dtype);
// One past the largest of the integers from 0 on that the dtype holds without a gap; 2^63 for I64.
uint64_t IntegersEnd(v1::DType dtype);
// Of an integral dtype, or BOOL: whether the floating one holds each of its numbers.
bool HoldsIntegersOf(v1::DType floating, v1::DType integral);

// Whether torch converts the number; otherwise it raises "value cannot be converted … without overflow".
// Fractions are cut off, everything converts to BOOL, infinities and NaN to floats, and -255 to U8: it wraps.
bool Converts(int64_t number, v1::DType dtype);
bool Converts(double number, v1::DType dtype);
// The integers that do.
struct IntegerBounds {
  int64_t min, max;
};
IntegerBounds ConvertingIntegers(v1::DType dtype);
// Whether every number that `from` holds does.
bool AllConvert(v1::DType from, v1::DType to);

}  // namespace kiln
