// What a dtype is, by its row of dtypes.def. Threads: pure functions.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

enum class DTypeClass { kNone, kBool, kUnsigned, kSigned, kHalf, kFloat, kComplex };

struct DTypeTraits {
  absl::string_view text;   // "f32"
  absl::string_view torch;  // "float32"
  int bytes = 0;            // of one element
  DTypeClass dtype_class = DTypeClass::kNone;
};

// "undefined", of no bytes and no class, for a dtype that is not known.
constexpr DTypeTraits TraitsOf(v1::DType dtype) {
  switch (dtype) {
#define KILN_DTYPE(Enum, text, torch, bytes, dtype_class) \
  case v1::Enum: return {#text, #torch, bytes, DTypeClass::dtype_class};
#include "compiler/graph/dtypes.def"
#undef KILN_DTYPE
    default: return {"undefined", "", 0, DTypeClass::kNone};
  }
}

constexpr DTypeClass ClassOf(v1::DType dtype) { return TraitsOf(dtype).dtype_class; }

constexpr int64_t ByteSize(v1::DType dtype) { return TraitsOf(dtype).bytes; }
constexpr absl::string_view DTypeName(v1::DType dtype) { return TraitsOf(dtype).text; }

constexpr bool IsHalf(v1::DType dtype) { return ClassOf(dtype) == DTypeClass::kHalf; }
constexpr bool IsFloat(v1::DType dtype) { return IsHalf(dtype) || ClassOf(dtype) == DTypeClass::kFloat; }
constexpr bool IsComplex(v1::DType dtype) { return ClassOf(dtype) == DTypeClass::kComplex; }
// Without BOOL.
constexpr bool IsUnsignedInteger(v1::DType dtype) { return ClassOf(dtype) == DTypeClass::kUnsigned; }
constexpr bool IsInteger(v1::DType dtype) {
  return IsUnsignedInteger(dtype) || ClassOf(dtype) == DTypeClass::kSigned;
}

}  // namespace kiln
