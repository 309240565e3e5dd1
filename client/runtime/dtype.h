// Sizes and names of element types, for the runtime alone. Pure functions.
#pragma once

#include <cstdint>

#include "kiln/v1/graph.pb.h"

namespace kiln::runtime {

inline int64_t ElementBytes(v1::DType dtype) {  // 0 for an unspecified type
  switch (dtype) {
    case v1::BOOL:
    case v1::U8:
    case v1::I8: return 1;
    case v1::I16:
    case v1::F16:
    case v1::BF16: return 2;
    case v1::I32:
    case v1::F32: return 4;
    case v1::I64:
    case v1::F64:
    case v1::C64: return 8;
    case v1::C128: return 16;
    default: return 0;
  }
}

}  // namespace kiln::runtime
