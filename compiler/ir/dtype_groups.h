// Groups of dtypes as ops.def uses them. Threads: pure functions.
#pragma once

#include "compiler/graph/dtypes.h"

namespace kiln::ir {

using kiln::IsHalf;
inline bool IsFloating(v1::DType dtype) { return ClassOf(dtype) == DTypeClass::kFloat; }
inline bool IsInt(v1::DType dtype) { return IsInteger(dtype); }
inline bool IsUnsigned(v1::DType dtype) { return IsUnsignedInteger(dtype) || dtype == v1::BOOL; }
inline bool IsArithmetic(v1::DType dtype) { return IsFloating(dtype) || IsInt(dtype) || dtype == v1::BOOL; }
inline bool IsStorable(v1::DType dtype) { return IsArithmetic(dtype) || IsHalf(dtype); }

inline int ByteWidth(v1::DType dtype) { return static_cast<int>(ByteSize(dtype)); }

}  // namespace kiln::ir
