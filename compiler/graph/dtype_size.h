// The bytes of one element of a tensor; the only table of them. A pure function.
#pragma once

#include <cstdint>

#include "kiln/v1/graph.pb.h"

namespace kiln {

// 0 for a type that is not known.
inline int64_t ByteSize(v1::DType dtype) {
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

}  // namespace kiln
