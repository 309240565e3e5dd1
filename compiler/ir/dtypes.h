// Groups of dtypes as ops.def uses them. Threads: pure functions.
#pragma once

#include "compiler/graph/dtype_size.h"
#include "kiln/v1/graph.pb.h"

namespace kiln::ir {

inline bool IsHalf(v1::DType dtype) { return dtype == v1::F16 || dtype == v1::BF16; }
inline bool IsFloating(v1::DType dtype) { return dtype == v1::F32 || dtype == v1::F64; }
inline bool IsInt(v1::DType dtype) { return dtype >= v1::U8 && dtype <= v1::I64; }
inline bool IsUnsigned(v1::DType dtype) { return dtype == v1::U8 || dtype == v1::BOOL; }
inline bool IsArithmetic(v1::DType dtype) { return IsFloating(dtype) || IsInt(dtype) || dtype == v1::BOOL; }
inline bool IsStorable(v1::DType dtype) { return IsArithmetic(dtype) || IsHalf(dtype); }

inline int ByteWidth(v1::DType dtype) { return static_cast<int>(ByteSize(dtype)); }

}  // namespace kiln::ir
