// Groups of dtypes as ops.def uses them. Threads: pure functions.
#pragma once

#include "kiln/v1/graph.pb.h"

namespace kiln::ir {

inline bool IsHalf(v1::DType dtype) { return dtype == v1::F16 || dtype == v1::BF16; }
inline bool IsFloating(v1::DType dtype) { return dtype == v1::F32 || dtype == v1::F64; }
inline bool IsInt(v1::DType dtype) { return dtype >= v1::U8 && dtype <= v1::I64; }
inline bool IsArithmetic(v1::DType dtype) { return IsFloating(dtype) || IsInt(dtype) || dtype == v1::BOOL; }
inline bool IsStorable(v1::DType dtype) { return IsArithmetic(dtype) || IsHalf(dtype); }

inline int ByteWidth(v1::DType dtype) {
  switch (dtype) {
    case v1::BOOL:
    case v1::U8:
    case v1::I8: return 1;
    case v1::I16:
    case v1::F16:
    case v1::BF16: return 2;
    case v1::I32:
    case v1::F32: return 4;
    default: return 8;
  }
}

}  // namespace kiln::ir
